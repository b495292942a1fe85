#!/usr/bin/env python3
"""Writes tests/golden/documents.json: five AdamW steps of transformers in f32 on packed documents, which 4-D masks keep apart and
whose positions restart, from the weights of tests/golden/tied and untied, for golden_test.cpp. Needs torch and transformers 5.

    python3 make_golden_documents.py GOLDEN_FOLDER OUT_FILE
"""
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file

LENGTH = 16
DOCUMENTS = [[16], [1, 15], [5, 6, 5], [9, 7], [1] * 16, [3, 12, 1]]  # lengths, by sequence
STEPS = 5
IGNORED = -100


def batch(vocab):
    tokens, targets, positions = [], [], []
    mask = torch.zeros(len(DOCUMENTS), 1, LENGTH, LENGTH, dtype=torch.bool)
    for s, lengths in enumerate(DOCUMENTS):
        assert sum(lengths) == LENGTH
        begin = 0
        for length in lengths:
            mask[s, 0, begin:begin + length, begin:begin + length] = torch.ones(length, length).tril().bool()
            begin += length
        positions.append([t for length in lengths for t in range(length)])
        numbers = [s * LENGTH + t for t in range(LENGTH)]
        tokens.append([(37 * n + 11) % vocab for n in numbers])
        targets.append([IGNORED if n % 7 == 3 else (53 * n + 5) % vocab for n in numbers])
    return torch.tensor(tokens), torch.tensor(targets), torch.tensor(positions), mask


def steps(golden, variant):
    config = transformers.Qwen3Config.from_pretrained(golden / variant)
    config._attn_implementation = "eager"
    model = transformers.Qwen3ForCausalLM(config).float().train()
    missing = model.load_state_dict(load_file(golden / variant / "model.safetensors"), strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    model.tie_weights()
    tokens, targets, positions, mask = batch(config.vocab_size)
    additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses, norms = [], []
    for _ in range(STEPS):
        logits = model(tokens, attention_mask=additive, position_ids=positions, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "grad_norms": norms}


def main():
    golden, out = map(pathlib.Path, sys.argv[1:])
    tokens, targets, _, _ = batch(json.loads((golden / "tied" / "config.json").read_text())["vocab_size"])
    lines = [f'"transformers": "{transformers.__version__}", "torch": "{torch.__version__}"',
             f'"length": {LENGTH}, "documents": {json.dumps(DOCUMENTS)}', f'"tokens": {json.dumps(tokens.flatten().tolist())}',
             f'"targets": {json.dumps(targets.flatten().tolist())}']
    for variant in ("tied", "untied"):
        row = steps(golden, variant)
        print(variant, row)
        lines.append(f'"{variant}": {json.dumps(row)}')
    out.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
