#!/usr/bin/env bash
# What is to be measured on a machine with eight GPUs, prepared: CUDA tests and equal bits up to 8 ranks, exchange and
# gather beside NCCL, whole steps beside torch, a checkpoint of Qwen3-8B. Lies in the GPU bundle (jobs/gpu-bundle.cmake).
#
#   bash eight-gpus.sh [PART...]      parts: tests bits exchange steps peers checkpoint; all without one
#
# Environment:
#   RESULT         file that everything is written to, too     (eight-gpus.md here)
#   WORK           folder for runs and checkpoints: 100 GB      (a new one under /tmp; removed at the end)
#   RANKS          numbers of ranks                             (1 2 3 4 8, as far as there are GPUs)
#   MPIEXEC        the launcher                                 (mpirun)
#   CASE_SECONDS   limit of one command                         (400)
#   DRY=1          every part on CPU ranks at tiny sizes, with the programs of BIN: does the script work?
#   BIN            folder of programs                           (bin beside this script)
#
# What does not fit or cannot run is skipped, by name. Exit status: 0 if no command failed.
set -uo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
result=$(realpath -m "${RESULT:-eight-gpus.md}")
: >"$result" || exit 1
limit=400
launcher=${MPIEXEC:-mpirun}
parts=${*:-tests bits exchange steps peers checkpoint}
name="eight-gpus"
# shellcheck source=jobs/bench/measuring.sh disable=SC1091
. "$here/measuring.sh"

export LIBRARIES=0  # on_ranks gives them to the programs
export OMPI_MCA_rmaps_base_oversubscribe=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# NVLink multicast stays off: a program that ends in it can put the host's GPUs out of service.
export NCCL_NVLS_ENABLE=0

if [ "$dry" = 1 ]; then
  gpus=8
  card="no GPU: dry run on $(nproc --all) cores"
  device=cpu
  device_memory=80GB
else
  gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true)
  if [ "$gpus" -eq 0 ]; then
    echo "eight-gpus.sh: no GPU here; DRY=1 tries it on CPU ranks" >&2
    exit 1
  fi
  card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c)
  device=cuda
  device_memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | sort -n | head -n 1)MiB
fi
ranks_here=""
for n in ${RANKS:-1 2 3 4 8}; do
  [ "$n" -le "$gpus" ] && ranks_here+=" $n"
done

# on_ranks N PROGRAM ARGUMENTS...: the command line, in `command`.
on_ranks() {
  local n=$1 program=$2
  shift 2
  command=("$launcher" --bind-to none -np "$n" env "LD_LIBRARY_PATH=$libraries" "$bin/$program" "$@")
}

say "# Eight GPUs, $(date -u +'%Y-%m-%d %H:%M') UTC" "" "$card" "$("$bin/train" --version 2>/dev/null || true)" \
  "parts: $parts; ranks:$ranks_here; $device_memory a card"

# --- 1: the CUDA tests, and bit-identical results on any number of ranks --------------------------------------------
if wanted tests; then
  if [ "$dry" = 1 ]; then
    skip "CUDA tests: a dry run has no GPU"
  else
    limit=1700 run "CUDA tests" env LOGS="$WORK/logs" "$here/run-tests.sh"
  fi
fi

model=d12 shape=(--seq 1024 --micro-batch 8 --global-batch 64)
[ "$dry" = 1 ] && model=tiny shape=(--seq 32 --micro-batch 1 --global-batch 8)
if wanted bits || wanted checkpoint; then
  seq 1 400000 >"$WORK/text.txt"  # 2.7 MB
  LD_LIBRARY_PATH=$libraries "$bin/tokenize" --tokenizer bytes --out "$WORK/corpus.h5" "$WORK/text.txt" >/dev/null || exit 1
fi
# train_on NAME RANKS OPTIONS...: a run whose losses, norms and last hash are left in $WORK/NAME.bits
train_on() {
  local name=$1 n=$2
  shift 2
  rm -rf "${WORK:?}/$name"
  on_ranks "$n" train --device "$device" --data "$WORK/corpus.h5" --out "$WORK/$name" --model "$model" "${shape[@]}" \
    --save-at-end false --log-every 10 --allow-tokenizer-mismatch "$@"
  run "$name" "${command[@]}" || return 1
  { grep '"loss"' "$WORK/$name/metrics.jsonl" | grep -oE '"(step|loss|grad_norm)": ?[-0-9.e+a-z]+'
    grep -oE 'parameters [0-9a-f]{16} after step [0-9]+' "$WORK/$name/metrics.jsonl"; } >"$WORK/$name.bits"
}
same_bits() {  # NAME OTHER
  if [ -s "$WORK/$1.bits" ] && cmp -s "$WORK/$1.bits" "$WORK/$2.bits"; then
    say "bit-identical: $1 and $2 ($(tail -n 1 "$WORK/$1.bits"))"
  else
    say "OTHER BITS: $1 and $2"
    failed=$((failed + 1))
  fi
}
if wanted bits; then
  say "" "## Bit-identical results, $model, 10 steps"
  first=""
  for n in $ranks_here; do
    train_on "bits-$n" "$n" --steps 10 || continue
    first=${first:-bits-$n}
    same_bits "bits-$n" "$first"
  done
  if [ "$gpus" -ge 8 ]; then
    train_on group-flat 8 --steps 10 --reduce-group 4 && train_on group-in-nodes 8 --steps 10 --reduce-group 4 \
      --ranks-per-node 4 && same_bits group-in-nodes group-flat
  else
    skip "groups inside nodes: 8 ranks, and $gpus GPUs"
  fi
fi

