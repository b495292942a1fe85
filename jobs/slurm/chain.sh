#!/usr/bin/env bash
# For sites that do not let jobs go back into the queue: submits a job N times under one name, of which
# Slurm runs one at a time (--dependency=singleton). Each continues where the one before it saved.
#
#   bash jobs/slurm/chain.sh 5 --time=04:00:00 --ntasks=4 jobs/slurm/train.sbatch --model small ... --out runs/a
#
# Once the run is finished, jobs that are left load it, see that nothing is to do, and end within seconds.
# Prints the jobs' numbers; `scancel --name=NAME` ends the chain. NAME is TESSERA_CHAIN, or made up.
set -euo pipefail

if [ $# -lt 2 ] || ! [ "$1" -gt 0 ] 2>/dev/null; then
  echo "usage: chain.sh COUNT [sbatch's options] SCRIPT [train's options]" >&2
  exit 2
fi
count=$1
shift
name=${TESSERA_CHAIN:-tessera-chain-$(date +%Y%m%d-%H%M%S)-$$}
for _ in $(seq "$count"); do
  sbatch --parsable --job-name="$name" --dependency=singleton --no-requeue \
    --export=ALL,TESSERA_REQUEUE=0 "$@"
done
echo "chain.sh: $count jobs named $name" >&2
