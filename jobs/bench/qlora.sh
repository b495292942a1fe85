#!/usr/bin/env bash
# What is to be measured of adapters beside a base in 4 bits, on one GPU that is held to 83.3 GB: steps of Qwen3-32B and Llama
# 3.1 70B with random codes, the loss of a 0.6B beside the same base in bf16, and adapters of an 8B beside torch with PEFT. Lies in the GPU bundle (jobs/gpu-bundle.cmake).
#
#   bash qlora.sh [PART...]      parts: 32b 70b loss peft; all without one
#
# Environment:
#   TEXT           token file for `loss`                      (made of Python's packages, by bytes)
#   EVAL           token file that its losses are taken on    (TEXT)
#   MODEL          folder of weights to start from in `loss`  (none: qwen3-0.6b is trained on TEXT first, BASE_STEPS steps)
#   BASE_STEPS, STEPS   of the base and of each of the two runs beside it   (200, 100)
#   WORK           folder for runs: 16 GB for `loss`          (a new one under /tmp; removed at the end)
#   CASE_SECONDS   limit of one command                       (580)
#   PEER           command of torch's step in `peft`          (python3 peers/train_torch.py, where it has torch and PEFT)
#   DRY=1          every part on the CPU at tiny sizes: does the script work?
#   BIN            folder of programs                         (bin beside this script)
#
# Exit status: 0 if no command failed and the loss in nf4 is within 1% of that in bf16.
set -uo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
parts=${*:-32b 70b loss peft}
name="qlora"
# shellcheck source=jobs/bench/measuring.sh disable=SC1091
. "$here/measuring.sh"

if [ "$dry" = 1 ]; then
  machine=(--device cpu)
  model_32b=tiny model_70b=tiny small=tiny middle=tiny small_batches="1 4"
  step_machine="device=cpu" step_length=32 breakdown=() vocabulary=(--vocab 256)
  shape="--seq 32 --micro-batch 1 --global-batch 4" peft_shape="seq=32 micro-batch=1 global-batch=2 device=cpu"
  base_steps=${BASE_STEPS:-4} steps=${STEPS:-3}
else
  machine=(--device cuda --device-memory 83.3GB --host-memory 128GiB)
  model_32b=qwen3-32b model_70b=llama3.1-70b small=qwen3-0.6b middle=qwen3-8b
  step_machine="device=cuda device-memory=83.3GB host-memory=128GiB" breakdown=(--breakdown 2) vocabulary=()
  shape="--seq 1024 --micro-batch 8 --global-batch 32" peft_shape="seq=2048 micro-batch=4 global-batch=8 device=cuda"
  base_steps=${BASE_STEPS:-200} steps=${STEPS:-100}
fi

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
  make_text
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

# The same step in torch, compiled, one after the other.
if wanted peft; then
  # shellcheck disable=SC2086
  run peft "$bin/bench" step --model "$middle" "${vocabulary[@]}" --warm-up 2 --measured-steps 4 --options lora=16 $peft_shape
  ours=$(awk '$1 == "tokens/s" { print $2 }' <<<"$printed")
  peer=${PEER:-}
  if [ -z "$peer" ] && [ "$dry" != 1 ] && python3 -c 'import torch, transformers, peft' 2>/dev/null; then
    peer="python3 $here/peers/train_torch.py"
  fi
  if [ -z "$peer" ]; then
    skip "torch with PEFT: python3 has none here, or this is a dry run without PEER"
  else
    # shellcheck disable=SC2086
    LIBRARIES=0 run torch $peer --model "$middle" --impl hf --lora 16 --compile --mbs 4 --seq 2048 --accum 2 --steps 4 --warmup 3
    theirs=$(grep -o '[0-9]* tok/s,' <<<"$printed" | tail -1 | cut -d ' ' -f 1)
    awk -v ours="$ours" -v theirs="$theirs" 'BEGIN {
      if (ours == "" || theirs == "") { print "peft: a rate is missing"; exit 1 }
      printf "peft: %s tokens/s here, %s in torch with PEFT: %.4f times\n", ours, theirs, ours / theirs
    }' || failed=$((failed + 1))
  fi
fi
exit "$((failed > 0))"