# --- 2: exchange and ordered sum, all-gather -----------------------------------------------------------------
if wanted exchange; then
  say "" "## Exchange and ordered sum beside the library's reduce-scatter, all-gather"
  largest=(--max-mb 780)
  [ "$dry" = 1 ] && largest=(--max-mb 8 --repetitions 1)
  for n in $ranks_here; do
    [ "$n" -gt 1 ] || continue
    on_ranks "$n" bench collectives --device "$device" "${largest[@]}"
    run "collectives on $n" "${command[@]}"
  done
fi

# --- 3: whole steps ------------------------------------------------------------------------------------------
# step_row MODEL SEQ MICRO OPTIONS...: one micro-batch a rank and step as torch's rows, and four as a variant.
step_row() {
  local name=$1 seq=$2 micro=$3 n option plan
  shift 3
  for n in $ranks_here; do
    [ "$n" -eq 3 ] && continue
    plan=()
    for option in "$@"; do
      plan+=("--${option%%=*}" "${option#*=}")
    done
    if [ "$dry" != 1 ] && ! LD_LIBRARY_PATH=$libraries "$bin/train" --plan --model "$name" --device cuda --seq "$seq" \
      --micro-batch "$micro" --global-batch $((n * micro * 4)) --ranks "$n" --device-memory "$device_memory" \
      "${plan[@]}" >"$WORK/plan.txt" 2>&1; then
      skip "$name on $n: $(tail -n 1 "$WORK/plan.txt")"
      continue
    fi
    on_ranks "$n" bench step --model "$name" "${few[@]}" --variants collectives=none global-batch=$((n * micro * 4)) \
      --options device="$device" seq="$seq" micro-batch="$micro" global-batch=$((n * micro)) "$@"
    run "$name on $n" "${command[@]}"
  done
}
few=(--measured-steps 8 --warm-up 3)
if wanted steps; then
  say "" "## Whole steps"
  if [ "$dry" = 1 ]; then
    few=(--measured-steps 1 --warm-up 0 --vocab 300)
    step_row tiny 32 1 recompute=block
  else
    step_row qwen2.5-1.5b 1024 16
    step_row qwen3-1.7b 4096 4
    few=(--measured-steps 4 --warm-up 2)
    step_row qwen3-8b 4096 1 recompute=block
    step_row qwen3-14b 4096 1 recompute=block resident-bytes=none batched-forward=1
  fi
fi
if wanted peers; then
  say "" "## torch, the same rows (fsdp2)"
  if [ "$dry" = 1 ]; then
    skip "torch: a dry run has no GPU"
  elif ! python3 -c 'import torch' 2>/dev/null; then
    skip "torch: python3 has none"
  else
    for n in $ranks_here; do
      case $n in
        1) rows='^1.7b-compile$' ;;
        3) continue ;;
        *) rows='^(1.7b-fsdp2|8b-fsdp2-recompute)$' ;;
      esac
      run "torch on $n" env ONLY="$rows" OUT="$WORK/torch" BUDGET_S="$limit" bash "$here/peers/run_torch_peers.sh" "$n"
    done
  fi
fi

# --- 4: a checkpoint of Qwen3-8B -----------------------------------------------------------------------------
if wanted checkpoint; then
  say "" "## A checkpoint written by $gpus ranks, loaded by 2"
  model=qwen3-8b shape=(--seq 4096 --micro-batch 1 --global-batch 8 --recompute block)
  needed=105
  [ "$dry" = 1 ] && model=tiny shape=(--seq 32 --micro-batch 1 --global-batch 8) needed=1
  free=$(df --output=avail -BG "$WORK" | tail -n 1 | tr -dc 0-9)
  if [ "$gpus" -lt 8 ]; then
    skip "the checkpoint: 8 ranks, and $gpus GPUs"
  elif [ "$free" -lt "$needed" ]; then
    skip "the checkpoint: $needed GB wanted in $WORK, and $free GB free"
  else
    # the save of step 2 continues beside steps 3 and 4: their times show the stall
    train_on checkpoint-8 8 --steps 4 --save-every 2 --keep 1
    say '```' "$(grep -oE '"step":.*"loss":[^,]*|"seconds":[^,]*|"event": ?"save.*' "$WORK/checkpoint-8/metrics.jsonl")" '```'
    say "bytes: $(du -sb "$WORK/checkpoint-8" | cut -f 1)"
    written=$(LD_LIBRARY_PATH=$libraries "$bin/inspect" "$WORK/checkpoint-8" --hash | tail -n 1)
    # nothing is left to do: the run loads, and ends with the hash of what it loaded
    on_ranks 2 train --device "$device" --data "$WORK/corpus.h5" --out "$WORK/checkpoint-8" --model "$model" "${shape[@]}" \
      --steps 4 --save-at-end false --allow-tokenizer-mismatch
    run "loaded by 2" "${command[@]}"
    say "written by 8: $(tail -n 1 "$WORK/checkpoint-8.bits"), state $written"
    loaded=$(grep -oE 'parameters [0-9a-f]{16} after step [0-9]+' "$WORK/checkpoint-8/metrics.jsonl" | tail -n 1)
    if [ "$loaded" = "$(tail -n 1 "$WORK/checkpoint-8.bits")" ]; then
      say "loaded by 2: the same parameters"
    else
      say "loaded by 2: OTHER PARAMETERS, $loaded"
      failed=$((failed + 1))
    fi
    sizes=(--bytes 24GB)
    [ "$dry" = 1 ] && sizes=(--bytes 8MB --repetitions 1 --step-seconds 0)
    on_ranks 8 bench checkpoint --out "$WORK/bench" "${sizes[@]}"
    run "saves and loads beside plain files" "${command[@]}"
  fi
fi

say "" "$failed failed; $SECONDS s; $result"
[ "$failed" -eq 0 ]
