#!/usr/bin/env bash
# Builds tessera of this checkout by EasyBuild and trains with it by ReFrame, in a folder that can be thrown away:
#
#   bash jobs/packages/try.sh FOLDER
#
# EasyBuild and ReFrame come from PyPI. Needed besides: what jobs/packages.sh installs, and Lmod (Debian: lmod). The last
# commit is what is built. CORES=N builds on N cores (1).
set -euo pipefail

[ $# -eq 1 ] || {
  echo "usage: try.sh FOLDER" >&2
  exit 2
}
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p -- "$1"
work=$(cd -- "$1" && pwd)
recipes=$root/jobs/packages
lmod=/usr/share/lmod/lmod
[ -r "$lmod/init/bash" ] || lmod=${LMOD_PKG:?try.sh: no Lmod here; Debian has it as lmod}
# shellcheck source=/dev/null
set +u && source "$lmod/init/bash" && set -u

[ -x "$work/venv/bin/eb" ] || {
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet easybuild==5.4.1 reframe-hpc==4.10.4
}
export PATH=$work/venv/bin:$PATH LMOD_CMD=$lmod/libexec/lmod

bash "$recipes/source.sh" "$work/sources/t/tessera"
settings=(--modules-tool=Lmod --prefix="$work/easybuild" --sourcepath="$work/sources" --parallel="${CORES:-1}")
[ "$(id -u)" -ne 0 ] || settings+=(--allow-use-as-root-and-accept-consequences)
export XDG_CONFIG_HOME=$work/config XDG_CONFIG_DIRS=$work/config # no settings of this machine
eb "${settings[@]}" --force "$recipes/easybuild/tessera-0.1.0.eb"
# That the libraries of the other recipes are there, in these versions: nothing is downloaded.
eb "${settings[@]}" --dry-run --robot="$recipes/easybuild:$work/venv/easybuild/easyconfigs" \
  "$recipes"/easybuild/tessera-0.1.0-*.eb

module use "$work/easybuild/modules/all"
cd -- "$work"
reframe --prefix="$work/reframe" -C "$recipes/reframe/settings.py" -c "$recipes/reframe/tessera_test.py" \
  -S launch_options='--oversubscribe --bind-to none' --performance-report -r
