#!/usr/bin/env bash
# Simulated power loss: a program that saves without end onto an ext4 file system of its own is stopped at
# random moments and the disk's image copied, as a power cut would leave it. After its journal has been
# replayed, each copy must hold the last step that was announced, whole.
#
#   power_loss.sh SAVER INSPECT [COPIES [local]]
#
# SAVER FOLDER saves steps 1, 2, 3, ... into FOLDER and prints the number of each once it is committed. With `local`,
# SAVER FOLDER LOCAL saves them into LOCAL and copies them from there, and both must hold the step.
# INSPECT is the program `inspect`. Needs root and loop devices; ends with 77 (skipped) and the reason
# where they are missing.
set -euo pipefail
saver=$1
inspect=$2
copies=${3:-20}
mode=${4:-}

skip() { echo "skipped: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "mounting a loop device needs root"
for program in losetup mkfs.ext4 mount umount; do
  command -v "$program" > /dev/null || skip "$program is not installed"
done

work=$(mktemp -d)
loops=()
writer=
cleanup() {
  [ -z "$writer" ] || { kill -KILL "$writer" 2> /dev/null || true; wait "$writer" 2> /dev/null || true; }
  for folder in "$work/disk" "$work/copy"; do
    ! mountpoint -q "$folder" || umount "$folder" || true
  done
  for loop in "${loops[@]}"; do losetup -d "$loop" 2> /dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT
local=()
[ "$mode" != local ] || local=("$work/disk/local")

mkdir "$work/disk" "$work/copy"
truncate -s 64M "$work/image"
mkfs.ext4 -qF "$work/image"
loop=$(losetup -f --show "$work/image" 2> /dev/null) || skip "no loop device can be set up here"
loops+=("$loop")
mount -o commit=5 "$loop" "$work/disk" 2> /dev/null || skip "a loop device cannot be mounted here"

"$saver" "$work/disk/run" "${local[@]}" > "$work/announced" &
writer=$!
until [ -s "$work/announced" ]; do
  kill -0 "$writer" 2> /dev/null || { echo "the saver ended early"; exit 1; }
  sleep 0.1
done
for ((i = 0; i < copies; i++)); do
  sleep "0.$((RANDOM % 4))$((RANDOM % 10))"
  kill -STOP "$writer" || { echo "the saver ended early"; exit 1; }
  # What is announced when the image is taken must be in it. Only what the device has counts: the image is
  # read past the page cache of the mounted file system, not of the loop device.
  tail -n 1 "$work/announced" > "$work/announced.$i"
  cp --sparse=always "$work/image" "$work/image.$i"
  kill -CONT "$writer"
done
kill -KILL "$writer"
wait "$writer" 2> /dev/null || true
writer=
umount "$work/disk"

failed=0
for ((i = 0; i < copies; i++)); do
  announced=$(cat "$work/announced.$i")
  announced=${announced:-0}
  copy=$(losetup -f --show "$work/image.$i")
  loops+=("$copy")
  mount "$copy" "$work/copy"
  latest=none
  if [ "$announced" != 0 ]; then
    latest=$(cat "$work/copy/run/LATEST" 2> /dev/null | tr -d '\0') || latest=
    if [[ ! $latest =~ ^step-0*([1-9][0-9]*)$ ]]; then
      echo "copy $i: LATEST is '$latest'"
      failed=$((failed + 1))
    elif [ "${BASH_REMATCH[1]}" -lt "$announced" ]; then
      echo "copy $i: step $announced was announced, the disk has $latest"
      failed=$((failed + 1))
    elif ! "$inspect" "$work/copy/run/$latest" --verify > "$work/verify" 2>&1; then
      echo "copy $i: LATEST names $latest, which does not verify:"
      cat "$work/verify"
      failed=$((failed + 1))
    elif [ "$mode" = local ] &&
      ! "$inspect" "$(printf '%s/step-%08d' "$work/copy/local" "$announced")" --verify > "$work/verify" 2>&1; then
      echo "copy $i: step $announced of the local saves does not verify:"
      cat "$work/verify"
      failed=$((failed + 1))
    fi
  fi
  echo "copy $i: announced $announced, on the disk $latest"
  umount "$work/copy"
  losetup -d "$copy"
  unset 'loops[-1]'  # from here on it may be another program's
  rm "$work/image.$i"
done
echo "$((copies - failed)) of $copies copies hold the last announced step"
[ "$failed" = 0 ]
