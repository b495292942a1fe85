#!/usr/bin/env bash
# Runs a command again until it has finished: where no batch system restarts it, and after node failures.
#
#   bash jobs/run-forever.sh [--limit N] [--wait SECONDS] -- mpirun --hostfile hosts -np 8 train ... --out runs/a
#
# train continues from its last checkpoint by itself (--resume auto). Ends with the command's status when it
# is 0, when a restart would not help (2: options, 3: a damaged file, 7: diverged), or when N starts in a row
# failed (default 5). Between two of them it waits: SECONDS (default 10), then twice as long each time, at most
# 10 minutes. A start that ends with 85, or that lived for longer than 10 minutes, begins the count anew.
# TERM, INT, HUP, USR1 and USR2 are passed on as USR1: the run saves, and is not restarted.
set -uo pipefail

limit=5
wait_seconds=10
usage() {
  echo "usage: run-forever.sh [--limit N] [--wait SECONDS] -- COMMAND..." >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
    --limit | --wait)
      if [ $# -lt 2 ] || ! [[ $2 =~ ^[0-9]+$ ]]; then usage; fi
      [ "$1" = --limit ] && limit=$2 || wait_seconds=$2
      shift 2
      ;;
    --)
      shift
      break
      ;;
    *) usage ;;
  esac
done
if [ $# -eq 0 ] || [ "$limit" -eq 0 ]; then usage; fi

longest_wait=600
good_life=600
failed=0
asked=no
command_pid=
sleep_pid=
stop() {
  asked=end
  [ -z "$command_pid" ] || kill -USR1 "$command_pid" 2>/dev/null
  [ -z "$sleep_pid" ] || kill "$sleep_pid" 2>/dev/null
}
trap stop TERM INT HUP USR1 USR2

pause=$wait_seconds
while :; do
  began=$SECONDS
  "$@" &
  command_pid=$!
  [ "$asked" = no ] || kill -USR1 "$command_pid" 2>/dev/null
  while :; do # a signal ends wait, not the command
    wait "$command_pid"
    status=$?
    kill -0 "$command_pid" 2>/dev/null || break
  done
  command_pid=
  case $status in
    0 | 2 | 3 | 7 | 126 | 127) exit "$status" ;;
  esac
  [ "$asked" = no ] || exit "$status"
  if [ "$status" -eq 85 ] || [ $((SECONDS - began)) -gt $good_life ]; then
    failed=0
    pause=$wait_seconds
  fi
  if [ "$status" -ne 85 ]; then
    failed=$((failed + 1))
    if [ "$failed" -ge "$limit" ]; then
      echo "run-forever: status $status; $failed starts in a row failed, which is the limit" >&2
      exit "$status"
    fi
    echo "run-forever: status $status (failure $failed of $limit); starting again in $pause s" >&2
    sleep "$pause" &
    sleep_pid=$!
    [ "$asked" != no ] || wait "$sleep_pid"
    kill "$sleep_pid" 2>/dev/null
    sleep_pid=
    [ "$asked" = no ] || exit "$status"
    pause=$((pause * 2 > longest_wait ? longest_wait : pause * 2))
  else
    echo "run-forever: saved; starting again" >&2
  fi
done
