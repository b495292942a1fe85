#!/usr/bin/env python3
"""Adapters of PEFT through `train --init-adapter`, `convert export --adapter`, `convert merge` and `generate --base`, and back,
on the golden Qwen3 in f32. Needs torch, transformers and peft (README.md beside this); where they are not there it ends with
77, or with --venv makes a throw-away environment from PyPI. --write records what tests/jobs/adapters_test.py compares with."""
import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

from throw_away_venv import leave_without_packages, require

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
SEQUENCES, LENGTH, STEPS, LR, DECAY, CLIP = 4, 32, 5, 1e-2, 0.1, 1.0
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# What a field of LoraConfig may be beside its default, where its default does not tell.
OTHER_VALUES = {"peft_type": ["IA3", "ADALORA"], "init_lora_weights": [False, "gaussian", "orthogonal", "eva", "pissa", "pissa_niter_4", "olora", "corda",
                                                                     "loftq", "lora_ga", "mica"],
                "bias": ["all", "lora_only"], "megatron_config": [{"tensor_model_parallel_size": 2}], "layers_pattern": ["layers"],
                "target_modules": [".*q_proj", ["q_proj", "lm_head"], ["layers.0.self_attn.q_proj"]], "layers_to_transform": [0, [0]],
                "exclude_modules": [["v_proj"], "v_proj"], "task_type": [None, "FEATURE_EXTRACTION"],
                "layer_replication": [[[0, 1], [0, 2]]], "loftq_config": [{"loftq_bits": 4}], "rank_pattern": [{"q_proj": 2}],
                "alpha_pattern": [{"q_proj": 2}], "trainable_token_indices": [[1], {"embed_tokens": [1]}]}
