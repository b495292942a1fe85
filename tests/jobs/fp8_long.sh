#!/usr/bin/env bash
# Ten thousand steps of `tiny` in --precision fp8 on CPU ranks, and the same in f32: neither may skip a step, and the
# evaluation losses at the end, over the whole held-out file, must be near each other. Not part of CTest: about an
# hour on one core.
#
#   bash tests/jobs/fp8_long.sh BUILD [STEPS [RANKS]]
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
# shellcheck source=../../jobs/common.sh
. "$root/jobs/common.sh"
bin=$(cd -- "$1" && pwd)/bin
steps=${2:-10000}
ranks=${3:-1}
near=0.01 # of the loss of f32

folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
mkdir "$folder/text"
# the text of this repository
(cd -- "$root" && find kernels model optim runtime collectives jobs tests -name '*.h' -o -name '*.cpp' -o -name '*.md' |
  sort | while read -r file; do cp -- "$file" "$folder/text/${file//\//_}"; done)
"$bin/tokenize" --tokenizer bytes --held-out 0.02 --out "$folder/corpus.h5" "$folder/text" >"$folder/tokenize.log"

for precision in f32 fp8; do
  say "$steps steps in $precision"
  mpirun --bind-to none -np "$ranks" "$bin/train" --data "$folder/corpus.h5" --out "$folder/$precision" --model tiny \
    --precision "$precision" --steps "$steps" --seq 128 --micro-batch 4 --global-batch 8 --lr 1e-3 \
    --log-every $((steps / 10)) --max-skipped 0 --eval-data "$folder/corpus.held-out.h5" --eval-sequences 0
done
python3 - "$folder" "$steps" "$near" <<'END'
import json, pathlib, sys
folder, steps, near = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
losses = {}
for precision in ("f32", "fp8"):
    rows = [json.loads(line) for line in (folder / precision / "metrics.jsonl").read_text().splitlines()]
    done = [row for row in rows if "loss" in row]
    assert len(done) == steps, f"{precision}: {len(done)} steps"
    assert not any(row["skipped"] for row in done), f"{precision}: a step was skipped"
    losses[precision] = [row for row in rows if "eval_loss" in row][-1]["eval_loss"]
difference = losses["fp8"] / losses["f32"] - 1
print(f"evaluation loss after {steps} steps: f32 {losses['f32']:.4f}, fp8 {losses['fp8']:.4f}, {100 * difference:+.2f}%")
sys.exit(0 if abs(difference) < near else 1)
END
