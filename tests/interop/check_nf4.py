#!/usr/bin/env python3
"""`convert quantise` beside bitsandbytes: codes, scales and files, on the golden Qwen3 and on random models with bf16 weights and
sizes that cut blocks. Needs torch, transformers, accelerate and bitsandbytes (README.md beside this); where they
are not there it ends with 77, or with --venv makes a throw-away environment from PyPI. --write records what
tests/jobs/quantise_test.py compares with."""
import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from throw_away_venv import leave_without_packages, require

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
STATE = ".quant_state.bitsandbytes__nf4"
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes longer than what is compared
SIZES = {"small": (36, 50, 3, 1, 12), "large": (512, 1400, 8, 2, 64)}


try:
    import bitsandbytes
    import bitsandbytes.functional as bnb
    from bitsandbytes.backends.default import ops as any_device
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    if __name__ == "__main__":
        leave_without_packages(error, __file__)
    raise


def convert(binaries, *words, status=0):
    result = subprocess.run([binaries / "convert", *map(str, words)], capture_output=True, text=True, check=False)
    require(result.returncode == status, f"convert {words}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout + result.stderr


def made_up(folder, hidden, intermediate, heads, kv_heads, head_dim):
    config = transformers.Qwen3Config(vocab_size=64, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=2,
                                      num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
                                      tie_word_embeddings=False)
    torch.manual_seed(hidden)
    model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            if parameter.dim() == 2:  # normal numbers, and every third matrix with a few large ones
                parameter.copy_(torch.randn(parameter.shape) * 0.02 if number % 3
                                else torch.distributions.StudentT(3.0).sample(parameter.shape) * 0.02)
    model.save_pretrained(folder)
    return folder


def source_tensors(folder):
    return {name: tensor for file in folder.glob("model*.safetensors") for name, tensor in load_file(file).items()}


def unpacked(codes):
    return torch.stack([codes >> 4, codes & 15], dim=-1).reshape(-1)


def compare_matrix(name, ours, source):
    """ours: the tensors of the folder; source: the matrix. Returns what differs from the table of bitsandbytes' CPU kernel."""
    state = json.loads(bytes(ours[name + STATE].tolist()))
    codes, theirs = bnb.quantize_4bit(source, blocksize=64, compress_statistics=False, quant_type="nf4")
    require(torch.equal(ours[name].reshape(-1), codes.reshape(-1)),
            f"{name}: {(unpacked(ours[name]) != unpacked(codes)).sum()} of {source.numel()} codes are other ones")
    mean = torch.tensor(state["nested_offset"], dtype=torch.float32)
    require(abs(float(mean) - float(theirs.absmax.double().mean())) <= 6e-8 * float(mean), f"{name}: mean {mean}")
    centred = theirs.absmax - mean
    # bitsandbytes' kernel of f32 on a CPU looks codes up in a table of 65,536 steps; its path for
    # other types compares with every number, as GPUs do
    exact, scales = torch.ops.bitsandbytes.quantize_blockwise(centred.double(), bnb.create_dynamic_map(), 256)
    require(torch.equal(ours[name + ".nested_absmax"], scales), f"{name}: second-level scales")
    # equal scales of equal numbers minus the mean are equal numbers: absmax is compared by them
    require(torch.equal(ours[name + ".absmax"], exact.reshape(-1)), f"{name}: second-level codes")
    require(torch.equal(ours[name + ".nested_quant_map"], bnb.create_dynamic_map()), f"{name}: map of scale codes")
    require(torch.equal(ours[name + ".quant_map"], bnb.get_4bit_type("nf4", device="cpu")), f"{name}: values of codes")
    require(state["shape"] == list(source.shape) and state["quant_type"] == "nf4", f"{name}: {state}")
    table, _ = bnb.quantize_blockwise(centred, blocksize=256)
    step = (bnb.create_dynamic_map()[table.long()] - bnb.create_dynamic_map()[exact.long()]).abs().max()
    require(step <= 0.015, f"{name}: {step}")  # neighbours
    return int((table != exact).sum()), table.numel(), codes, theirs.absmax


def state_of(ours, name):
    parts = {key[len(name) + 1:]: value for key, value in ours.items() if key.startswith(name + ".")}
    return bnb.QuantState.from_dict(parts, device=torch.device("cpu"))


def as_the_layer_has_it(ours, name):
    """The matrix as bitsandbytes' layer on a CPU widens it, in f32. Where a block goes over the end of a row, version 0.50 takes scales of
    other blocks."""
    state = state_of(ours, name)
    state.dtype = torch.float32
    return bnb.dequantize_4bit(ours[name], state)


def widened(ours, name):
    """The matrix that the codes stand for, by bitsandbytes' implementation for any device."""
    state = state_of(ours, name)
    absmax = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset
    matrix = any_device._dequantize_4bit_compute(ours[name].reshape(-1), absmax, state.code, 64, state.shape, torch.float32)
    require(state.shape[-1] % 64 != 0 or torch.equal(matrix, as_the_layer_has_it(ours, name)), f"{name}: bitsandbytes has two matrices")
    return matrix


def compare_logits(folder, source, ours, dtype):
    """transformers with bitsandbytes opens the folder, and computes what the widened matrices do."""
    # in training mode, for bitsandbytes' layout for inference on CPUs takes widths of whole blocks alone; there is no dropout
    packed = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).train()
    kinds = {type(module) for module in packed.model.layers.modules() if isinstance(module, torch.nn.Linear)}
    require(kinds == {bitsandbytes.nn.Linear4bit}, f"{folder}: layers are {kinds}")
    plain = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype).train()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if name + STATE in ours:
                parameter.copy_(as_the_layer_has_it(ours, name))
        ids = torch.arange(24).reshape(2, 12)
        got, wanted = packed(ids).logits.float(), plain(ids).logits.float()
    error = float((got - wanted).abs().max() / wanted.abs().max())
    require(error < (1e-5 if dtype == torch.float32 else 2e-2), f"{folder}: logits differ by {error}")
    return error


