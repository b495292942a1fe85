#!/usr/bin/env python3
"""Writes a folder of Qwen3-1.7B's shapes with random bf16 weights in 4 files (3.44 GB):

    made_up_model.py FOLDER
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

FILES = 4
LAYERS, HIDDEN, INTERMEDIATE, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 28, 2048, 6144, 151936, 16, 8, 128


def shapes():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (HIDDEN,)
        yield prefix + "post_attention_layernorm.weight", (HIDDEN,)
        yield prefix + "self_attn.q_proj.weight", (HEADS * HEAD_DIM, HIDDEN)
        yield prefix + "self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield prefix + "self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield prefix + "self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)
        yield prefix + "self_attn.q_norm.weight", (HEAD_DIM,)
        yield prefix + "self_attn.k_norm.weight", (HEAD_DIM,)
        yield prefix + "mlp.gate_proj.weight", (INTERMEDIATE, HIDDEN)
        yield prefix + "mlp.up_proj.weight", (INTERMEDIATE, HIDDEN)
        yield prefix + "mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
    yield "model.norm.weight", (HIDDEN,)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "qwen3", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu"}))
    tensors = list(shapes())
    total = sum(2 * torch.Size(shape).numel() for _, shape in tensors)
    torch.manual_seed(1)
    weight_map, used = {}, 0
    pieces = [[] for _ in range(FILES)]
    for name, shape in tensors:
        pieces[min(FILES - 1, used * FILES // total)].append((name, shape))
        used += 2 * torch.Size(shape).numel()
    for number, piece in enumerate(pieces, 1):
        file = f"model-{number:05}-of-{FILES:05}.safetensors"
        save_file({name: torch.randn(shape).to(torch.bfloat16) for name, shape in piece},
                  folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name, _ in piece})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    print(f"{total} bytes of tensors in {FILES} files in {folder}")


if __name__ == "__main__":
    main()
