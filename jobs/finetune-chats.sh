#!/usr/bin/env bash
# A Hugging Face model and chats in, a fine-tuned Hugging Face model out:
#
#   bash jobs/finetune-chats.sh HF_FOLDER chats.jsonl OUT_FOLDER [options of train]
#
# With --lora among the options OUT_FOLDER is one of PEFT's (adapters.md).
# RANKS=N mpirun's ranks (2), EPOCHS=N passes over the chats (2), CHAT=FORMAT where the model's folder has no chat
# template (tokenize --chat: chatml, ...), WORK=FOLDER for token file and checkpoints (OUT_FOLDER.work). Killed or out of time, the same command continues. The programs are taken from PATH, else from build/bin.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

[ $# -ge 3 ] || {
  echo "usage: finetune-chats.sh HF_FOLDER chats.jsonl OUT_FOLDER [options of train]" >&2
  exit 2
}
model=$1 chats=$2 out=${3%/}
shift 3
# what one small GPU or a few cores take; on GPUs add --device cuda
[ $# -gt 0 ] || set -- --seq 1024 --micro-batch 1 --global-batch 16 --lr 1e-5
work=${WORK:-$out.work} chat=${CHAT:-auto}
command -v train >/dev/null || PATH=$build/bin:$PATH

mkdir -p -- "$work"
if [ ! -f "$work/chats.h5" ]; then
  say "making tokens of $chats: targets are what the assistant says"
  tokenize --tokenizer "$model" --chat "$chat" --out "$work/chats.h5" "$chats" || {
    status=$?
    [ "$chat" != auto ] || echo "finetune-chats.sh: another format than the model's own: CHAT=FORMAT bash jobs/finetune-chats.sh ..." >&2
    exit "$status"
  }
fi
say "training"
"${MPIEXEC:-mpirun}" -np "${RANKS:-2}" train --init "$model" --data "$work/chats.h5" --epochs "${EPOCHS:-2}" \
  --out "$work/run" --export "$out" "$@"
if [ -f "$out/adapter_config.json" ]; then
  say "done: $out has the adapters, as PEFT loads them; generate $out --base $model --chat $chat talks with both"
else
  say "done: $out is what transformers and inference engines load; generate $out --chat $chat talks with it"
fi
