#!/usr/bin/env python3
"""Tiny models of transformers through `convert` and `train --init`, and back. See README.md beside this."""
import argparse
import contextlib
import json
import logging
import os
import pathlib
import shutil
import subprocess
import tempfile
import warnings

import numpy
import torch
import transformers
from safetensors.torch import load_file

SEQUENCES, LENGTH, VOCAB, STEPS = 4, 32, 97, 5
LR, DECAY, CLIP = 1e-3, 0.1, 1.0

SIZES = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128,
             initializer_range=0.1, use_cache=False)
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0,
                   high_freq_factor=4.0, original_max_position_embeddings=32)


def without_head_dim(sizes):
    return {**{k: v for k, v in sizes.items() if k != "head_dim"}, "hidden_size": 64}


CONFIGS = {
    "qwen3 tied": lambda: transformers.Qwen3Config(**SIZES, tie_word_embeddings=True),
    "qwen3 untied": lambda: transformers.Qwen3Config(**SIZES, tie_word_embeddings=False),
    "qwen2": lambda: transformers.Qwen2Config(**without_head_dim(SIZES), tie_word_embeddings=True),
    "llama with rope scaling": lambda: transformers.LlamaConfig(
        **SIZES, tie_word_embeddings=False, rope_parameters=LLAMA3_ROPE),
    "llama with biases": lambda: transformers.LlamaConfig(
        **SIZES, tie_word_embeddings=False, attention_bias=True, mlp_bias=True),
    "qwen3 with biases": lambda: transformers.Qwen3Config(
        **SIZES, tie_word_embeddings=True, attention_bias=True),
    "mistral": lambda: transformers.MistralConfig(
        **SIZES, tie_word_embeddings=False, sliding_window=None),
    "mistral with a sliding window": lambda: transformers.MistralConfig(
        **SIZES, tie_word_embeddings=False, sliding_window=7),
    "qwen2 that slides in its last layers": lambda: transformers.Qwen2Config(
        **without_head_dim(SIZES), tie_word_embeddings=True, use_sliding_window=True, sliding_window=9,
        max_window_layers=1),
    "qwen3 that slides in its middle layer": lambda: transformers.Qwen3Config(
        **SIZES, tie_word_embeddings=False, use_sliding_window=True, sliding_window=5,
        layer_types=["full_attention", "sliding_attention", "full_attention"]),
    **{f"qwen3 with {name} rope scaling": (lambda scaling=scaling: transformers.Qwen3Config(
        **{**SIZES, "max_position_embeddings": 16 if scaling["rope_type"] == "dynamic" else 128},
        tie_word_embeddings=True, rope_parameters={"rope_theta": 1e4, **scaling})) for name, scaling in {
            "linear": dict(rope_type="linear", factor=3.0),
            "dynamic": dict(rope_type="dynamic", factor=2.0),
            "yarn": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
            "yarn as DeepSeek's": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=4.0,
                                       mscale=0.7, mscale_all_dim=0.5)}.items()},
}


class Failure(Exception):
    pass


def require(condition, message):
    if not condition:
        raise Failure(message)


def run(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    require(result.returncode == 0, f"{command}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def tensors_of(folder):
    tensors = {}
    for file in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        tensors.update(load_file(file))
    return tensors


@contextlib.contextmanager
def messages():
    """What transformers and Python's warnings say meanwhile."""
    reported = []

    class Collector(logging.Handler):
        def emit(self, record):
            reported.append(record.getMessage())

    logger = logging.getLogger("transformers")
    collector = Collector(logging.WARNING)
    logger.addHandler(collector)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield reported
    logger.removeHandler(collector)
    reported.extend(str(warning.message) for warning in caught)


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.train()


def loss_of(model, ids, labels):
    """Mean over the targets; labels stand beside the token that predicts them."""
    logits = model(input_ids=ids).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1),
                                             ignore_index=-100)


def train_torch(folder, ids, labels):
    model = load(folder)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=LR, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model, ids, labels)
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    return losses, model


