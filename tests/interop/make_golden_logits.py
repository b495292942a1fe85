#!/usr/bin/env python3
"""Writes tests/golden/rope/logits.json: logits of transformers in f32 for the weights of tests/golden/untied with each
kind of rotary scaling and with sliding windows, for decoder_test.cpp. Needs torch and transformers 5.

    python3 make_golden_logits.py GOLDEN_FOLDER OUT_FILE
"""
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file

LENGTH = 48
POSITIONS = (0, 17, 31, 47)
THETA = 1e4
LAYERS = 2
SCALINGS = {
    "none": None,
    "linear": dict(rope_type="linear", factor=2.5),
    "dynamic, beyond its positions": dict(rope_type="dynamic", factor=4.0),
    "yarn": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    "yarn as DeepSeek's": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=4.0,
                               beta_slow=2.0, mscale=0.7, mscale_all_dim=0.5),
    "yarn with its own attention factor": dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=16,
                                               attention_factor=1.25),
    "llama3": dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=16),
}
WINDOWS = {
    "a window in every layer": ["sliding_attention"] * LAYERS,
    "a window in the last layer": ["full_attention", "sliding_attention"],
}


def cases():
    """Name, and the fields of config.json that differ from the golden model's, as transformers 4 and as 5 write them."""
    for name, scaling in SCALINGS.items():
        more = {"max_position_embeddings": 32 if scaling and scaling["rope_type"] == "dynamic" else 64}
        older = {**more, "rope_theta": THETA, "rope_scaling": scaling}
        newer = {**more, "rope_parameters": {"rope_theta": THETA, **(scaling or {"rope_type": "default"})}}
        yield name, [older, newer]
    for name, layer_types in WINDOWS.items():
        yield name, [{"rope_parameters": {"rope_theta": THETA, "rope_type": "default"}, "use_sliding_window": True,
                      "sliding_window": 7, "layer_types": layer_types,
                      "max_window_layers": layer_types.count("full_attention")}]


def main():
    golden, out = map(pathlib.Path, sys.argv[1:])
    base = json.loads((golden / "untied" / "config.json").read_text())
    for field in ("rope_theta", "rope_parameters", "transformers_version"):
        base.pop(field, None)
    weights = load_file(golden / "untied" / "model.safetensors")
    tokens = [(37 * i + 11) % base["vocab_size"] for i in range(LENGTH)]
    rows = []
    for name, forms in cases():
        results = []
        for form in forms:
            config = transformers.Qwen3Config.from_dict({**base, **form})
            config._attn_implementation = "eager"
            model = transformers.Qwen3ForCausalLM(config).float().eval()
            model.load_state_dict(weights)
            with torch.no_grad():
                results.append(model(torch.tensor([tokens]), use_cache=False).logits[0])
        assert all(torch.equal(results[0], other) for other in results), name
        rows.append({"name": name, "configs": forms,
                     "logits": {str(p): [float(f"{x:.9g}") for x in results[0][p].tolist()] for p in POSITIONS}})
        print(name, results[0][POSITIONS[-1]][:3].tolist())
    assert len({json.dumps(row["logits"]) for row in rows}) == len(rows), "two cases have the same logits"
    lines = ",\n".join(json.dumps(row) for row in rows)
    out.write_text(f'{{"transformers": "{transformers.__version__}", "torch": "{torch.__version__}",\n'
                   f'"tokens": {json.dumps(tokens)},\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
