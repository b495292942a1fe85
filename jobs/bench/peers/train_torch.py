#!/usr/bin/env python3
"""PyTorch peer: training throughput of a Qwen3-style decoder on random token ids.

Numbers to set beside our own runtime, taken on the same GPUs in the same run.

Model (--impl hand): RMSNorm -> GQA attention (per-head QK-RMSNorm, half-split
RoPE, causal F.scaled_dot_product_attention) -> RMSNorm -> SwiGLU, no biases,
tied or untied output head.  q/k/v share one projection and gate/up share one,
since that is what a PyTorch user who wants speed writes.  --impl hf trains
transformers' Qwen3ForCausalLM (sdpa attention) built from a config.

PRECISION (stated because it decides memory and traffic)
  single, ddp, zero1: fp32 parameters (the master weights), fp32 gradients, fp32
      AdamW moments, compute under torch.autocast(bfloat16): 16 bytes of state a
      parameter, weights cast to bf16 inside the (compiled) graph.  In 'hand' the
      residual stream is bf16 too, in 'hf' it is fp32 (HF's own behaviour).
      DDP all-reduces fp32 gradients, or bf16 with --reduce bf16 (comm hook).
  fsdp2: fp32 sharded parameters, gradients and moments; bf16 unsharded parameters
      for compute (MixedPrecisionPolicy), reduce-scatter in --reduce (fp32); no
      autocast.  --no-reshard keeps the bf16 weights between forward and backward
      (ZeRO-2-like communication).
  All: torch.optim.AdamW(fused=True), gradient clipping to norm 1.0 each step.

LOSS
  plain   : logits = linear(h, W), F.cross_entropy in fp32 (compiled with --compile;
            'hf' uses HF's own labels= path).
  chunked : our linear+cross-entropy over --chunk tokens at a time; the gradients
            are made in the forward pass, so that only one chunk's logits exist;
            the elementwise part is one compiled function with --compile.
  torchlce: torch.nn.functional.linear_cross_entropy, if this torch has it (2.11 most
            probably does not: its documentation starts with 2.13); otherwise the
            row reports UNAVAILABLE.

FLOPs PER TOKEN (printed and written to the JSON)
  6 * N_mm + 6 * L * Hq * hd * T
  N_mm: weights used in GEMMs: all projections and the output head (V*H,
  tied or not); the input embedding lookup and the norms count nothing.  Attention:
  QK^T and PV are 4*Hq*hd*T a token without a mask, half of it with the causal mask,
  times 3 for forward + backward.  Recomputation counts nothing (MFU, not HFU).
  MFU is given against 989 TFLOP/s and against the bf16 8192^3 torch.matmul rate
  measured in the same process (random data; over several GPUs the slowest's).

DOCUMENTS
  --documents MIN:MAX packs documents of log-uniform lengths into every sequence, first come first
  (the last one of a sequence is cut), and keeps them apart by flex_attention with a block mask a
  batch, made before it is timed; positions restart.  'hand' on one GPU only.

ADAPTERS
  --lora RANK (--impl hf, one GPU) has PEFT put adapters of alpha 2 RANK beside all linear layers of each
  block, on a frozen bf16 base; the adapters and their state are f32, as PEFT keeps them. FLOPs: without the
  gradients of frozen weights, 6 times the adapters' own.

TIMING
  CUDA events at each step's boundary without host synchronisation in between; the
  median over --steps after --warmup (compilation falls in the warm-up); over
  several GPUs the slowest rank's median.  Data: a small pool of random ids already
  on the GPU, so that no input pipeline is measured.

Start: python3 train_torch.py --model qwen3-0.6b --compile ...           (one GPU)
       torchrun --standalone --nproc-per-node 2 train_torch.py --parallel fsdp2 ...
       python3 train_torch.py --selftest       (hand vs. transformers, chunked vs. plain)
A row that runs out of memory prints OOM and writes status OOM; exit codes: 0 ok, 2
error, 3 OOM, 4 the option is not available in this torch.
"""
import argparse
import contextlib
import gc
import json
import math
import os
import random
import statistics
import sys
import time
import traceback
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

PEAK_BF16_TFLOPS = 989.0


@dataclass(frozen=True)
class Cfg:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inter: int
    vocab: int
    tied: bool
    theta: float = 1e6
    eps: float = 1e-6


MODELS = {
    "d12": Cfg(768, 12, 12, 12, 64, 2048, 50304, True, 1e4),
    "qwen3-0.6b": Cfg(1024, 28, 16, 8, 128, 3072, 151936, True),
    "qwen3-1.7b": Cfg(2048, 28, 16, 8, 128, 6144, 151936, True),
    "qwen3-4b": Cfg(2560, 36, 32, 8, 128, 9728, 151936, True),
    "qwen3-8b": Cfg(4096, 36, 32, 8, 128, 12288, 151936, False),
    "small": Cfg(512, 8, 8, 4, 64, 1408, 256, True, 1e4),
    "tiny": Cfg(64, 2, 4, 2, 16, 96, 128, True),
}


