#!/usr/bin/env bash
# Three hosts of which one is lost with its disk, twenty times at random moments of promotions, partner copies, local saves and
# steps: jobs.local_saves has four of these. Not part of CTest: some minutes. Needs root, for network namespaces.
#
#   bash tests/jobs/lost_hosts_long.sh BUILD [KILLS]
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
TESSERA_BIN=$(cd -- "$1" && pwd)/bin
export TESSERA_BIN TESSERA_KILLS=${2:-20} TESSERA_GOLDEN=$here/../golden PYTHONDONTWRITEBYTECODE=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMP_NUM_THREADS=1
export MPIEXEC=${MPIEXEC:-mpirun}
exec python3 "$here/local_saves_test.py" -v LostHosts.test_a_host_that_is_lost_at_any_moment_costs_nothing_that_was_announced
