# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by qlora.sh, large-models.sh and eight-gpus.sh beside it, with `here` (their folder: a GPU bundle, or the source) and
# `name` set. Reads WORK, BIN, DRY and CASE_SECONDS, which those explain; `result`, where it is set, is a file that
# everything is written to, too.
#
# Sets bin, dry, limit, failed (commands), libraries (for LD_LIBRARY_PATH of the programs) and WORK, a new folder if there was
# none, which is removed at the end.
bin=${BIN:-$here/bin}
dry=${DRY:-0}
limit=${CASE_SECONDS:-${limit:-580}}
failed=0
own_work=""
if [ -z "${WORK:-}" ]; then
  WORK=$(mktemp -d "/tmp/$name.XXXXXX")
  own_work=$WORK
fi
trap '[ -n "$own_work" ] && rm -rf "$own_work"' EXIT
mkdir -p "$WORK"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

if [ "$dry" = 1 ]; then
  libraries=${LD_LIBRARY_PATH:-}
else
  # shellcheck source=jobs/gpu-libraries.sh disable=SC1091
  . "$here/gpu-libraries.sh"
fi

say() { printf '%s\n' "$@" | tee -a "${result:-/dev/null}"; }  # a line each
skip() { say "skipped: $*"; }
wanted() { [[ " $parts " == *" $1 "* ]]; }

# run NAME COMMAND...: shows the command, its output without the progress of allocations, and its time. What it printed is in
# `printed`. A failure is a line, not the end. The command has `libraries`, unless LIBRARIES=0: mpirun has its own.
run() {
  local title=$1 start=$SECONDS status command_libraries=()
  shift
  [ "${LIBRARIES:-1}" = 0 ] || command_libraries=(env "LD_LIBRARY_PATH=$libraries")
  say "" "### $title" '```' "\$ $*"
  timeout --kill-after=10 "$limit" "${command_libraries[@]}" "$@" 2>&1 </dev/null | grep -v '^pinned ' |
    tee "$WORK/printed" | tee -a "${result:-/dev/null}"
  status=${PIPESTATUS[0]}
  printed=$(cat "$WORK/printed")
  say '```' "$title: status $status, $((SECONDS - start)) s"
  [ "$status" -eq 0 ] || failed=$((failed + 1))
  return "$status"
}

# make_text: TEXT, a token file of Python's packages by bytes, where none was given.
make_text() {
  if [ -z "${TEXT:-}" ]; then
    TEXT=$WORK/text.h5
    local packages
    packages=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
    run text "$bin/tokenize" --tokenizer bytes --out "$TEXT" "$packages" || exit 1
  fi
}