def matmul_params(c):
    per_layer = (c.hidden * c.head_dim * (2 * c.heads + 2 * c.kv_heads)
                 + 3 * c.hidden * c.inter)
    return c.layers * per_layer + c.vocab * c.hidden


def adapter_params(c, rank):
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    return c.layers * rank * (2 * (c.hidden + q) + 2 * (c.hidden + kv) + 3 * (c.hidden + c.inter))


def flops_per_token(c, seq, lora=0):
    matmuls = 6 * matmul_params(c) if not lora else 4 * matmul_params(c) + 6 * adapter_params(c, lora)
    return matmuls + 6 * c.layers * c.heads * c.head_dim * seq


FLOPS_FORMULA = "6*N_mm + 6*L*Hq*hd*T (N_mm: projections + output head; causal attention)"


# --------------------------------------------------------------------------- model
class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        xf = x.float()
        inv = torch.rsqrt((xf * xf).mean(-1, keepdim=True) + self.eps)
        return (xf * inv * self.weight.float()).to(x.dtype)


def rope_tables(c, seq, device):
    half = c.head_dim // 2
    inv = c.theta ** (-torch.arange(half, dtype=torch.float64, device=device) / half)
    ang = torch.arange(seq, dtype=torch.float64, device=device)[:, None] * inv[None, :]
    return ang.cos().float(), ang.sin().float()


def rotate(x, cos, sin):
    """x: (B, T, heads, hd); cos, sin: (T, hd/2) or (B, T, hd/2). Half-split pairs (i, i + hd/2)."""
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = cos[..., :, None, :], sin[..., :, None, :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, c, expand_kv):
        super().__init__()
        self.hq, self.hk, self.hd = c.heads, c.kv_heads, c.head_dim
        self.expand_kv = expand_kv
        self.norm1 = RMSNorm(c.hidden, c.eps)
        self.qkv = nn.Linear(c.hidden, (c.heads + 2 * c.kv_heads) * c.head_dim, bias=False)
        self.q_norm = RMSNorm(c.head_dim, c.eps)
        self.k_norm = RMSNorm(c.head_dim, c.eps)
        self.out = nn.Linear(c.heads * c.head_dim, c.hidden, bias=False)
        self.norm2 = RMSNorm(c.hidden, c.eps)
        self.gate_up = nn.Linear(c.hidden, 2 * c.inter, bias=False)
        self.down = nn.Linear(c.inter, c.hidden, bias=False)

    def forward(self, x, cos, sin, mask=None):
        b, t, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, self.hq + 2 * self.hk, self.hd)
        q, k, v = qkv.split((self.hq, self.hk, self.hk), dim=2)
        q = rotate(self.q_norm(q), cos, sin).transpose(1, 2)
        k = rotate(self.k_norm(k), cos, sin).transpose(1, 2)
        v = v.transpose(1, 2)
        if mask is not None:
            from torch.nn.attention.flex_attention import flex_attention
            o = flex_attention(q, k, v, block_mask=mask, enable_gqa=self.hq != self.hk)
        elif self.hq == self.hk:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.expand_kv:
            g = self.hq // self.hk
            o = F.scaled_dot_product_attention(q, k.repeat_interleave(g, dim=1),
                                               v.repeat_interleave(g, dim=1), is_causal=True)
        else:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(o.transpose(1, 2).reshape(b, t, self.hq * self.hd))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


# ---------------------------------------------------------------------------- loss
def plain_ce(h, w, targets):
    return F.cross_entropy(F.linear(h, w.to(h.dtype)).float(), targets, ignore_index=-100)


def ce_chunk(logits, targets, inv_n):
    """Summed loss * inv_n of one chunk, and its gradient by the logits."""
    lf = logits.float()
    lse = torch.logsumexp(lf, dim=-1)
    valid = targets != -100
    t = torch.where(valid, targets, torch.zeros_like(targets))
    picked = lf.gather(-1, t[:, None]).squeeze(-1)
    loss = torch.where(valid, lse - picked, torch.zeros_like(lse)).sum() * inv_n
    hot = torch.arange(lf.shape[-1], device=lf.device)[None, :] == t[:, None]
    scale = valid.to(lf.dtype) * inv_n
    grad = (torch.exp(lf - lse[:, None]) - hot.to(lf.dtype)) * scale[:, None]
    return loss, grad.to(logits.dtype)


