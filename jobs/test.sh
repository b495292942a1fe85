#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests that need no GPU. With nvcc the CUDA sources and
# their tests are compiled as well, and not run: that is `ctest -L cuda` on a GPU machine.
#
#   bash jobs/test.sh          # from anywhere
#
# The last line is `N passed, N failed, N skipped`. Exit status: 0 only if everything built and nothing failed.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

bash "$root/jobs/packages.sh" --tests

say "building the CPU version in $build"
configure_build "$build" -DTESSERA_CUDA=OFF -DTESSERA_TESTS=ON
compile_build "$build"

failed_builds=0
nvcc=$(command -v nvcc || true)
[ -n "$nvcc" ] || { [ -x /usr/local/cuda/bin/nvcc ] && nvcc=/usr/local/cuda/bin/nvcc; } || true
if [ -n "$nvcc" ]; then
  # One architecture is enough to see that everything compiles.
  say "compiling the CUDA version in $root/build-cuda with $nvcc, without running it"
  if ! { bash "$root/jobs/get-cudnn-frontend.sh" &&
         CUDACXX=$nvcc configure_build "$root/build-cuda" -DTESSERA_CUDA=ON -DTESSERA_TESTS=ON \
           -DTESSERA_CUDA_ARCHITECTURES=90-real &&
         compile_build "$root/build-cuda" cuda_tests train bench; }; then
    failed_builds=1
    say "FAILED: the CUDA version does not build"
  fi
else
  say "skipped: the CUDA version is not compiled, because there is no nvcc on PATH or in /usr/local/cuda"
fi

say "running the tests (ctest -L cpu)"
results=$build/test-results.xml
rm -f -- "$results"
(cd -- "$build" && ctest -L cpu -j2 --output-on-failure --output-junit "$results") || true

# ctest's summary tells skipped tests by name only; the reason is in their output.
FAILED_BUILDS=$failed_builds python3 - "$results" <<'PYTHON'
import os
import sys
import xml.etree.ElementTree as ElementTree

try:
    cases = ElementTree.parse(sys.argv[1]).getroot().findall("testcase")
except (OSError, ElementTree.ParseError) as error:
    sys.exit(f"no results of ctest: {error}")
passed, failed, skipped = [], [], []
for case in cases:
    name = case.get("name")
    reason = case.find("skipped")
    if case.get("status") == "run":
        passed.append(name)
    elif reason is not None:
        output = [line for line in (case.findtext("system-out") or "").splitlines() if line.strip()]
        reasons = [line for line in output if "skip" in line.lower()] or output
        skipped.append((name, reasons[0].strip() if reasons else reason.get("message", "")))
    else:
        failed.append(name)
if os.environ["FAILED_BUILDS"] != "0":
    failed.append("the build of the CUDA version")
for name, reason in skipped:
    print(f"skipped: {name}: {reason}")
for name in failed:
    print(f"FAILED: {name}")
print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped", flush=True)
sys.exit(1 if failed or not passed else 0)
PYTHON