def train_tessera(bin_folder, weights, tokens, out):
    """A corpus of exactly one batch, so that every step takes all of it, in whatever order."""
    run("mpirun", "-np", 2, bin_folder / "train", "--init", weights, "--data", tokens, "--seq", LENGTH,
        "--micro-batch", 1, "--global-batch", SEQUENCES, "--steps", STEPS, "--lr", LR, "--schedule",
        "constant", "--warmup", 0, "--weight-decay", DECAY, "--clip", CLIP, "--out", out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def compare_training(name, bin_folder, folder, scratch, mask):
    generator = torch.Generator().manual_seed(7)
    stream = torch.randint(VOCAB, (SEQUENCES * LENGTH + 1,), generator=generator)
    numpy.save(scratch / "ids.npy", stream.numpy())
    masks = []
    labels = stream[1:].clone()
    if mask:
        counts = torch.rand(stream.shape, generator=generator) < 0.4
        counts[1:LENGTH + 1] = False  # a sequence without any target
        numpy.save(scratch / "mask.npy", counts.numpy().astype(numpy.uint8))
        masks = ["--mask", scratch / "mask.npy"]
        labels[~counts[1:]] = -100
    run(bin_folder / "tokenize", "--vocab", VOCAB, "--out", scratch / "tokens.h5", *masks,
        scratch / "ids.npy")
    ids = stream[:-1].reshape(SEQUENCES, LENGTH)
    theirs, model = train_torch(folder, ids, labels.reshape(SEQUENCES, LENGTH))
    for weights, kind in ((folder, "folder"), (scratch / "imported", "checkpoint")):
        out = scratch / f"run-{kind}-{'masked' if mask else 'plain'}"
        ours = train_tessera(bin_folder, weights, scratch / "tokens.h5", out)
        require(len(ours) == STEPS, f"{name}: {len(ours)} losses of {STEPS}")
        for step, (a, b) in enumerate(zip(ours, theirs), 1):
            require(abs(a - b) < 1e-5, f"{name}: step {step}: loss {a} of tessera, {b} of torch")
    run(bin_folder / "convert", "export", out, scratch / f"trained-{mask}", "--dtype", "f32")
    exported = load(scratch / f"trained-{mask}").state_dict()
    worst = max((exported[key] - value).abs().max().item() for key, value in model.state_dict().items())
    require(worst < 0.1 * STEPS * LR, f"{name}: weights differ by {worst} after {STEPS} steps")
    return max(abs(a - b) for a, b in zip(ours, theirs)), worst


def check_model(name, config, bin_folder, scratch, can_train):
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    for parameter in model.parameters():  # gains and biases that are not 1 and 0
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    source = scratch / "source"
    model.save_pretrained(source, max_shard_size="40KB")
    shards = len(list(source.glob("*.safetensors")))
    require(shards > 1, f"{name}: one shard only")

    run(bin_folder / "convert", "import", source, scratch / "imported")
    run(bin_folder / "convert", "export", scratch / "imported", scratch / "exported", "--dtype", "f32",
        "--max-shard-bytes", "60kB")
    before, after = tensors_of(source), tensors_of(scratch / "exported")
    require(before.keys() == after.keys(), f"{name}: {before.keys() ^ after.keys()}")
    for key, value in before.items():
        require(torch.equal(value, after[key]), f"{name}: {key} has other bits")

    ids = torch.randint(VOCAB, (2, 100), generator=torch.Generator().manual_seed(5))
    with messages() as reported:
        copy = load(scratch / "exported")
    require(not reported, f"{name}: transformers says: {reported}")
    copy_config, first = copy.config.to_dict(), model.config.to_dict()
    for key in ("attention_bias", "mlp_bias"):
        require(copy_config.get(key, False) == first.get(key, copy_config.get(key, False)),
                f"{name}: {key}: {copy_config.get(key)} != {first.get(key)}")
    for key in ("rope_parameters", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings"):
        require(copy_config[key] == first[key], f"{name}: {key}: {copy_config[key]} != {first[key]}")
    require((copy_config.get("sliding_window") or None) == (first.get("sliding_window") or None),
            f"{name}: sliding window")
    with torch.no_grad():
        losses = [loss_of(m.eval(), ids[:, :-1], ids[:, 1:]).item() for m in (model, copy)]
    require(abs(losses[0] - losses[1]) < 1e-6, f"{name}: loss {losses[0]} before, {losses[1]} after")
    line = f"{name}: {shards} shards, bit-identical, loss {losses[0]:.6f} and {losses[1]:.6f}"
    if can_train:
        plain = compare_training(name, bin_folder, source, scratch, mask=False)
        masked = compare_training(name, bin_folder, source, scratch, mask=True)
        line += (f"; {STEPS} steps: losses within {plain[0]:.1e}, masked {masked[0]:.1e}, weights within "
                 f"{plain[1]:.1e}, {masked[1]:.1e}")
    print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "build/bin")
    parser.add_argument("--no-train", action="store_true", help="convert alone")
    parser.add_argument("--only", default="", help="models whose name holds this text")
    arguments = parser.parse_args()
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                      OMPI_MCA_rmaps_base_oversubscribe="1")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name, make_config in CONFIGS.items():
        if arguments.only not in name:
            continue
        scratch = pathlib.Path(tempfile.mkdtemp(prefix="tessera-interop-"))
        try:
            check_model(name, make_config(), arguments.bin, scratch, not arguments.no_train)
        finally:
            shutil.rmtree(scratch)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: all equal")


if __name__ == "__main__":
    main()