class ChunkedLinearCE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, w, targets, chunk, chunk_fn):
        amp_off = (torch.autocast("cuda", enabled=False) if h.is_cuda
                   else contextlib.nullcontext())
        with amp_off:
            wc = w.to(h.dtype)
            inv_n = 1.0 / (targets != -100).sum().clamp(min=1).float()
            n = h.shape[0]
            dh = torch.empty_like(h)
            dw = None
            loss = torch.zeros((), dtype=torch.float32, device=h.device)
            for s in range(0, n, chunk):
                hc = h[s:s + chunk]
                part, dlogits = chunk_fn(hc @ wc.t(), targets[s:s + chunk], inv_n)
                loss = loss + part
                torch.mm(dlogits, wc, out=dh[s:s + chunk])
                if not ctx.needs_input_grad[1]:
                    continue  # a frozen head
                piece = dlogits.t() @ hc
                if dw is None:
                    dw = piece if n <= chunk else piece.float()
                else:
                    dw.add_(piece)
                del dlogits, piece
            ctx.save_for_backward(dh, *([] if dw is None else [dw]))
            ctx.w_dtype = w.dtype
        return loss

    @staticmethod
    def backward(ctx, g):
        dh, *dw = ctx.saved_tensors
        # in place: the buffers are this function's own and are used once
        d_w = dw[0].mul_(g.to(dw[0].dtype)).to(ctx.w_dtype) if dw else None
        return dh.mul_(g.to(dh.dtype)), d_w, None, None, None


class LossHead:
    """The loss on final hidden states (N, H), head weight (V, H), targets (N)."""

    def __init__(self, kind, chunk, compiled, mode):
        self.kind, self.chunk = kind, chunk
        wrap = (lambda f: torch.compile(f, dynamic=False, mode=mode)) if compiled else (lambda f: f)
        if kind == "plain":
            self.fn = wrap(plain_ce)
        elif kind == "chunked":
            self.fn = wrap(ce_chunk)
        else:
            self.fn = getattr(F, "linear_cross_entropy", None)
            if self.fn is None:
                raise Unavailable("torch.nn.functional.linear_cross_entropy is not in torch "
                                  + torch.__version__)

    def __call__(self, h, w, targets):
        h, targets = h.reshape(-1, h.shape[-1]), targets.reshape(-1)
        if self.kind == "plain":
            return self.fn(h, w, targets)
        if self.kind == "chunked":
            return ChunkedLinearCE.apply(h, w, targets, self.chunk, self.fn)
        try:
            return self.fn(h, w.to(h.dtype), targets, ignore_index=-100, options={})
        except TypeError:
            return self.fn(h, w.to(h.dtype), targets, ignore_index=-100)


class Unavailable(Exception):
    pass


class HandModel(nn.Module):
    """forward(tokens, targets) returns the mean loss, so that every use of a weight
    falls inside this module's forward (DDP and FSDP need that)."""

    def __init__(self, c, expand_kv, dtype):
        super().__init__()
        self.c, self.dtype = c, dtype
        self.embed = nn.Embedding(c.vocab, c.hidden)
        self.blocks = nn.ModuleList([Block(c, expand_kv) for _ in range(c.layers)])
        self.norm_f = RMSNorm(c.hidden, c.eps)
        self.head = None if c.tied else nn.Linear(c.hidden, c.vocab, bias=False)
        self.loss_head = None
        self.tables = None
        self.trunk_fn = self.trunk
        self.norm_fn = self.norm_f.forward      # bound methods: not registered as submodules

    def trunk(self, tokens, cos, sin, mask=None):
        x = F.embedding(tokens, self.embed.weight).to(self.dtype)
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        return x

    def forward(self, tokens, targets, positions=None, mask=None):
        cos, sin = self.tables
        if positions is not None:
            cos, sin = cos[positions], sin[positions]
        x = self.norm_fn(self.trunk_fn(tokens, cos, sin, mask))
        w = self.embed.weight if self.head is None else self.head.weight
        return self.loss_head(x, w, targets)

    @torch.no_grad()
    def init_weights(self, seed):
        """In place on local storage, so that it also fills FSDP shards."""
        device = next(self.parameters()).device
        gen = torch.Generator(device=device).manual_seed(seed)
        for p in self.parameters():
            local = p.to_local() if hasattr(p, "to_local") else p
            if p.ndim == 1:
                local.fill_(1.0)
            elif local.numel():
                local.normal_(0.0, 0.02, generator=gen)


class HFModel(nn.Module):
    def __init__(self, m, native_loss):
        super().__init__()
        self.m = m
        self.native = native_loss
        self.loss_head = None
        self.fns = [m.model, m]         # a list, so that compiled wrappers are not registered twice

    def forward(self, tokens, targets):
        if self.native:
            return self.fns[1](input_ids=tokens, labels=tokens, use_cache=False).loss
        h = self.fns[0](input_ids=tokens, use_cache=False)[0]
        return self.loss_head(h, self.m.lm_head.weight, targets)


def hf_config(c, seq):
    from transformers import Qwen3Config
    kw = dict(vocab_size=c.vocab, hidden_size=c.hidden, intermediate_size=c.inter,
              num_hidden_layers=c.layers, num_attention_heads=c.heads,
              num_key_value_heads=c.kv_heads, head_dim=c.head_dim, rms_norm_eps=c.eps,
              tie_word_embeddings=c.tied, max_position_embeddings=max(seq, 4096),
              attention_bias=False, use_cache=False)
    try:
        cfg = Qwen3Config(rope_parameters={"rope_type": "default", "rope_theta": c.theta}, **kw)
    except Exception:
        cfg = Qwen3Config(rope_theta=c.theta, **kw)
    cfg._attn_implementation = "sdpa"
    return cfg


