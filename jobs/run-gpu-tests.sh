#!/usr/bin/env bash
# Runs the CUDA tests of a bundle (jobs/gpu-bundle.cmake) on a machine with GPUs; it is in the bundle as
# run-tests.sh. One line a case, and `N passed, N failed, N skipped` at the end.
#
#   ./run-tests.sh [PATTERN]     only cases whose name matches the regular expression
#
# Environment: LOGS, where the output of each case goes (default: logs beside this script);
# CASE_SECONDS, the limit of a case (default 300); UNDER, a command that each test program runs under, such as
# UNDER='compute-sanitizer --tool racecheck --error-exitcode 9'. Exit status: 0 if none failed and one passed.
set -uo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
pattern=${1:-.}
logs=${LOGS:-$here/logs}
limit=${CASE_SECONDS:-300}
tail_lines=40  # of the output of a failed case
read -r -a under <<<"${UNDER:-}"

# shellcheck source=jobs/gpu-libraries.sh
. "$here/gpu-libraries.sh"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# NVLink multicast stays off: a program that ends in it can put the host's GPUs out of service.
export NCCL_NVLS_ENABLE=0
export TESSERA_BIN=$here/bin TESSERA_GOLDEN=$here/golden

gpus=0
if command -v nvidia-smi >/dev/null 2>&1; then
  gpus=$(nvidia-smi --list-gpus | grep -c '^GPU')
fi
mkdir -p "$logs"
passed=0 failed=0 skipped=0

skip() {
  skipped=$((skipped + 1))
  echo "skipped $1: $2"
}

while read -r name ranks binary <&3; do
  [[ $name =~ $pattern ]] || continue
  if [ "$ranks" -gt "$gpus" ]; then
    skip "$name" "$ranks ranks, and $gpus GPUs"
    continue
  fi
  # The libraries are for the test alone, not for mpirun, which has its own.
  command=(env "LD_LIBRARY_PATH=$libraries" "${under[@]}" "$here/bin/$binary")
  if [ "$ranks" -gt 0 ]; then
    if ! command -v mpirun >/dev/null 2>&1; then
      skip "$name" "no mpirun"
      continue
    fi
    command=(mpirun -np "$ranks" "${command[@]}")
  fi
  log=$logs/$name.log
  start=$(date +%s.%N)
  timeout --kill-after=10 "$limit" "${command[@]}" >"$log" 2>&1 </dev/null
  status=$?
  seconds=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
  case $status in
    0) passed=$((passed + 1)); echo "passed  $name ($seconds s)" ;;
    77) skip "$name" "$(grep -i -m 1 skip "$log" || tail -n 1 "$log")" ;;
    *)
      failed=$((failed + 1))
      reason="status $status"
      [ "$status" -eq 124 ] && reason="no end within $limit s"
      echo "FAILED  $name ($seconds s, $reason); the last lines of $log:"
      tail -n "$tail_lines" "$log" | sed 's/^/    /'
      ;;
  esac
done 3<"$here/tests.txt"

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
