#!/usr/bin/env python3
"""What saves on the nodes' own disks cost: the same steps with and without --save-local, turn by turn in one command, so
that both meet the same machine. Under 1% of the steps is the aim (d12, every 10 steps).

    jobs/bench/local_saves.py [--turns 3] [--every 10] [--tens 6] [--folder DIR] [--launcher "mpirun -np 2"] [-- train options]

On GPUs: jobs/bench/local_saves.py -- --device cuda --model d12 --seq 1024 --micro-batch 32 --global-batch 512

--folder is where everything is written, the local saves too: a disk of this machine. The times are those at which a step's
line appears in metrics.jsonl, so that what happens between steps counts. Per turn: seconds per `every` steps, median over
`tens` of them after the first one; CPU seconds of whole runs, which say something on a machine that others use too; memory:
what each run planned and allocated. On one host no partner gets a copy; over
several (--launcher) it is in what is measured. The programs are those of BIN, or of the environment's PATH."""
import argparse
import json
import os
import pathlib
import random
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

WORDS = 4_000_000  # bytes of text to train on
POLL = 0.0005


def program(name):
    folder = os.environ.get("BIN")
    found = os.path.join(folder, name) if folder else shutil.which(name)
    return found or sys.exit(f"no program {name}: set BIN to the folder of the programs")


def step_times(process, metrics):
    """When each step's line appeared, by its number."""
    times, done, rest = {}, 0, b""
    while True:
        ended = process.poll() is not None
        if metrics.exists():
            with metrics.open("rb") as file:
                file.seek(done)
                new = file.read()
            now = time.monotonic()
            done += len(new)
            *lines, rest = (rest + new).split(b"\n")
            for line in lines:
                row = json.loads(line)
                if "loss" in row and "event" not in row:
                    times[row["step"]] = now
        if ended:
            return times
        time.sleep(POLL)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def events(metrics, name):
    return [row for row in map(json.loads, metrics.read_text().splitlines()) if row.get("event") == name]


def turn(given, folder, data, local):
    out = folder / ("with" if local else "without")
    shutil.rmtree(out, ignore_errors=True)
    steps = given.every * (given.tens + 1) + 1  # none is saved after the last step
    command = [*shlex.split(given.launcher), program("train"), "--data", data, "--out", out, "--steps", steps, "--save-at-end", "false",
               "--allow-tokenizer-mismatch", *given.options]
    if local:
        command += ["--save-local", folder / "local", "--save-local-every", given.every]
    cpu = cpu_seconds()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    times = step_times(process, out / "metrics.jsonl")
    output = process.stdout.read()
    if process.returncode != 0:
        sys.exit(f"{shlex.join(map(str, command))} ended with {process.returncode}:\n{output[-4000:]}")
    marks = [times[step] for step in range(given.every, steps, given.every)]
    tens = [later - earlier for earlier, later in zip(marks, marks[1:])]
    lines = events(out / "metrics.jsonl", "memory")[0]["lines"]
    memory = {where: [sum(line[column] for line in lines if line["where"] == where and line["allocated"] > 0)
                      for column in ("planned", "allocated")] for where in sorted({line["where"] for line in lines})}
    saves = events(out / "metrics.jsonl", "local save")
    failed = events(out / "metrics.jsonl", "local save failed")
    if failed:
        sys.exit(failed[0]["text"])
    shutil.rmtree(folder / "local", ignore_errors=True)
    return statistics.median(tens), memory, [save["seconds"] for save in saves], cpu_seconds() - cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, help="of each kind")
    parser.add_argument("--every", type=int, default=10, help="steps between local saves")
    parser.add_argument("--tens", type=int, default=6, help="so many times as many steps are measured in a turn")
    parser.add_argument("--folder", default=None)
    parser.add_argument("--launcher", default="mpirun -np 1")
    parser.add_argument("options", nargs="*", help="further options of train, after --")
    given = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="local-saves-", dir=given.folder))
    try:
        text = folder / "text"
        words = random.Random(1)
        text.write_text(" ".join("".join(words.choices("etaoinshr", k=words.randrange(2, 9))) for _ in range(WORDS // 6)))
        data = folder / "data.h5"
        subprocess.run([program("tokenize"), "--tokenizer", "bytes", "--out", data, text], check=True, stdout=subprocess.DEVNULL)
        results = {False: [], True: []}
        print(f"| turn | {given.every} steps without | with local saves | more | a save takes | CPU seconds without, with |\n"
              "| --- | --- | --- | --- | --- | --- |")
        for number in range(given.turns):
            for local in (False, True) if number % 2 == 0 else (True, False):
                results[local].append(turn(given, folder, data, local))
            (plain, _, _, plain_cpu), (saving, _, saves, saving_cpu) = results[False][-1], results[True][-1]
            print(f"| {number + 1} | {plain:.4f} s | {saving:.4f} s | {100 * (saving / plain - 1):+.2f}% | "
                  f"{statistics.median(saves):.2f} s ({len(saves)} saves) | {plain_cpu:.1f}, {saving_cpu:.1f} |", flush=True)
        for what, place in ((f"{given.every} steps", 0), ("CPU of a run", 3)):
            plain, saving = (statistics.median(result[place] for result in results[local]) for local in (False, True))
            print(f"{what}, medians: {plain:.4f} s, {saving:.4f} s: {100 * (saving / plain - 1):+.2f}%")
        for local in (False, True):
            print(f"memory {'with' if local else 'without'}: " + ", ".join(
                f"{where} {planned:,} bytes planned, {allocated:,} allocated"
                for where, (planned, allocated) in results[local][-1][1].items()))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