# ------------------------------------------------------------------------- documents
def document_lengths(low, high, seq, rng):
    """Lengths that fill one sequence, log-uniform from low to high; the last one is cut."""
    lengths = []
    while sum(lengths) < seq:
        length = int(math.exp(rng.uniform(math.log(low), math.log(high + 1))))
        lengths.append(min(length, seq - sum(lengths)))
    return lengths


def document_batch(lengths, device):
    """Positions (B, T), and flex_attention's mask of a batch whose sequences have these documents."""
    from torch.nn.attention.flex_attention import create_block_mask
    positions = torch.tensor([[t for n in row for t in range(n)] for row in lengths], device=device)
    number = torch.tensor([[i for i, n in enumerate(row) for _ in range(n)] for row in lengths], device=device)

    def sees(b, h, q, kv):
        return (kv <= q) & (number[b, q] == number[b, kv])
    batch, seq = positions.shape
    return positions, create_block_mask(sees, batch, None, seq, seq, device=device)


# --------------------------------------------------------------------- measurements
def matmul_tflops(device, n=8192, reps=20):
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    b = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    for _ in range(5):
        a @ b
    times = []
    for _ in range(reps):
        s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        s.record()
        a @ b
        e.record()
        times.append((s, e))
    torch.cuda.synchronize()
    ms = statistics.median(s.elapsed_time(e) for s, e in times)
    return 2 * n ** 3 / (ms * 1e-3) / 1e12


def allow_sdpa(name):
    every = name == "any"
    cuda = torch.backends.cuda
    cuda.enable_flash_sdp(every or name == "flash")
    cuda.enable_cudnn_sdp(every or name == "cudnn")
    cuda.enable_mem_efficient_sdp(every or name == "efficient")
    cuda.enable_math_sdp(every)


def probe_sdpa(c, mbs, seq, device, only=None):
    """Times forward + backward of each attention backend on the real shape."""
    cands = [("cudnn", False), ("flash", False)]
    if c.heads != c.kv_heads:
        cands.append(("cudnn", True))
    if only:
        cands = [x for x in cands if x[0] == only] or [(only, c.heads != c.kv_heads)]
    found = {}
    for name, expand in cands:
        try:
            allow_sdpa(name)

            def leaf(h):
                return torch.randn(mbs, seq, h, c.head_dim, device=device,
                                   dtype=torch.bfloat16).requires_grad_()
            q, k, v = leaf(c.heads), leaf(c.kv_heads), leaf(c.kv_heads)
            # (B, T, H, D) in memory, as the model's own gradients are: cuDNN looks at the strides
            grad = torch.randn(mbs, seq, c.heads, c.head_dim, device=device,
                               dtype=torch.bfloat16).transpose(1, 2)

            def once():
                kk, vv = k.transpose(1, 2), v.transpose(1, 2)
                kw = {}
                if c.heads != c.kv_heads:
                    if expand:
                        g = c.heads // c.kv_heads
                        kk, vv = kk.repeat_interleave(g, 1), vv.repeat_interleave(g, 1)
                    else:
                        kw["enable_gqa"] = True
                o = F.scaled_dot_product_attention(q.transpose(1, 2), kk, vv, is_causal=True, **kw)
                torch.autograd.grad(o, (q, k, v), grad)
            for _ in range(3):
                once()
            s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            s.record()
            for _ in range(5):
                once()
            e.record()
            torch.cuda.synchronize()
            found[(name, expand)] = s.elapsed_time(e) / 5
        except Exception as err:  # a backend that refuses this shape
            print(f"# sdpa {name} expand_kv={expand}: {(str(err) or type(err).__name__).splitlines()[0][:160]}", flush=True)
    torch.cuda.empty_cache()
    if not found:
        return ("any", c.heads != c.kv_heads), {}
    best = min(found, key=found.get)
    return best, {f"{n}{'+expand' if x else ''}": round(ms, 3) for (n, x), ms in found.items()}


# ----------------------------------------------------------------------------- build
def with_adapters(model, rank):
    from peft import LoraConfig, get_peft_model
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    settings = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=layers, task_type="CAUSAL_LM")
    return get_peft_model(model.to(torch.bfloat16), settings).base_model.model


def compile_block(module, mode):
    return torch.compile(module, dynamic=False, mode=mode)


