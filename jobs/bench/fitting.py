#!/usr/bin/env python3
"""Which settings are fastest in the memory there is: micro-batch, what is computed again and how many forward passes
run side by side, by the estimate of `train --plan`. Optimizer state takes what room is left, as in a run. Needs no GPU.

    jobs/bench/fitting.py --model qwen3-4b --ranks 2 --seq 4096 --global-batch 64 --host-memory 256GB \\
        [--card h200] [--device-memory 80GB] [--most 10] [-- further options of train --plan]

"exposed": update, paging, exchange and parameters that nothing hides, of the step. Where none of these settings fits, what else
saves memory is tried too: gradients on the host, state paged or resident, and smaller workspaces. All settings but the
micro-batch, --logits-bytes and --attention-slice-bytes give bit-identical results. The program is TRAIN of the environment, or
train of this folder's build, or of the path. Exit status: 2 where nothing fits, and for options that make no run."""
import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys

RECOMPUTE = ("none", "attention", "mlp", "block")
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
BREADTHS = (1, 2, 4, 8, 16)
# What is tried where nothing else fits: each with each.
LAST_RESORTS = ((), ("--grad-offload", "auto")), ((), ("--resident-bytes", "none"), ("--resident-bytes", "all")), (
    (), ("--logits-bytes", "32MiB", "--attention-slice-bytes", "256MiB"))
MOST = 2 ** 63 - 1  # that train reads; it says what it takes
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


def ask(words, may_be_refused=False):
    """The plan that train prints for these words. Where it prints none this program ends, or gets None."""
    try:
        run = subprocess.run([program(), "--plan", "--json", "--device", "cuda", *words], capture_output=True, text=True,
                             check=False)
    except OSError as error:
        sys.exit(f"cannot start {program()}: {error.strerror}; name the program by TRAIN=build/bin/train")
    if not run.stdout.startswith("{"):
        if may_be_refused and run.returncode == DOES_NOT_FIT:
            return None  # options that do not go together
        print(run.stderr.strip() or f"{program()} prints no plan", file=sys.stderr)
        sys.exit(run.returncode or 1)
    return json.loads(run.stdout)


def positive(text):
    """Of argparse: a number of 1 or more."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:20]) <= MOST:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 to {MOST}")
    return int(text)


def is_fixed(name, fixed):
    return any(word == name or word.startswith(name + "=") for word in fixed)


def without_fixed(all_words, fixed, tried):
    """Words for train, without what `fixed` says already, and each only once."""
    for words in all_words:
        left = [word for name, value in zip(words[::2], words[1::2]) if not is_fixed(name, fixed)
                for word in (name, value)]
        if tuple(left) not in tried:
            tried.add(tuple(left))
            yield left


def all_settings(ranks, global_batch):
    for micro in MICRO_BATCHES:
        if global_batch % micro == 0 and micro * ranks <= global_batch:
            rounds = -(-global_batch // (micro * ranks))
            for recompute in (*RECOMPUTE, "auto"):
                for breadth in BREADTHS:
                    # side by side, blocks are computed again whatever --recompute says
                    if breadth <= rounds and (breadth == 1 or recompute in ("none", "block", "auto")):
                        yield ["--micro-batch", str(micro), "--recompute", recompute, "--batched-forward", str(breadth)]


def named(plan, words):
    """`words` with what was left to the plan: the levels by layer, and where parameters are stored."""
    stored = {"whole": [], "shards": ["--zero", "3"], "shards on the host": ["--params", "host"]}[plan["parameters_stored"]]
    return stored + [plan["recompute"] if before == "--recompute" and word == "auto" else word
                     for before, word in zip(("", *words), words)]


def last_resorts():
    """The smallest step of a rank, with everything that saves memory of the device or of the node."""
    for recompute in reversed(RECOMPUTE):
        for choice in itertools.product(*LAST_RESORTS):
            yield ["--micro-batch", "1", "--recompute", recompute, "--batched-forward", "1", *itertools.chain(*choice)]


def excess(plan):
    """How many times the memory there is, of a device or of a node."""
    return max(plan["device_bytes"] / plan["device_limit_bytes"], plan["node_bytes"] / plan["node_limit_bytes"])


def refuse(message):
    print(message, file=sys.stderr)
    sys.exit(DOES_NOT_FIT)


def say_nothing_fits(tried):
    one, words = min(tried, key=lambda t: excess(t[0]))
    refuse(f"nothing fits, of {len(tried)} settings: the nearest, {' '.join(words)}, takes {one['device_bytes'] / GB:.2f} of "
           f"{one['device_limit_bytes'] / GB:.2f} GB of a device (--device-memory) and {one['node_bytes'] / GB:.2f} of "
           f"{one['node_limit_bytes'] / GB:.2f} GB of a node's host memory (--host-memory): {one['refusal']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--ranks", type=positive, default=1)
    parser.add_argument("--seq", type=positive, required=True)
    parser.add_argument("--global-batch", type=positive, required=True)
    parser.add_argument("--card", default="h100", help="a100, h100, h200 or b200: its memory and its rates")
    parser.add_argument("--device-memory", default="auto", help="of a card; auto: that of --card")
    parser.add_argument("--host-memory", default="0", help="of a node; 0: this machine's")
    parser.add_argument("--most", type=positive, default=10, help="rows")
    parser.add_argument("options", nargs="*", help="further options of train --plan, after --")
    given = parser.parse_args()
    shared = ["--model", given.model, "--ranks", str(given.ranks), "--seq", str(given.seq), "--global-batch",
              str(given.global_batch), "--host-memory", given.host_memory]
    shared += [word for name, value in (("--card", given.card), ("--device-memory", given.device_memory))
               if not is_fixed(name, given.options) for word in (name, value)]
    shared += given.options
    seen = set()

    def ask_all(all_words, may_be_refused=False):
        answers = []
        for words in without_fixed(all_words, given.options, seen):
            one = ask([*shared, *words], may_be_refused)
            shown = words if one is None else named(one, words)
            if one is not None and (shown == words or tuple(shown) not in seen):
                seen.add(tuple(shown))
                answers.append((one, shown))
        return answers

    if given.ranks > given.global_batch:
        refuse(f"--global-batch {given.global_batch} is less than a sequence for each of {given.ranks} ranks")
    tried = ask_all(all_settings(given.ranks, given.global_batch))
    if not any(one["fits"] for one, _ in tried):
        tried += ask_all(last_resorts(), may_be_refused=True)
    fitting = [(one, words) for one, words in tried if one["fits"]]
    if not fitting:
        say_nothing_fits(tried)
    print("tokens/s   GB a device   GB of a node   exposed   settings")
    for one, words in sorted(fitting, key=lambda t: -t[0]["estimate"]["tokens_per_second"])[:given.most]:
        e = one["estimate"]
        waits = ("exposed_update_seconds", "exposed_exchange_seconds", "exposed_params_seconds")
        exposed = sum(e[name] for name in waits) / e["step_seconds"]
        print(f"{e['tokens_per_second']:8.0f} {one['device_bytes'] / GB:13.2f} {one['node_bytes'] / GB:14.2f} "
              f"{100 * exposed:8.1f}%   {' '.join(words)}")


if __name__ == "__main__":
    main()
