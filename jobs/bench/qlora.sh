#!/usr/bin/env bash
# What is to be measured of adapters beside a base in 4 bits, on one GPU that is held to 83.3 GB: steps of Qwen3-32B and Llama
# 3.1 70B with random codes, and the loss of a 0.6B beside the same base in bf16. Lies in the GPU bundle (jobs/gpu-bundle.cmake).
#
#   bash qlora.sh [PART...]      parts: 32b 70b loss; all without one
#
# Environment:
#   TEXT           token file for `loss`                      (made of Python's packages, by bytes)
#   EVAL           token file that its losses are taken on    (TEXT)
#   MODEL          folder of weights to start from in `loss`  (none: qwen3-0.6b is trained on TEXT first, BASE_STEPS steps)
#   BASE_STEPS, STEPS   of the base and of each of the two runs beside it   (200, 100)
#   WORK           folder for runs: 16 GB for `loss`          (a new one under /tmp; removed at the end)
#   CASE_SECONDS   limit of one command                       (580)
#   DRY=1          every part on the CPU at tiny sizes: does the script work?
#   BIN            folder of programs                         (bin beside this script)
#
# Exit status: 0 if no command failed and the loss in nf4 is within 1% of that in bf16.
set -uo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
bin=${BIN:-$here/bin}
limit=${CASE_SECONDS:-580}
parts=${*:-32b 70b loss}
own_work=""
if [ -z "${WORK:-}" ]; then
  WORK=$(mktemp -d /tmp/qlora.XXXXXX)
  own_work=$WORK
fi
trap '[ -n "$own_work" ] && rm -rf "$own_work"' EXIT
mkdir -p "$WORK"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

if [ "${DRY:-0}" = 1 ]; then
  libraries=${LD_LIBRARY_PATH:-}
  machine=(--device cpu)
  model_32b=tiny model_70b=tiny small=tiny small_batches="1 4"
  step_machine="device=cpu" step_length=32 breakdown=() vocabulary=(--vocab 256)
  shape="--seq 32 --micro-batch 1 --global-batch 4"
  base_steps=${BASE_STEPS:-4} steps=${STEPS:-3}
else
  # shellcheck source=jobs/gpu-libraries.sh disable=SC1091
  . "$here/gpu-libraries.sh"
  machine=(--device cuda --device-memory 83.3GB --host-memory 128GiB)
  model_32b=qwen3-32b model_70b=llama3.1-70b small=qwen3-0.6b
  step_machine="device=cuda device-memory=83.3GB host-memory=128GiB" breakdown=(--breakdown 2) vocabulary=()
  shape="--seq 1024 --micro-batch 8 --global-batch 32"
  base_steps=${BASE_STEPS:-200} steps=${STEPS:-100}
fi

failed=0
wanted() { [[ " $parts " == *" $1 "* ]]; }
# run NAME COMMAND...: shows the command and its output, without the progress of allocations; a failure is a line, not the end.
run() {
  local name=$1 start=$SECONDS status
  shift
  printf '\n### %s\n$ %s\n' "$name" "$*"
  timeout --kill-after=10 "$limit" env LD_LIBRARY_PATH="$libraries" "$@" 2>&1 </dev/null | grep -v '^pinned '
  status=${PIPESTATUS[0]}
  printf '%s: status %s, %s s\n' "$name" "$status" "$((SECONDS - start))"
  [ "$status" -eq 0 ] || failed=$((failed + 1))
  return "$status"
}
# steps_of NAME MODEL LENGTH BATCHES...: a row for each micro-batch, of so many sequences; eight of them a step, or two
steps_of() {
  local name=$1 model=$2 length=$3 micro_batch
  shift 3
  for micro_batch in "$@"; do
    # shellcheck disable=SC2086
    run "$name $((micro_batch * length))" "$bin/bench" step --model "$model" "${vocabulary[@]}" --warm-up 1 --measured-steps 2 \
      "${breakdown[@]}" --options lora=16 base-dtype=nf4 base-random=true seq="$length" micro-batch="$micro_batch" \
      global-batch="$((micro_batch == 1 ? 8 : 2 * micro_batch))" recompute=auto $step_machine
  done
}

if wanted 32b; then
  # shellcheck disable=SC2086
  steps_of 32b "$model_32b" "${step_length:-2048}" ${small_batches:-1 4}
fi
if wanted 70b; then
  # shellcheck disable=SC2086
  steps_of 70b "$model_70b" "${step_length:-1024}" ${small_batches:-2 4}
fi

# train_on_text NAME OPTIONS...
train_on_text() {
  local name=$1
  shift
  # shellcheck disable=SC2086
  run "$name" "$bin/train" "${machine[@]}" --data "$TEXT" --allow-tokenizer-mismatch --eval-data "${EVAL:-$TEXT}" \
    --eval-sequences 128 --log-every 20 --out "$WORK/$name" $shape "$@"
}
loss_of() {
  grep -o '"eval_loss":[0-9.]*' "$WORK/$1/metrics.jsonl" | tail -1 | cut -d : -f 2
}
if wanted loss; then
  if [ -z "${TEXT:-}" ]; then
    TEXT=$WORK/text.h5
    packages=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
    run text "$bin/tokenize" --tokenizer bytes --out "$TEXT" "$packages" || exit 1
  fi
  base=${MODEL:-}
  if [ -z "$base" ]; then
    base=$WORK/base
    train_on_text base --model "$small" --steps "$base_steps" --lr 6e-4 || exit 1
  fi
  adapters=(--init "$base" --lora 16 --lr 2e-4 --steps "$steps" --save-at-end false)
  train_on_text lora "${adapters[@]}" && train_on_text qlora "${adapters[@]}" --base-dtype nf4
  awk -v whole="$(loss_of lora)" -v packed="$(loss_of qlora)" 'BEGIN {
    if (whole == "" || packed == "") { print "loss: a run is missing"; exit 1 }
    printf "loss: %s beside the base as it is, %s beside nf4: %+.3f%%\n", whole, packed, 100 * (packed / whole - 1)
    exit packed > 1.01 * whole
  }' || failed=$((failed + 1))
fi
exit "$((failed > 0))"