def build(args, c, device, world, sdpa):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    mode = None if args.compile_mode == "default" else args.compile_mode
    fsdp = args.parallel == "fsdp2"
    scope = args.compile_scope if args.compile else None
    if fsdp and scope == "model":
        print("# fsdp2: whole-model compile is not used, compiling each block", flush=True)
        scope = "block"
    if args.compile:
        from torch._dynamo import config as dyn
        for key in ("recompile_limit", "cache_size_limit"):
            try:
                setattr(dyn, key, max(64, getattr(dyn, key)))
                break
            except Exception:
                pass
        # Blocks compiled one by one already overlap with DDP's buckets; DDPOptimizer is only
        # needed when the whole trunk is one graph (and it refuses checkpoint operators).
        if not (scope == "model" and args.recompute == "none"):
            dyn.optimize_ddp = False
    dtype = torch.bfloat16

    if args.impl == "hand":
        with torch.device("meta" if fsdp else device):
            net = HandModel(c, sdpa[1], dtype)
        for i in range(c.layers):
            blk = net.blocks[i]
            if args.recompute == "full":
                blk = checkpoint_wrapper(blk, preserve_rng_state=False)
            if scope == "block":
                blk = compile_block(blk, mode)
            net.blocks[i] = blk
        shard_list = list(net.blocks)
        if scope == "model":
            net.trunk_fn = torch.compile(net.trunk, dynamic=False, mode=mode)
        if scope:
            net.norm_fn = torch.compile(net.norm_f.forward, dynamic=False, mode=mode)
        net.loss_head = LossHead(args.loss, args.chunk, bool(scope), mode)
    else:
        from transformers import Qwen3ForCausalLM
        torch.manual_seed(args.seed)
        with torch.device(device):
            m = Qwen3ForCausalLM(hf_config(c, args.seq))
        m.float().to(device).train()
        if args.lora:
            m = with_adapters(m, args.lora)
        if args.recompute == "full":
            m.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        net = HFModel(m, args.loss == "plain")
        shard_list = list(m.model.layers)
        if scope == "block":
            for layer in shard_list:
                layer.forward = torch.compile(layer.forward, dynamic=False, mode=mode)
        elif scope == "model":
            net.fns = [torch.compile(m.model, dynamic=False, mode=mode),
                       torch.compile(m, dynamic=False, mode=mode)]
        net.loss_head = None if net.native else LossHead(args.loss, args.chunk, bool(scope), mode)

    if fsdp:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cuda", (world,))
        red = torch.float32 if args.reduce == "fp32" else torch.bfloat16
        # cast_forward_inputs would round our fp32 RoPE tables to bf16; hidden states are
        # bf16 already (the unsharded embedding is).
        mp = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=red,
                                  cast_forward_inputs=(args.impl == "hf"))
        for blk in shard_list:
            fully_shard(blk, mesh=mesh, mp_policy=mp, reshard_after_forward=not args.no_reshard)
        fully_shard(net, mesh=mesh, mp_policy=mp, reshard_after_forward=False)
        if args.impl == "hand":
            net.to_empty(device=device)
            net.init_weights(args.seed + int(os.environ.get("RANK", 0)))
    elif args.impl == "hand":
        net.init_weights(args.seed)
    if args.impl == "hand":
        net.tables = rope_tables(c, args.seq, device)

    n_params = sum(p.numel() for p in net.parameters())
    model = net
    if args.parallel in ("ddp", "zero1"):
        from torch.nn.parallel import DistributedDataParallel as DDP
        model = DDP(net, device_ids=[device.index], gradient_as_bucket_view=True,
                    bucket_cap_mb=args.bucket_mb, broadcast_buffers=False)
        if args.reduce == "bf16":
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    params = [p for p in model.parameters() if p.requires_grad]
    kw = dict(lr=args.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    if args.parallel == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        opt = ZeroRedundancyOptimizer(params, optimizer_class=torch.optim.AdamW,
                                      parameters_as_bucket_view=True, **kw)
    else:
        opt = torch.optim.AdamW(params, **kw)
    return model, params, opt, n_params


def train(args, c, device, rank, world, base, log):
    fsdp, ddp = args.parallel == "fsdp2", args.parallel in ("ddp", "zero1")
    torch.set_float32_matmul_precision("high")
    if args.deterministic:
        if args.sdpa != "flash":
            raise Unavailable("--deterministic wants --sdpa flash, whose backward pass has a deterministic order")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    mm = matmul_tflops(device)
    if args.impl == "hf":
        sdpa, probe = (args.sdpa if args.sdpa != "auto" else "any", False), {}
    else:
        sdpa, probe = probe_sdpa(c, args.mbs, args.seq, device,
                                 None if args.sdpa == "auto" else args.sdpa)
    if world > 1:
        import torch.distributed as dist
        box = [sdpa]
        dist.broadcast_object_list(box, src=0, device=device)
        sdpa = tuple(box[0])
        t = torch.tensor([mm], device=device, dtype=torch.float64)
        dist.all_reduce(t, op=dist.ReduceOp.MIN)
        mm = t.item()
    allow_sdpa(sdpa[0])
    base.update(matmul_tflops=round(mm, 1), sdpa=sdpa[0] + ("+expand" if sdpa[1] else ""),
                sdpa_probe_ms=probe)
    torch.cuda.empty_cache()

    t0 = time.perf_counter()
    model, params, opt, n_params = build(args, c, device, world, sdpa)
    base.update(params=n_params)
    log(f"# built: {n_params / 1e9:.3f} G parameters, {time.perf_counter() - t0:.1f} s; "
        f"matmul {mm:.0f} TFLOP/s; sdpa {base['sdpa']} {probe}")

    gen = torch.Generator(device=device).manual_seed(1234 + rank)
    pool = [torch.randint(0, c.vocab, (args.mbs, args.seq + 1), device=device, generator=gen)
            for _ in range(max(2, args.accum))]
    pool = [(p[:, :-1].contiguous(), p[:, 1:].contiguous()) for p in pool]
    if args.documents:
        rng = random.Random(4321)
        low, high = map(int, args.documents.split(":"))
        for i, (tok, tgt) in enumerate(pool):
            lengths = [document_lengths(low, high, args.seq, rng) for _ in range(args.mbs)]
            positions, mask = document_batch(lengths, device)
            tgt = torch.where(positions.roll(-1, 1) == 0, torch.full_like(tgt, -100), tgt)  # no document's last
            pool[i] = (tok, tgt, positions, mask)
        log(f"# documents of {low} to {high} tokens, {sum(map(len, lengths))} in the last batch")
    cursor = 0
    amp = ((lambda: contextlib.nullcontext()) if fsdp
           else (lambda: torch.autocast("cuda", dtype=torch.bfloat16)))

    def step():
        nonlocal cursor
        total = None
        for i in range(args.accum):
            last = i == args.accum - 1
            if fsdp and args.accum > 1:
                model.set_requires_gradient_sync(last)
            hold = model.no_sync() if ddp and not last else contextlib.nullcontext()
            batch = pool[cursor % len(pool)]
            cursor += 1
            with hold:
                with amp():
                    loss = model(*batch)
                    if args.accum > 1:
                        loss = loss / args.accum
                loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        opt.step()
        opt.zero_grad(set_to_none=True)
        return total, norm

    t0 = time.perf_counter()
    first = None
    for i in range(args.warmup):
        loss, norm = step()
        torch.cuda.synchronize()
        if first is None:
            first = loss.item()
            log(f"# first step {time.perf_counter() - t0:.1f} s, loss {first:.4f}")
    warm_s = time.perf_counter() - t0
    if world > 1:
        dist.barrier()
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(args.steps + 1)]
    wall = time.perf_counter()
    events[0].record()
    for i in range(args.steps):
        loss, norm = step()
        events[i + 1].record()
    torch.cuda.synchronize()
    wall = (time.perf_counter() - wall) * 1e3 / args.steps
    ms = [events[i].elapsed_time(events[i + 1]) for i in range(args.steps)]
    med = statistics.median(ms)
    if hasattr(norm, "full_tensor"):
        norm = norm.full_tensor()
    last_loss, norm = loss.item(), float(norm)
    peak = [torch.cuda.max_memory_allocated() / 2 ** 30]
    reserved = [torch.cuda.max_memory_reserved() / 2 ** 30]
    if world > 1:
        rows = [None] * world
        dist.all_gather_object(rows, (med, wall, peak[0], reserved[0]))
        med, wall = max(r[0] for r in rows), max(r[1] for r in rows)
        peak, reserved = [r[2] for r in rows], [r[3] for r in rows]
    tokens = args.mbs * args.seq * args.accum * world
    fpt = flops_per_token(c, args.seq, args.lora)
    rate = tokens / (med * 1e-3)
    per_gpu_tflops = rate * fpt / world / 1e12
    breaks = 0
    if args.compile:
        try:
            from torch._dynamo.utils import counters
            breaks = sum(counters["graph_break"].values())
        except Exception:
            pass
    base.update(status="ok", median_ms=round(med, 3), mean_wall_ms=round(wall, 3),
                step_ms=[round(x, 2) for x in ms], tokens_per_step=tokens,
                tok_s=round(rate, 1), tok_s_gpu=round(rate / world, 1),
                flops_per_token=fpt, flops_formula=FLOPS_FORMULA, tflops_gpu=round(per_gpu_tflops, 1),
                mfu_989=round(per_gpu_tflops / PEAK_BF16_TFLOPS, 4),
                mfu_matmul=round(per_gpu_tflops / mm, 4),
                peak_alloc_gib=[round(x, 2) for x in peak],
                peak_reserved_gib=[round(x, 2) for x in reserved],
                warmup_s=round(warm_s, 1), loss_first=round(first, 4), loss_last=round(last_loss, 4),
                grad_norm=round(norm, 4), graph_breaks=breaks)


