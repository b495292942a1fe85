#!/usr/bin/env bash
# Runs each fuzz target for some seconds, all at once, starting from tests/fuzz/seeds:
#
#   bash tests/fuzz/run.sh [SECONDS [RUNS]]     # 60 s unless given; RUNS: at most so many inputs
#
# With RUNS the random numbers are those of a fixed seed, so that CI tries nearly the same inputs each
# time: what is new is looked for by hand, for longer.
#
# Needs clang++ with libFuzzer; without it nothing is run, saying so. What a target finds is stored in
# build-fuzz/finds; a copy of it in tests/fuzz/seeds/TARGET is tried in every run from then on.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
build=$root/build-fuzz
seconds=${1:-60}
limit=()
[ $# -lt 2 ] || limit=(-runs="$2" -seed=1)

bash "$root/jobs/packages.sh"
probe=$(mktemp -d)
trap 'rm -rf -- "$probe"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' \
  >"$probe/probe.cpp"
if ! clang++ -fsanitize=fuzzer,address "$probe/probe.cpp" -o "$probe/probe" >/dev/null 2>&1; then
  echo "fuzz: skipped, because there is no clang++ with libFuzzer here (apt-get install clang)"
  exit 0
fi

echo "fuzz: building"
cmake -S "$root/tests/fuzz" -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang \
  -DCMAKE_CXX_COMPILER=clang++ >"$build.log" 2>&1 || { cat -- "$build.log" >&2; exit 1; }
rm -f -- "$build.log"
cmake --build "$build" --parallel "$(nproc)" >"$build/build.log" 2>&1 ||
  { cat -- "$build/build.log" >&2; exit 1; }

targets=(safetensors config token tokenizer_json tiktoken json_lines)
mkdir -p -- "$build/finds"
declare -A process
for target in "${targets[@]}"; do
  mkdir -p -- "$build/corpus/$target"
  # Short inputs, a limit of time and memory for each: 10 s, 2 GiB.
  "$build/${target}_fuzz" "${limit[@]}" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=20000 \
    -artifact_prefix="$build/finds/$target-" -print_final_stats=1 \
    "$build/corpus/$target" "$root/tests/fuzz/seeds/$target" >"$build/$target.log" 2>&1 &
  process[$target]=$!
done
status=0
for target in "${targets[@]}"; do
  if wait "${process[$target]}"; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log")
    echo "fuzz: $target: $runs inputs in $seconds s, no crash"
  else
    status=1
    tail -n 40 -- "$build/$target.log" >&2
    echo "fuzz: $target: FAILED; the input is in $build/finds" >&2
  fi
done
exit "$status"
