#!/usr/bin/env bash
# Installs what tessera needs from Debian or Ubuntu, where it is missing. Needs root or sudo only then;
# does nothing, quickly, when everything is there.
#
#   bash jobs/packages.sh [--tests]
#
# Programs count as there when they are on PATH, whoever installed them; libraries when their package is.
# --tests also wants what only tests use, and continues without it where it cannot be installed.
set -euo pipefail

# program:package
programs=(cmake:cmake ninja:ninja-build g++:g++ git:git python3:python3 mpirun:openmpi-bin
          h5dump:hdf5-tools)
libraries=(libopenmpi-dev libhdf5-dev libboost-program-options-dev libboost-test-dev libdnnl-dev
           nlohmann-json3-dev libfmt-dev libxxhash-dev libsentencepiece-dev libpcre2-dev libutf8proc-dev
           zlib1g-dev libzstd-dev)
# A second MPI, and the reader of comments in headers; mpicc and mpirun remain Open MPI's (Debian's alternatives rank it higher).
tests_only=(mpich libmpich-dev doxygen)

missing=()
for entry in "${programs[@]}"; do
  command -v "${entry%%:*}" >/dev/null 2>&1 || missing+=("${entry##*:}")
done

if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "packages: this is neither Debian nor Ubuntu, so nothing is installed. Needed are" \
       "${libraries[*]} (or their like here); CMake names what it does not find." >&2
  if [ ${#missing[@]} -gt 0 ]; then
    echo "packages: these programs are missing: ${missing[*]}." >&2
    exit 1
  fi
  exit 0
fi

# Adds those of the packages that are not installed to `missing`.
look_for() {
  local installed package
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -qxF "$package installed" <<<"$installed" || missing+=("$package")
  done
}
look_for "${libraries[@]}"
needed=${#missing[@]}
if [ "${1:-}" = --tests ]; then
  look_for "${tests_only[@]}"
fi
# Ends with the failure reported, or with success where only tests go without.
give_up() {
  [ "$needed" -gt 0 ] && exit 1
  echo "packages: tests that need ${missing[*]} are skipped" >&2
  exit 0
}
if [ ${#missing[@]} -eq 0 ]; then
  echo "packages: all there"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null 2>&1; then
    echo "packages: missing ${missing[*]}, and this user is neither root nor has sudo." \
         "Ask an administrator for: apt-get install ${missing[*]}" >&2
    give_up
  fi
  as_root=(sudo)
  # Without a terminal sudo could not ask for a password.
  [ -t 0 ] || as_root=(sudo -n)
fi

echo "packages: installing ${missing[*]} (apt-get)"
log=$(mktemp)
trap 'rm -f -- "$log"' EXIT
run_apt() {
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >"$log" 2>&1; then
    tail -n 20 -- "$log" >&2
    echo "packages: 'apt-get $1' failed; its last lines stand above. Needed: ${missing[*]}" >&2
    give_up
  fi
}
run_apt update
run_apt install --no-install-recommends "${missing[@]}"
echo "packages: installed"
