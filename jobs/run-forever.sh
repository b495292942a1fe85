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
#
#   bash jobs/run-forever.sh --hosts FILE [--nodes N] [--min-nodes N] -- mpirun --hostfile {hosts} -np {ranks} train ...
#
# continues without nodes that are lost. FILE has lines `HOST slots=RANKS`. Before each start every host is asked
# whether it answers (`ssh HOST true`; another command: TESSERA_PROBE, which gets the host). Of those that do, the
# first N (default: all; list spare ones last) are in the file {hosts}, and {ranks} is the sum of their slots. Where
# fewer than --min-nodes (default 1) answer, that is a failed start. train continues on any number of ranks.
set -uo pipefail

limit=5
wait_seconds=10
hosts_file=
nodes=0
min_nodes=1
usage() {
  echo "usage: run-forever.sh [--limit N] [--wait SECONDS] [--hosts FILE [--nodes N] [--min-nodes N]] -- COMMAND..." >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
    --limit | --wait)
      if [ $# -lt 2 ] || ! [[ $2 =~ ^[0-9]+$ ]]; then usage; fi
      [ "$1" = --limit ] && limit=$2 || wait_seconds=$2
      shift 2
      ;;
    --nodes | --min-nodes)
      if [ $# -lt 2 ] || ! [[ $2 =~ ^[1-9][0-9]*$ ]]; then usage; fi
      [ "$1" = --nodes ] && nodes=$2 || min_nodes=$2
      shift 2
      ;;
    --hosts)
      [ $# -ge 2 ] || usage
      hosts_file=$2
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
if [ -z "$hosts_file" ] && { [ "$nodes" -gt 0 ] || [ "$min_nodes" -gt 1 ]; }; then
  echo "run-forever: --nodes and --min-nodes need --hosts" >&2
  exit 2
fi
if [ -n "$hosts_file" ]; then
  if [ ! -r "$hosts_file" ]; then
    echo "run-forever: --hosts $hosts_file: there is no such file, or it cannot be read" >&2
    exit 2
  fi
  scratch=$(mktemp -d) || exit 4
  trap 'rm -rf "$scratch"' EXIT
fi
answers() {
  if [ -n "${TESSERA_PROBE:-}" ]; then
    $TESSERA_PROBE "$1"
  else
    ssh -o BatchMode=yes -o ConnectTimeout=10 "$1" true
  fi </dev/null >/dev/null 2>&1
}
# Sets `words`, the command with the hosts that answer; fails where they are too few.
choose_hosts() {
  local host rest lines=() used=0 ranks=0 away="" number=0
  : >"$scratch/hosts"
  while read -r host rest; do
    [[ -z $host || $host == \#* ]] || lines+=("$host $rest")
  done <"$hosts_file"
  rm -f "$scratch"/answers-*
  local asked_hosts=()
  for line in "${lines[@]}"; do
    number=$((number + 1))
    { answers "${line%% *}" && touch "$scratch/answers-$number"; } &
    asked_hosts+=($!)
  done
  wait "${asked_hosts[@]}"
  number=0
  for line in "${lines[@]}"; do
    number=$((number + 1))
    if [ ! -e "$scratch/answers-$number" ]; then
      away+=" ${line%% *}"
    elif [ "$nodes" -eq 0 ] || [ "$used" -lt "$nodes" ]; then
      used=$((used + 1))
      echo "$line" >>"$scratch/hosts"
      [[ $line =~ slots=([0-9]+) ]] && ranks=$((ranks + BASH_REMATCH[1])) || ranks=$((ranks + 1))
    fi
  done
  export TESSERA_LOST_HOSTS=${away# }
  [ -z "$away" ] || echo "run-forever: no answer from$away; $used hosts with $ranks ranks are used" >&2
  words=()
  for word in "$@"; do
    word=${word//\{hosts\}/$scratch/hosts}
    words+=("${word//\{ranks\}/$ranks}")
  done
  [ "$used" -ge "$min_nodes" ]
}

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
  words=("$@")
  if [ -z "$hosts_file" ] || choose_hosts "$@"; then
    "${words[@]}" &
  else
    (exit 6) &
  fi
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