# Fields that are read and take part in what is computed: CASES compare them.
TAKEN = {"r", "lora_alpha", "target_modules", "use_rslora"}
CASES = [("tied", dict(r=4, lora_alpha=8, target_modules=ALL)),
         ("untied", dict(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj"], use_rslora=True)),
         ("tied", dict(r=8, lora_alpha=16, target_modules=["gate_proj", "up_proj", "down_proj", "k_proj"]))]


try:
    import numpy
    import peft
    import torch
    import transformers
except ImportError as error:
    if __name__ == "__main__":
        leave_without_packages(error, __file__)
    raise


def run(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    require(result.returncode == 0, f"{command}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def base_of(variant):
    return transformers.AutoModelForCausalLM.from_pretrained(GOLDEN / variant, dtype=torch.float32)


def adapted(variant, folder):
    return peft.PeftModel.from_pretrained(base_of(variant), folder).eval()


def loss_of(model, ids, labels):
    logits = model(input_ids=ids).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def train_peft(model, ids, labels):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model, ids, labels)
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def train_tessera(binaries, variant, adapter, tokens, out, steps=STEPS):
    """A corpus of exactly one batch, so that every step takes all of it, in whatever order."""
    run("mpirun", "-np", 2, binaries / "train", "--init", GOLDEN / variant, "--init-adapter", adapter, "--data", tokens,
        "--eval-data", tokens, "--eval-sequences", 0, "--seq", LENGTH, "--micro-batch", 1, "--global-batch", SEQUENCES,
        "--steps", steps, "--lr", LR, "--schedule", "constant", "--warmup", 0, "--weight-decay", DECAY, "--clip", CLIP,
        "--out", out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row], [row["eval_loss"] for row in rows if "eval_loss" in row][-1]


def random_b(model):
    generator = torch.Generator().manual_seed(11)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1


def check(binaries, variant, settings, scratch, record):
    torch.manual_seed(5)
    model = peft.get_peft_model(base_of(variant), peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    random_b(model)
    first = scratch / "first"
    model.save_pretrained(first)
    vocabulary = model.config.vocab_size
    stream = torch.randint(vocabulary, (SEQUENCES * LENGTH + 1,), generator=torch.Generator().manual_seed(7))
    numpy.save(scratch / "ids.npy", stream.numpy())
    run(binaries / "tokenize", "--vocab", vocabulary, "--out", scratch / "tokens.h5", scratch / "ids.npy")
    ids, labels = stream[:-1].reshape(SEQUENCES, LENGTH), stream[1:].reshape(SEQUENCES, LENGTH)
    theirs = train_peft(model, ids, labels)
    model.save_pretrained(scratch / "theirs")
    model.eval()

    ours, evaluated = train_tessera(binaries, variant, first, scratch / "tokens.h5", scratch / "run")
    worst = max(abs(a - b) for a, b in zip(ours, theirs))
    require(len(ours) == STEPS and worst < 1e-5, f"losses {ours} here, {theirs} of PEFT")

    # What is exported gives PEFT the same logits as the merged model, and the loss that the run ended with.
    run(binaries / "convert", "export", scratch / "run", scratch / "exported", "--adapter")
    run(binaries / "convert", "merge", scratch / "run", scratch / "merged", "--base", GOLDEN / variant, "--dtype", "f32")
    with torch.no_grad():
        exported = adapted(variant, scratch / "exported")
        loss = loss_of(exported, ids, labels).item()
        require(abs(loss - evaluated) < 1e-6, f"loss {evaluated} here, {loss} in PEFT")
        merged = transformers.AutoModelForCausalLM.from_pretrained(scratch / "merged", dtype=torch.float32).eval()
        logits = exported(input_ids=ids).logits
        differs = (logits - merged(input_ids=ids).logits).abs().max().item()
        require(differs < 1e-6 * max(1.0, logits.abs().max().item()) * 4, f"merged logits differ by {differs}")
        after = loss_of(model, ids, labels).item()
        greedy = model.generate(input_ids=ids[:1, :8], max_new_tokens=8, do_sample=False)[0, 8:].tolist()
    # What PEFT trained is read back.
    again, _ = train_tessera(binaries, variant, scratch / "theirs", scratch / "tokens.h5", scratch / "again", steps=1)
    require(abs(again[0] - after) < 2e-6, f"loss {again[0]} here, {after} of PEFT's folder")
    text = run(binaries / "generate", scratch / "theirs", "--base", GOLDEN / variant, "--prompt-ids",
               ",".join(map(str, ids[0, :8].tolist())), "--max-tokens", 8, "--temperature", 0, "--ids")
    written = [int(word) for word in text.replace("\n", ",").split(",") if word.strip()][-len(greedy):]
    require(written == greedy, f"generate wrote {written}, PEFT {greedy}")
    if record:
        folder = GOLDEN / "peft"
        folder.mkdir(exist_ok=True)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(first / name, folder / name)
        config = json.loads((folder / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = "tests/golden/tied"
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
        (folder / "expected.json").write_text(json.dumps(
            {"peft": peft.__version__, "ids": stream.tolist(), "losses": theirs, "greedy": greedy,
             "loss_after": after}) + "\n")
    print(f"{variant}, {settings['target_modules']}: losses within {worst:.1e}, exported loss within {abs(loss - evaluated):.1e}, "
          f"merged logits within {differs:.1e}", flush=True)


def other_values(field):
    default = field.default_factory() if field.default is dataclasses.MISSING else field.default
    if field.name in OTHER_VALUES:
        return OTHER_VALUES[field.name]
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, (int, float)):
        return [default + 0.5 if isinstance(default, float) else default + 1]
    return ["another"] if isinstance(default, str) else [{"a": 1}, ["a"], "a", True]


def check_fields(binaries, scratch, record):
    """Each field of PEFT's LoraConfig, at each other value: refused by name, or read as CASES compare it, or it changes nothing."""
    model = peft.get_peft_model(base_of("tied"), peft.LoraConfig(task_type="CAUSAL_LM", **CASES[0][1]))
    random_b(model)
    plain = scratch / "plain"
    model.save_pretrained(plain)
    config = json.loads((plain / "adapter_config.json").read_text())
    ids = torch.arange(64).reshape(2, 32)
    with torch.no_grad():
        expected = adapted("tied", plain)(input_ids=ids).logits
    outcome = {}
    for field in dataclasses.fields(peft.LoraConfig):
        for value in other_values(field):
            folder = scratch / "other"
            shutil.copytree(plain, folder, dirs_exist_ok=True)
            (folder / "adapter_config.json").write_text(json.dumps({**config, field.name: value}))
            result = subprocess.run([binaries / "inspect", folder], capture_output=True, text=True, check=False)
            key = f"{field.name} {json.dumps(value)}"
            if result.returncode == 2:
                require(field.name in result.stderr, f"{key} is refused without its name: {result.stderr}")
                outcome[key] = "refused"
                continue
            require(result.returncode == 0, f"{key}: {result.returncode} {result.stderr}")
            outcome[key] = "taken" if field.name in TAKEN else "changes nothing"
            if field.name in TAKEN:
                continue
            try:
                other = adapted("tied", folder)
            except Exception as error:  # of whatever kind: PEFT does not load it itself
                require("init_lora_weights" in key or "_config" in key or "task_type" in key, f"{key}: {error!r} of PEFT, and it is read here")
                continue
            with torch.no_grad():
                require(torch.equal(other(input_ids=ids).logits, expected), f"{key} changes the logits, and is read here as if it did not")
    refused = sum(how == "refused" for how in outcome.values())
    if record:
        (GOLDEN / "peft/fields.json").write_text(json.dumps({"peft": peft.__version__, "values": outcome}, indent=0) + "\n")
    print(f"{len(outcome)} other values of {len(dataclasses.fields(peft.LoraConfig))} fields of LoraConfig: {refused} are refused by name, "
          f"{len(outcome) - refused} read as PEFT reads them", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--write", action="store_true", help="renew tests/golden/peft from the first case")
    parser.add_argument("--venv", action="store_true", help="a throw-away environment where the packages are missing")
    arguments = parser.parse_args()
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for number, (variant, settings) in enumerate(CASES):
        scratch = pathlib.Path(tempfile.mkdtemp(prefix="tessera-peft-"))
        try:
            check(arguments.bin, variant, settings, scratch, arguments.write and number == 0)
        finally:
            shutil.rmtree(scratch)
    with tempfile.TemporaryDirectory(prefix="tessera-peft-") as folder:
        check_fields(arguments.bin, pathlib.Path(folder), arguments.write)
    print(f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}: all equal")


if __name__ == "__main__":
    main()
