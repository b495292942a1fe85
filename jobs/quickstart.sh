#!/usr/bin/env bash
# From a fresh machine to a trained model: installs what is missing, builds, makes a token file of
# the C and C++ headers under /usr/include (real text that every machine with the packages has), trains
# the `tiny` model on 2 ranks and shows what is in the result. Takes minutes: 11 on two cores that others were using too
# (7 of building, 4 of training).
#
#   bash jobs/quickstart.sh          # from anywhere; everything lands in runs/quickstart
#
# A second run keeps the build and the corpus, sets the old run aside and trains again.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

work=$root/runs/quickstart
corpus=$work/corpus.h5
held_out=$work/corpus.held-out.h5
run=$work/run

bash "$root/jobs/packages.sh"

say "building in $build: minutes, the first time"
configure_build "$build" -DTESSERA_CUDA=OFF
compile_build "$build" train tokenize inspect report

mkdir -p -- "$work"
if [ -f "$corpus" ] && [ -f "$held_out" ]; then
  say "keeping the token files in $work"
else
  say "making token files of /usr/include, 1% of the files held out for evaluation"
  "$build/bin/tokenize" --tokenizer bytes --held-out 0.01 --out "$corpus" /usr/include
fi

if [ -d "$run" ]; then
  rm -rf -- "$run.previous"
  mv -- "$run" "$run.previous"
  say "the last run is now $run.previous"
fi

say "training on 2 ranks: minutes, too"
mpirun -np 2 "$build/bin/train" --model tiny --data "$corpus" --eval-data "$held_out" \
  --seq 256 --micro-batch 4 --global-batch 16 --steps 400 --lr 3e-3 --warmup 20 \
  --eval-every 200 --eval-sequences 64 --out "$run"

say "what is in the result (inspect $run)"
"$build/bin/inspect" "$run"

say "its curves as a page for any browser"
"$build/bin/report" "$run"

say "done. $run holds metrics.jsonl (one line a step), report.html and the checkpoints. Next:"
cat <<END
  open $run/report.html in a browser
  export PATH=$build/bin:\$PATH        # the programs, for this shell
  cmake --build $build --target generate convert
  generate $run --prompt '#include <'   # what the model writes
  train --help
END
