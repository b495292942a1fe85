#!/usr/bin/env python3
"""Which settings are fastest in the memory there is: micro-batch, what is computed again and how many forward passes
run side by side, by the estimate of `train --plan`. Optimizer state takes what room is left, as in a run. Needs no GPU.

    TRAIN=build/bin/train python3 jobs/bench/fitting.py --model qwen3-4b --ranks 2 --seq 4096 --global-batch 64 \\
        [--device-memory 80GB --host-memory 256GB] [--most 10] [-- further options of train --plan]

"exposed": update, paging and exchange that nothing hides, of the step. All settings but the micro-batch give the same
bits. Exit status: 2 where nothing fits."""
import argparse
import json
import os
import subprocess
import sys

RECOMPUTE = ("none", "attention", "mlp", "block")
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
BREADTHS = (1, 2, 4, 8, 16)
DOES_NOT_FIT = 2
GB = 1e9


def settings(ranks, global_batch):
    for micro in MICRO_BATCHES:
        if global_batch % micro == 0 and micro * ranks <= global_batch:
            rounds = -(-global_batch // (micro * ranks))
            for recompute in RECOMPUTE:
                for breadth in BREADTHS:
                    # side by side, blocks are computed again whatever --recompute says
                    if breadth <= rounds and (breadth == 1 or recompute in ("none", "block")):
                        yield ["--micro-batch", str(micro), "--recompute", recompute, "--breadth-first", str(breadth)]


def plan(words):
    run = subprocess.run([os.environ.get("TRAIN", "train"), "--plan", "--json", "--device", "cuda", *words],
                         capture_output=True, text=True, check=False)
    if not run.stdout.startswith("{"):
        sys.exit(run.stderr or f"train --plan gives {run.returncode}")
    return json.loads(run.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--device-memory", default="80GB")
    parser.add_argument("--host-memory", default="0", help="of a node; 0: this machine's")
    parser.add_argument("--most", type=int, default=10, help="rows")
    parser.add_argument("options", nargs="*", help="further options of train --plan, after --")
    given = parser.parse_args()
    shared = ["--model", given.model, "--ranks", str(given.ranks), "--seq", str(given.seq), "--global-batch",
              str(given.global_batch), "--device-memory", given.device_memory, "--host-memory", given.host_memory,
              *given.options]
    tried = [(plan([*shared, *words]), words) for words in settings(given.ranks, given.global_batch)]
    if not tried:
        sys.exit(f"--global-batch {given.global_batch} is less than a sequence for each of {given.ranks} ranks")
    fitting = [(one, words) for one, words in tried if one["fits"]]
    if not fitting:
        least = min(tried, key=lambda t: t[0]["device_bytes"])
        print(f"nothing fits; the least is {least[0]['device_bytes'] / GB:.2f} GB of a device and "
              f"{least[0]['node_bytes'] / GB:.2f} GB of a node's host memory, with {' '.join(least[1])}: more --ranks "
              "share them", file=sys.stderr)
        sys.exit(DOES_NOT_FIT)
    print("tokens/s   GB a device   GB of a node   exposed   settings")
    for one, words in sorted(fitting, key=lambda t: -t[0]["estimate"]["tokens_per_second"])[:given.most]:
        e = one["estimate"]
        exposed = (e["exposed_update_seconds"] + e["exposed_exchange_seconds"]) / e["step_seconds"]
        print(f"{e['tokens_per_second']:8.0f} {one['device_bytes'] / GB:13.2f} {one['node_bytes'] / GB:14.2f} "
              f"{100 * exposed:8.1f}%   {' '.join(words)}")


if __name__ == "__main__":
    main()