def zero_adapters(folder, source):
    """PEFT's folder of adapters that change nothing, beside q."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"], "bias": "none", "fan_in_fan_out": False}))
    tensors = {}
    for name, tensor in source_tensors(source).items():
        if ".q_proj.weight" in name:
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[prefix + ".lora_A.weight"] = torch.ones(1, tensor.shape[1])
            tensors[prefix + ".lora_B.weight"] = torch.zeros(tensor.shape[0], 1)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def read_theirs(binaries, source, scratch):
    """A folder that transformers quantised and saved is read here as bitsandbytes reads it."""
    dtype = next(iter(source_tensors(source).values())).dtype
    settings = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    folder, merged = scratch / f"{source.name}-theirs", scratch / f"{source.name}-merged"
    transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype, quantization_config=settings).save_pretrained(folder)
    convert(binaries, "merge", zero_adapters(scratch / f"{source.name}-adapters", source), merged, "--base", folder, "--dtype", "f32")
    theirs, ours = source_tensors(folder), source_tensors(merged)
    for name, tensor in ours.items():
        wanted = widened(theirs, name) if name + STATE in theirs else theirs[name].float()
        require(torch.equal(tensor, wanted), f"{name} of transformers' folder: {(tensor != wanted).sum()} numbers are other ones")


def check(binaries, source, scratch, record):
    folder = scratch / f"{source.name}-nf4"
    convert(binaries, "quantise", source, folder)
    ours, sources = source_tensors(folder), source_tensors(source)
    others = total = 0
    for name, tensor in sources.items():
        if name + STATE not in ours:
            require(torch.equal(ours[name], tensor), f"{name} is another one")
            require("_proj" not in name, f"{name} is not packed")
            continue
        differing, count, codes, absmax = compare_matrix(name, ours, tensor)
        others, total = others + differing, total + count
        record[f"{source.name}/{name}"] = {
            "codes": hashlib.sha256(codes.numpy().tobytes()).hexdigest(),
            "absmax": hashlib.sha256(absmax.numpy().tobytes()).hexdigest()}
    require(total > 0, f"{source}: nothing is packed")
    dtype = next(iter(sources.values())).dtype
    error = compare_logits(folder, source, ours, dtype)
    read_theirs(binaries, source, scratch)
    print(f"{source.name}: codes, absmax and scales of {sum(key.endswith(STATE) for key in ours)} matrices are equal "
          f"({others} of {total} scale codes have a neighbour's in bitsandbytes' table), "
          f"transformers' logits within {error:.1e}, its folder is read as by itself", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--write", action="store_true", help="renew tests/golden/nf4.json")
    parser.add_argument("--venv", action="store_true", help="a throw-away environment where the packages are missing")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory(prefix="tessera nf4 ") as folder:
        scratch = pathlib.Path(folder)
        record = {}
        for variant in "tied", "untied":
            check(arguments.bin, GOLDEN / variant, scratch, record)
        for name, sizes in SIZES.items():
            check(arguments.bin, made_up(scratch / name, *sizes), scratch, {})
    kept = GOLDEN / "nf4.json"
    if arguments.write:
        kept.write_text(json.dumps({"bitsandbytes": bitsandbytes.__version__, "tensors": record}, indent=1) + "\n")
    require(json.loads(kept.read_text())["tensors"] == record, f"{kept} has other hashes: --write renews it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
