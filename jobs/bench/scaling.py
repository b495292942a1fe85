#!/usr/bin/env python3
"""Estimates of steps on many GPUs, from `train --plan`: one table a model, with gradients sent from every rank to
every rank and with --reduce-group over nodes. Needs no GPU. No network was measured: its speed is what --network-bandwidth
and --network-latency assume.

    jobs/bench/scaling.py [--models qwen3-0.6b,...] [--ranks 8,16,...] [-- train options]
"""
import argparse

from fitting import ask, positive

# A micro-batch that fits 80 GB on 8 ranks, and as many of them for each rank as a step usually has.
MODELS = {"qwen3-0.6b": (8, "none"), "qwen3-1.7b": (4, "none"), "qwen3-4b": (2, "mlp"), "qwen3-8b": (1, "mlp"),
          "qwen3-14b": (1, "block")}
RANKS = "8,16,32,64,128,256,512"
OF_NODE = 8


def plan(model, ranks, options):
    micro, recompute = MODELS[model]
    return ask(["--model", model, "--seq", "4096", "--micro-batch", str(micro), "--recompute", recompute, "--ranks",
                str(ranks), "--ranks-per-node", str(min(ranks, OF_NODE)), "--host-memory", "2TB", *options])


def row(model, ranks, rounds, options):
    micro, _ = MODELS[model]
    options = ["--global-batch", str(rounds * micro * ranks), *options]
    flat = plan(model, ranks, options)
    cells = [str(ranks)]
    variants = [flat] if ranks <= OF_NODE else [flat, plan(model, ranks, [*options, "--reduce-group", str(OF_NODE)])]
    for one in variants:
        e = one["estimate"]
        cells += [f"{e['step_seconds']:.3f}", f"{e['tokens_per_second'] / 1e3:.0f}k",
                  f"{100 * e['exposed_exchange_seconds'] / e['step_seconds']:.1f}%",
                  f"{100 * e['exposed_update_seconds'] / e['step_seconds']:.1f}%", f"{e['network_bytes'] / 1e9:.1f}"]
    cells += ["", "", "", "", ""] * (2 - len(variants))
    cells.append(f"{flat['device_bytes'] / 1e9:.1f}{'' if flat['fits'] else ' (does not fit)'}")
    return flat, "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ranks", default=RANKS, type=lambda text: [positive(n) for n in text.split(",")])
    parser.add_argument("--rounds", type=positive, default=4, help="micro-batches of a rank in a step")
    parser.add_argument("options", nargs="*", help="further options of train --plan, after --")
    given = parser.parse_args()
    unknown = [model for model in given.models.split(",") if model not in MODELS]
    if unknown:
        parser.error(f"--models: {unknown[0]} is none of {', '.join(MODELS)}")
    for model in given.models.split(","):
        micro, recompute = MODELS[model]
        print(f"\n{model}, T 4096, micro-batch {micro}, {given.rounds} of them a rank and step, recompute {recompute}\n")
        print("| GPUs | flat: s | tokens/s | exchange | update | GB out | groups of 8: s | tokens/s | exchange | update | "
              "GB out | GB on a card |")
        print("| " + " | ".join(["---"] * 12) + " |")
        for ranks in given.ranks:
            print(row(model, ranks, given.rounds, given.options)[1], flush=True)


if __name__ == "__main__":
    main()
