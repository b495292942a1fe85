#!/usr/bin/env bash
# Builds and installs tessera for one user, without root and without a package manager:
#
#   bash jobs/install.sh PREFIX [CMake's options]
#
# What it needs comes from environment modules that are loaded, or lies unpacked in folders that
# CMAKE_PREFIX_PATH names (jobs/cluster.md). Then: programs in PREFIX/bin, batch scripts in
# PREFIX/share/tessera, and a module file, PREFIX/share/modulefiles/tessera/VERSION.
set -euo pipefail

if [ $# -lt 1 ] || [[ $1 == -* ]]; then
  echo "usage: install.sh PREFIX [CMake's options, as -DMPI_CXX_COMPILER=mpicxx.mpich]" >&2
  exit 2
fi
prefix=$1
shift
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p -- "$prefix"
prefix=$(cd -- "$prefix" && pwd)
build=${TESSERA_BUILD:-$prefix/build}
generator=()
! command -v ninja >/dev/null 2>&1 || generator=(-G Ninja)

cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
  -DTESSERA_TESTS=OFF "$@"
cmake --build "$build" --parallel "${TESSERA_JOBS:-$(nproc)}"
cmake --install "$build"
echo "install: done. Now:  module use '$prefix/share/modulefiles'; module load tessera"