def emit(args, row):
    ok = row.get("status") == "ok"
    head = f"RESULT {row['tag']}: "
    if ok:
        text = (f"{row['median_ms']:.1f} ms/step, {row['tok_s']:.0f} tok/s, {row['tok_s_gpu']:.0f} "
                f"tok/s/GPU, {row['tflops_gpu']:.0f} TFLOP/s/GPU, MFU {100 * row['mfu_989']:.1f}% of 989, "
                f"{100 * row['mfu_matmul']:.1f}% of measured {row['matmul_tflops']:.0f}; peak GiB "
                f"{row['peak_alloc_gib']}; FLOPs/token {row['flops_per_token'] / 1e9:.3f} G = "
                f"{FLOPS_FORMULA}; loss {row['loss_first']} -> {row['loss_last']}; sdpa {row['sdpa']}")
    else:
        text = f"{row.get('status')} {row.get('error', '')}"
    print(head + text, flush=True)
    if args.out:
        os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)
        with open(args.out, "a") as f:
            f.write(json.dumps(row) + "\n")


# -------------------------------------------------------------------------- selftest
def selftest():
    """Same weights in transformers' Qwen3 and in HandModel (fp32): loss and gradients
    agree; chunked loss agrees with plain.  CPU, a few seconds."""
    device = torch.device("cpu")
    for tied in (True, False):
        c = Cfg(64, 2, 4, 2, 16, 96, 128, tied)
        torch.manual_seed(0)
        net = HandModel(c, not hasattr(F, "scaled_dot_product_attention"), torch.float32)
        with torch.no_grad():
            for p in net.parameters():
                p.normal_(0, 0.1)
                if p.ndim == 1:
                    p.add_(1.0)
        net.tables = rope_tables(c, 16, device)
        tok = torch.randint(0, c.vocab, (2, 17))
        tgt = tok[:, 1:].clone()
        tgt[0, 3:7] = -100
        results = []
        for kind, chunk in (("plain", 0), ("chunked", 8), ("chunked", 64)):
            net.loss_head = LossHead(kind, chunk, False, None)
            net.zero_grad()
            loss = net(tok[:, :-1], tgt)
            (loss * 0.5).backward()
            results.append((loss.item(), {n: p.grad.clone() for n, p in net.named_parameters()}))
        for loss, grads in results[1:]:
            worst = max((grads[n] - g).abs().max().item() for n, g in results[0][1].items())
            print(f"tied={tied} chunked vs plain: loss diff {abs(loss - results[0][0]):.2e}, "
                  f"worst grad diff {worst:.2e}")
            assert abs(loss - results[0][0]) < 1e-5 and worst < 1e-5
        try:
            from transformers import Qwen3ForCausalLM
        except Exception as err:
            print("transformers not usable here, comparison skipped:", err)
            continue
        hf = Qwen3ForCausalLM(hf_config(c, 16)).float()
        sd = {"model.embed_tokens.weight": net.embed.weight, "model.norm.weight": net.norm_f.weight}
        if not tied:
            sd["lm_head.weight"] = net.head.weight
        qd, kd = c.heads * c.head_dim, c.kv_heads * c.head_dim
        for i, b in enumerate(net.blocks):
            p = f"model.layers.{i}."
            q, k, v = b.qkv.weight.split((qd, kd, kd))
            gate, up = b.gate_up.weight.chunk(2)
            sd.update({p + "self_attn.q_proj.weight": q, p + "self_attn.k_proj.weight": k,
                       p + "self_attn.v_proj.weight": v, p + "self_attn.o_proj.weight": b.out.weight,
                       p + "self_attn.q_norm.weight": b.q_norm.weight,
                       p + "self_attn.k_norm.weight": b.k_norm.weight,
                       p + "mlp.gate_proj.weight": gate, p + "mlp.up_proj.weight": up,
                       p + "mlp.down_proj.weight": b.down.weight,
                       p + "input_layernorm.weight": b.norm1.weight,
                       p + "post_attention_layernorm.weight": b.norm2.weight})
        with torch.no_grad():
            mine = dict(hf.named_parameters())
            assert set(mine) == set(sd), set(mine) ^ set(sd)
            for n, w in sd.items():
                mine[n].copy_(w)
        logits = hf(input_ids=tok[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.reshape(-1, c.vocab), tgt.reshape(-1), ignore_index=-100)
        (loss * 0.5).backward()
        diff = (hf.model.embed_tokens.weight.grad - results[0][1]["embed.weight"]).abs().max().item()
        print(f"tied={tied} hand vs transformers: loss {results[0][0]:.6f} vs {loss.item():.6f}, "
              f"embedding grad diff {diff:.2e}")
        assert abs(loss.item() - results[0][0]) < 1e-5 and diff < 1e-5
    print("selftest ok")


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--model", choices=sorted(MODELS), default="d12")
    ap.add_argument("--impl", choices=("hand", "hf"), default="hand")
    ap.add_argument("--parallel", choices=("single", "ddp", "zero1", "fsdp2"), default="single")
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--compile-scope", choices=("block", "model"), default="block",
                    help="block: each decoder block (one compilation, reused); model: the whole trunk")
    ap.add_argument("--compile-mode", default="default",
                    help="torch.compile mode, e.g. max-autotune-no-cudagraphs (slow to compile)")
    ap.add_argument("--recompute", choices=("none", "full"), default="none")
    ap.add_argument("--loss", choices=("plain", "chunked", "torchlce"), default="plain")
    ap.add_argument("--chunk", type=int, default=4096, help="tokens a chunk for --loss chunked")
    ap.add_argument("--reduce", choices=("fp32", "bf16"), default="fp32",
                    help="dtype of the gradient reduction")
    ap.add_argument("--no-reshard", action="store_true", help="fsdp2: reshard_after_forward=False")
    ap.add_argument("--sdpa", choices=("auto", "cudnn", "flash", "efficient", "any"), default="auto")
    ap.add_argument("--documents", default="", metavar="MIN:MAX",
                    help="pack documents of log-uniform lengths that do not see each other")
    ap.add_argument("--lora", type=int, default=0, metavar="RANK", help="train PEFT's adapters beside a frozen bf16 model")
    ap.add_argument("--deterministic", action="store_true",
                    help="torch.use_deterministic_algorithms: FlashAttention's deterministic backward pass")
    ap.add_argument("--bucket-mb", type=int, default=100, help="DDP bucket size")
    ap.add_argument("--mbs", type=int, default=4, help="sequences a GPU and micro-step")
    ap.add_argument("--seq", type=int, default=1024)
    ap.add_argument("--accum", type=int, default=1)
    ap.add_argument("--steps", type=int, default=8)
    ap.add_argument("--warmup", type=int, default=3)
    ap.add_argument("--lr", type=float, default=3e-4)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--tag", default="")
    ap.add_argument("--out", default="", help="file to append a JSON line to")
    ap.add_argument("--selftest", action="store_true")
    args = ap.parse_args()
    if args.documents and (args.impl != "hand" or args.parallel != "single" or args.compile_scope != "block"):
        ap.error("--documents: --impl hand on one GPU, blocks compiled one by one")
    if args.lora and (args.impl != "hf" or args.parallel != "single"):
        ap.error("--lora: --impl hf on one GPU")
    if args.selftest:
        selftest()
        return 0
    args.warmup = max(1, args.warmup)
    args.steps = max(1, args.steps)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local = int(os.environ.get("LOCAL_RANK", 0))
    log = (lambda s: print(s, flush=True)) if rank == 0 else (lambda s: None)
    tag = args.tag or f"{args.model}-{args.parallel}-x{world}"
    base = dict(tag=tag, status="?", impl=args.impl, model=args.model, parallel=args.parallel,
                world=world, compile=args.compile,
                compile_scope=args.compile_scope if args.compile else None,
                recompute=args.recompute, loss=args.loss, reduce=args.reduce,
                reshard_after_forward=None if args.parallel != "fsdp2" else not args.no_reshard,
                precision=("bf16 frozen params, fp32 adapters, bf16 autocast" if args.lora else
                           "fp32 sharded params + bf16 compute params" if args.parallel == "fsdp2"
                           else "fp32 params + bf16 autocast"),
                mbs=args.mbs, seq=args.seq, accum=args.accum, steps=args.steps,
                deterministic=args.deterministic, lora=args.lora,
                torch=torch.__version__)
    first_here = lambda key: rank == 0
    code = 2
    try:
        if not torch.cuda.is_available():
            raise Unavailable("no CUDA device")
        if args.parallel == "single" and world > 1:
            raise Unavailable("--parallel single wants one process")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        base["gpu"] = torch.cuda.get_device_name(device)
        if args.parallel != "single":
            import torch.distributed as dist
            for k, v in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29531"),
                         ("RANK", "0"), ("WORLD_SIZE", "1")):
                os.environ.setdefault(k, v)
            dist.init_process_group("nccl", device_id=device)

            def first_here(key):        # whichever rank fails first writes the row
                try:
                    return dist.distributed_c10d._get_default_store().add(key, 1) == 1
                except Exception:
                    return rank == 0
        train(args, MODELS[args.model], device, rank, world, base, log)
        if rank == 0:
            emit(args, base)
        code = 0
    except Unavailable as err:
        base.update(status="UNAVAILABLE", error=str(err))
        code = 4
        if rank == 0:
            emit(args, base)
    except BaseException as err:
        if isinstance(err, (KeyboardInterrupt, SystemExit)):
            raise
        oom = isinstance(err, torch.cuda.OutOfMemoryError) or "out of memory" in str(err).lower()
        code = 3 if oom else 2
        base.update(status="OOM" if oom else "ERROR", rank=rank,
                    error=(str(err).strip().splitlines() or [type(err).__name__])[0][:300])
        if first_here("peer_failed_row"):
            if oom:
                print("OOM", flush=True)
            else:
                traceback.print_exc()
            emit(args, base)
    sys.stdout.flush()
    sys.stderr.flush()
    if code != 0:
        os._exit(code)      # other ranks may hang in a collective: torchrun then ends them
    if args.parallel != "single":
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
