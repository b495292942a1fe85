#!/usr/bin/env python3
"""Which settings are fastest in the memory there is: micro-batch, what is computed again and how many forward passes
run side by side, by the estimate of `train --plan`. Optimizer state takes what room is left, as in a run. Needs no GPU.

    jobs/bench/fitting.py --model qwen3-4b --ranks 2 --seq 4096 --global-batch 64 --host-memory 256GB \\
        [--device-memory 80GB] [--most 10] [-- further options of train --plan]

"exposed": update, paging and exchange that nothing hides, of the step. All settings but the micro-batch give the same
bits. The program is TRAIN of the environment, or train of this folder's build, or of the path. Exit status: 2 where
nothing fits, and for options that make no run."""
import argparse
import json
import os
import pathlib
import subprocess
import sys

RECOMPUTE = ("none", "attention", "mlp", "block")
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
BREADTHS = (1, 2, 4, 8, 16)
DOES_NOT_FIT = 2
GB = 1e9


def program():
    """The train to ask; its name alone where it is to be found on the path."""
    given = os.environ.get("TRAIN")
    if given:
        return given
    root = pathlib.Path(__file__).resolve().parents[2]
    built = [path for path in (root / "build/bin/train", root / "build-cuda/bin/train") if path.is_file()]
    return str(built[0]) if built else "train"


def ask(words):
    """The plan that train prints for these words; ends this program where it prints none."""
    try:
        run = subprocess.run([program(), "--plan", "--json", "--device", "cuda", *words], capture_output=True, text=True,
                             check=False)
    except OSError as error:
        sys.exit(f"cannot start {program()}: {error.strerror}; name the program by TRAIN=build/bin/train")
    if not run.stdout.startswith("{"):
        print(run.stderr.strip() or f"{program()} prints no plan", file=sys.stderr)
        sys.exit(run.returncode or 1)
    return json.loads(run.stdout)


def positive(text):
    """Of argparse: a number of 1 or more."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of 1 or more")
    return int(text)


def settings(ranks, global_batch, fixed):
    """Words for train, without what `fixed` says already."""
    tried = set()
    for words in all_settings(ranks, global_batch):
        left = [word for name, value in zip(words[::2], words[1::2]) if name not in fixed for word in (name, value)]
        if tuple(left) not in tried:
            tried.add(tuple(left))
            yield left


def all_settings(ranks, global_batch):
    for micro in MICRO_BATCHES:
        if global_batch % micro == 0 and micro * ranks <= global_batch:
            rounds = -(-global_batch // (micro * ranks))
            for recompute in RECOMPUTE:
                for breadth in BREADTHS:
                    # side by side, blocks are computed again whatever --recompute says
                    if breadth <= rounds and (breadth == 1 or recompute in ("none", "block")):
                        yield ["--micro-batch", str(micro), "--recompute", recompute, "--breadth-first", str(breadth)]


def excess(plan):
    """How many times the memory there is, of a device or of a node."""
    return max(plan["device_bytes"] / plan["device_limit_bytes"], plan["node_bytes"] / plan["node_limit_bytes"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--ranks", type=positive, default=1)
    parser.add_argument("--seq", type=positive, required=True)
    parser.add_argument("--global-batch", type=positive, required=True)
    parser.add_argument("--device-memory", default="80GB")
    parser.add_argument("--host-memory", default="0", help="of a node; 0: this machine's")
    parser.add_argument("--most", type=positive, default=10, help="rows")
    parser.add_argument("options", nargs="*", help="further options of train --plan, after --")
    given = parser.parse_args()
    shared = ["--model", given.model, "--ranks", str(given.ranks), "--seq", str(given.seq), "--global-batch",
              str(given.global_batch), "--device-memory", given.device_memory, "--host-memory", given.host_memory,
              *given.options]
    tried = [(ask([*shared, *words]), words) for words in settings(given.ranks, given.global_batch, given.options)]
    if not tried:
        print(f"--global-batch {given.global_batch} is less than a sequence for each of {given.ranks} ranks",
              file=sys.stderr)
        sys.exit(DOES_NOT_FIT)
    fitting = [(one, words) for one, words in tried if one["fits"]]
    if not fitting:
        one, words = min(tried, key=lambda t: excess(t[0]))
        print(f"nothing fits: the nearest, {' '.join(words)}, takes {one['device_bytes'] / GB:.2f} of "
              f"{one['device_limit_bytes'] / GB:.2f} GB of a device (--device-memory) and {one['node_bytes'] / GB:.2f} of "
              f"{one['node_limit_bytes'] / GB:.2f} GB of a node's host memory (--host-memory); more --ranks share the "
              "state", file=sys.stderr)
        sys.exit(DOES_NOT_FIT)
    print("tokens/s   GB a device   GB of a node   exposed   settings")
    for one, words in sorted(fitting, key=lambda t: -t[0]["estimate"]["tokens_per_second"])[:given.most]:
        e = one["estimate"]
        exposed = (e["exposed_update_seconds"] + e["exposed_exchange_seconds"]) / e["step_seconds"]
        print(f"{e['tokens_per_second']:8.0f} {one['device_bytes'] / GB:13.2f} {one['node_bytes'] / GB:14.2f} "
              f"{100 * exposed:8.1f}%   {' '.join(words)}")


if __name__ == "__main__":
    main()
