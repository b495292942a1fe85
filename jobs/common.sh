# For the scripts beside it, to be sourced: where the repository is, how it is built, and how MPI is
# started. Sets `root`, `build` and the environment of mpirun.
# shellcheck shell=bash

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build

say() { printf '== %s\n' "$*"; }

# Open MPI refuses root, and more ranks than cores, unless a setting says that this is meant. Containers run as root.
if [ "$(id -u)" -eq 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export OMPI_MCA_rmaps_base_oversubscribe=1

# configure_build FOLDER CMAKE_ARGUMENT...: configures the repository into FOLDER, in Release.
configure_build() {
  local folder=$1
  shift
  local arguments=(-S "$root" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@")
  if command -v ccache >/dev/null 2>&1; then
    arguments+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  fi
  cmake "${arguments[@]}" >"$folder.log" 2>&1 || {
    cat -- "$folder.log" >&2
    echo "configuring $folder failed; the lines above say why" >&2
    return 1
  }
  rm -f -- "$folder.log"
}

# compile_build FOLDER [TARGET...]: builds on all cores.
compile_build() {
  local folder=$1
  shift
  local targets=()
  [ $# -eq 0 ] || targets=(--target "$@")
  cmake --build "$folder" --parallel "$(nproc)" "${targets[@]}"
}
