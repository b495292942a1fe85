#!/usr/bin/env bash
# Puts the headers of cudnn-frontend, which a CUDA build needs, into FOLDER/cudnn-frontend/include
# (FOLDER: build-deps beside this repository's CMakeLists.txt unless given). Does nothing if they are there.
#
#   bash jobs/get-cudnn-frontend.sh [FOLDER]
set -euo pipefail

version=1.14.1
sha256=a41008635559f223257e78b7b1d6c26b6f7f8742a56b2a0cc3341d1b3ad81b66

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target="${1:-$root/build-deps}/cudnn-frontend"
stamp="$target/version"

if [[ -f $stamp && $(<"$stamp") == "$version" && -f $target/include/cudnn_frontend.h ]]; then
  echo "cudnn-frontend $version is in $target/include"
  exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# One wheel by name, whatever Python runs here: only its headers are used.
python3 -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --abi cp311 \
  --python-version 3.11 --platform manylinux_2_27_x86_64 --dest "$scratch" \
  "nvidia-cudnn-frontend==$version"
wheel=$(find "$scratch" -name '*.whl')
echo "$sha256  $wheel" | sha256sum --check --quiet

# A wheel is a zip file; Python reads it without any further package.
python3 - "$wheel" "$scratch/unpacked" <<'PYTHON'
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if n.startswith("include/")])
PYTHON

mkdir -p "$target"
rm -rf "$target/include" "$stamp"
cp -r "$scratch/unpacked/include" "$target/include"
echo "$version" >"$stamp"
echo "cudnn-frontend $version is in $target/include"
