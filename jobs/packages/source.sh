#!/usr/bin/env bash
# Writes the source that the recipes of EasyBuild build, tessera-VERSION.tar.gz, into FOLDER: the last commit of this
# checkout, and the headers of cudnn-frontend if jobs/get-cudnn-frontend.sh has put them here (for GPUs).
#
#   bash jobs/packages/source.sh FOLDER
set -euo pipefail

[ $# -eq 1 ] || {
  echo "usage: source.sh FOLDER" >&2
  exit 2
}
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
version=$(sed -n 's/^project(tessera VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
mkdir -p -- "$1"
archive=$(cd -- "$1" && pwd)/tessera-$version.tar
git -C "$root" archive --prefix="tessera-$version/" --output="$archive" HEAD
if [ -d "$root/build-deps/cudnn-frontend" ]; then
  tar -C "$root" -rf "$archive" --transform="s,^,tessera-$version/," build-deps/cudnn-frontend
fi
gzip -nf "$archive"
echo "$archive.gz"
