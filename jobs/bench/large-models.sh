#!/usr/bin/env bash
# What is to be measured of models whose training state outgrows a card, on one GPU that is held to 83.3 GB: parameters
# on the host, Qwen2.5-14B at 524,288 tokens a step on real text in bf16 and fp8, save, verify and resume on another
# storage of parameters. Lies in the GPU bundle (jobs/gpu-bundle.cmake).
#
#   bash large-models.sh [PART...]      parts: host bf16 fp8 resume; all without one
#
# Environment:
#   TEXT           token file for the rows on real text         (made of Python's packages, by bytes)
#   STEPS          steps of a row of 14B, two of them warm-up   (5: about 430 s in bf16)
#   WORK           folder for runs: 45 GB for `resume`          (a new one under /tmp; removed at the end)
#   CASE_SECONDS   limit of one command                         (580)
#   DRY=1          every part on the CPU at tiny sizes: does the script work?
#   BIN            folder of programs                           (bin beside this script)
#
# Exit status: 0 if no command failed.
set -uo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
steps=${STEPS:-5}
parts=${*:-host bf16 fp8 resume}
name="large-models"
# shellcheck source=jobs/bench/measuring.sh disable=SC1091
. "$here/measuring.sh"

if [ "$dry" = 1 ]; then
  machine=(--device cpu)
  large=tiny middle=tiny small=tiny offload=true bf16="--precision bf16-params"
  bf16_recompute=block
  row_shape="--seq 32 --micro-batch 1 --global-batch 4"
  host_shape="seq=32 micro-batch=1 global-batch=4 device=cpu --vocab 256"
else
  machine=(--device cuda --device-memory 83.3GB --host-memory 128GiB)
  large=qwen2.5-14b middle=qwen3-8b small=qwen3-1.7b offload=auto bf16="--precision bf16"
  bf16_recompute=block:34,attention # needs 131 GB of host memory
  row_shape="--seq 1024 --micro-batch 16 --global-batch 512"
  host_shape="seq=4096 micro-batch=2 global-batch=16 device=cuda moments=bf16 recompute=mlp device-memory=83.3GB host-memory=128GiB"
fi

# train_on_text NAME OPTIONS...
train_on_text() {
  local name=$1
  shift
  run "$name" "$bin/train" "${machine[@]}" --data "$TEXT" --allow-tokenizer-mismatch --out "$WORK/$name" "$@"
}

make_text

if wanted host; then
  # shellcheck disable=SC2086
  run host "$bin/bench" step --model "$middle" --warm-up 1 --measured-steps 2 --variants update=none \
    --options params=host $host_shape
fi
for kind in bf16 fp8; do
  if wanted "$kind"; then
    precision=$bf16
    recompute=$bf16_recompute
    [ "$kind" = fp8 ] && precision="--precision fp8" && recompute=block
    # shellcheck disable=SC2086
    train_on_text "$kind" --model "$large" $row_shape --steps "$steps" --lr 1e-5 --warmup 2 --moments bf16 \
      --recompute "$recompute" --grad-offload "$offload" --save-at-end false $precision
    grep -h '"start_seconds"\|"loss"' "$WORK/$kind/metrics.jsonl" 2>/dev/null | cut -c 1-900
  fi
done
if wanted resume; then
  # shellcheck disable=SC2086
  train_on_text resume --model "$small" $row_shape $bf16 --steps 2 --params host --recompute block --moments bf16 \
    --keep 1 &&
    run verify "$bin/inspect" "$WORK/resume" --verify &&
    train_on_text resume --model "$small" $row_shape $bf16 --steps 3 --params device --recompute block --moments bf16 \
      --keep 1
fi
exit "$((failed > 0))"
