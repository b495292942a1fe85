#!/usr/bin/env python3
"""PyTorch on CPU ranks, beside `bench step --device cpu --model small`.

The model of train_torch.py (RMSNorm, grouped-query attention by scaled_dot_product_attention, SwiGLU) in
f32 under DistributedDataParallel with gloo: one process a rank, one thread each, each bound to one core.
AdamW (fused), gradients clipped to norm 1.0, random token ids. A step is --global-batch sequences in
micro-batches of --micro-batch; all but the last skip DDP's exchange, as a PyTorch user would write it.

    python3 train_torch_cpu.py --ranks 2 --cores 0,1 --seq 512 --micro-batch 4 --global-batch 16

Prints one JSON object: tokens/s of all ranks together (median over --steps after --warmup), seconds a
step, and torch's rate of one [2048, 2048] x [2048, 2048] f32 product on one of the cores.
"""
import argparse
import contextlib
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

from train_torch import MODELS, HandModel, LossHead, flops_per_token, rope_tables

PRODUCT_SIZE = 2048
PRODUCT_REPETITIONS = 10


def product_gflops():
    a = torch.randn(PRODUCT_SIZE, PRODUCT_SIZE)
    b = torch.randn(PRODUCT_SIZE, PRODUCT_SIZE)
    torch.mm(a, b)
    times = []
    for _ in range(PRODUCT_REPETITIONS):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    return 2 * PRODUCT_SIZE**3 / statistics.median(times) / 1e9


def run_rank(rank, args, port, cores):
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)

    config = MODELS[args.model]
    model = HandModel(config, expand_kv=False, dtype=torch.float32)
    model.init_weights(seed=1)
    model.tables = rope_tables(config, args.seq, torch.device("cpu"))
    model.loss_head = LossHead("plain", 0, compiled=False, mode=None)
    if args.compile:
        model.trunk_fn = torch.compile(model.trunk_fn, dynamic=False)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=True)
    micro_steps = args.global_batch // (args.micro_batch * args.ranks)
    generator = torch.Generator().manual_seed(100 + rank)

    times = []
    for step in range(args.warmup + args.steps):
        dist.barrier()
        start = time.perf_counter()
        for micro in range(micro_steps):
            ids = torch.randint(config.vocab, (args.micro_batch, args.seq + 1), generator=generator)
            last = micro == micro_steps - 1
            with contextlib.nullcontext() if last else parallel.no_sync():
                loss = parallel(ids[:, :-1], ids[:, 1:])
                (loss / micro_steps).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.barrier()
        if step >= args.warmup:
            times.append(time.perf_counter() - start)
    if rank == 0:
        tokens = args.global_batch * args.seq
        seconds = statistics.median(times)
        print(json.dumps({
            "peer": f"torch {torch.__version__} CPU, DDP gloo{', compiled' if args.compile else ''}",
            "model": args.model, "ranks": args.ranks, "seq": args.seq,
            "micro_batch": args.micro_batch, "global_batch": args.global_batch,
            "tokens_per_second": round(tokens / seconds, 1), "seconds_per_step": round(seconds, 4),
            "gflops": round(flops_per_token(config, args.seq) * tokens / seconds / 1e9, 1),
            "product_gflops_one_core": round(product_gflops(), 1), "loss": loss.item()}))
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="small", choices=sorted(MODELS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cores", default=None, help="comma-separated, one a rank (default: the first)")
    parser.add_argument("--seq", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--micro-batch", type=int, default=4, help="sequences of one micro-batch")
    parser.add_argument("--global-batch", type=int, default=16, help="sequences of a step, all ranks")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--port", type=int, default=29541)
    parser.add_argument("--compile", action="store_true", help="torch.compile (needs a C++ compiler)")
    args = parser.parse_args()
    if args.global_batch % (args.micro_batch * args.ranks):
        parser.error(f"--global-batch {args.global_batch} is not a multiple of --micro-batch "
                     f"{args.micro_batch} times --ranks {args.ranks}")
    cores = ([int(core) for core in args.cores.split(",")] if args.cores
             else sorted(os.sched_getaffinity(0)))
    multiprocessing.spawn(run_rank, args=(args, args.port, cores), nprocs=args.ranks)


if __name__ == "__main__":
    main()
