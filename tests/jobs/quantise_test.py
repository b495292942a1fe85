"""convert quantise as a user runs it: bitsandbytes' codes (tests/golden/nf4.json, by interop/check_nf4.py), the rest bit for bit, the
hash by which adapters name their base, and what it says and returns where it cannot."""
import array
import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import unittest

from safetensors_files import read_safetensors, write_safetensors
from train_test import BAD_FILE, BAD_OPTIONS, BIN, CANNOT_WRITE, Case, events

GOLDEN = pathlib.Path(os.environ["TESSERA_GOLDEN"])
STATE = ".quant_state.bitsandbytes__nf4"


def read_folder(folder):
    tensors = {}
    for file in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        tensors.update(read_safetensors(file))
    return tensors


def f32(number):
    return struct.unpack("<f", struct.pack("<f", number))[0]


def floats(content):
    return array.array("f", content)


def widened(tensors, name):
    """The matrix that the codes stand for, in f32 as kernels/nf4.h says."""
    values, scale_map = floats(tensors[name + ".quant_map"][2]), floats(tensors[name + ".nested_quant_map"][2])
    scales, state = floats(tensors[name + ".nested_absmax"][2]), json.loads(tensors[name + STATE][2])
    absmax = [f32(f32(scale_map[code] * scales[block // 256]) + state["nested_offset"])
              for block, code in enumerate(tensors[name + ".absmax"][2])]
    codes = [code for byte in tensors[name][2] for code in (byte >> 4, byte & 15)]
    numbers = array.array("f", [values[code] * absmax[at // 64] for at, code in enumerate(codes)])
    return "F32", tuple(state["shape"]), numbers.tobytes()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def convert(*arguments, code=0):
    result = subprocess.run([BIN / "convert", *map(str, arguments)], capture_output=True, text=True, check=False)
    if result.returncode != code:
        raise AssertionError(f"{arguments}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result


def run_generate(*arguments):
    result = subprocess.run([BIN / "generate", *map(str, arguments)], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{arguments}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


class Quantise(Case):
    def quantised(self, name, source, *extra):
        out = self.folder / name
        shown = convert("quantise", source, out, *extra)
        self.assertEqual(shown.stderr, "")
        return out, shown.stdout

    def not_quantised(self, code, sentence, *arguments):
        stderr = convert("quantise", *arguments, code=code).stderr
        self.assertEqual(len(stderr.splitlines()), 1, stderr)
        self.assertTrue(stderr.startswith("convert: "), stderr)
        self.assertIn(sentence, stderr)

    def test_golden_models_have_the_codes_of_bitsandbytes_and_the_rest_as_it_was(self):
        recorded = json.loads((GOLDEN / "nf4.json").read_text())["tensors"]
        for variant in "tied", "untied":
            out, shown = self.quantised(variant, GOLDEN / variant)
            self.assertRegex(shown, r"^quantised \S+ to .*: 14 matrices of 61440 elements in 4 bits, the rest as F32, ")
            before, after = read_folder(GOLDEN / variant), read_folder(out)
            packed = {name for name in before if name + STATE in after}
            self.assertEqual({f"{variant}/{name}" for name in packed}, {key for key in recorded if key.startswith(variant + "/")})
            for name, (kind, shape, content) in before.items():
                if name not in packed:
                    self.assertEqual(after[name], (kind, shape, content))
                    continue
                values = array.array("f", content)
                absmax = [max(map(abs, values[at:at + 64])) for at in range(0, len(values), 64)]
                wanted = recorded[f"{variant}/{name}"]
                self.assertEqual(sha256(array.array("f", absmax).tobytes()), wanted["absmax"])
                self.assertEqual(sha256(after[name][2]), wanted["codes"], name)
                state = json.loads(after[name + STATE][2])
                self.assertEqual((state["shape"], state["dtype"]), (list(shape), "float32"))
                mean = state["nested_offset"]
                self.assertEqual(mean, f32(sum(absmax) / len(absmax)))
                scale = max(abs(f32(value - mean)) for value in absmax)
                self.assertEqual(list(array.array("f", after[name + ".nested_absmax"][2])), [scale])

    def test_what_is_in_bf16_stays_so_and_files_are_cut(self):
        source = self.folder / "bf16"
        convert("import", GOLDEN / "untied", self.folder / "imported")
        convert("export", self.folder / "imported", source)
        (source / "tokenizer.json").write_text("{}")
        out, shown = self.quantised("cut", source, "--max-shard-bytes", "20kB")
        self.assertIn("the rest as BF16", shown)
        self.assertIn("with 2 files of the model", shown)
        self.assertEqual((out / "tokenizer.json").read_text(), "{}")
        self.assertGreater(len(list(out.glob("model-*.safetensors"))), 2)
        before, after = read_folder(source), read_folder(out)
        self.assertEqual(set(json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]), set(after))
        for name, content in before.items():
            if name + STATE not in after:
                self.assertEqual(after[name], content)
        single, _ = self.quantised("single", source)
        self.assertEqual(read_folder(single), after)
        config = json.loads((out / "config.json").read_text())
        self.assertEqual((config["torch_dtype"], config["quantization_config"]["load_in_4bit"]), ("bfloat16", True))
        imported, _ = self.quantised("of a run", self.folder / "imported")  # f32 in any case
        self.assertEqual({name for name in read_folder(imported)}, set(after))

    def test_the_hash_is_that_by_which_adapters_name_their_base(self):
        base = self.out("base")
        self.succeed(2, base, "--steps", 2)
        out, _ = self.quantised("base-nf4", base)
        adapted = self.out("adapted")
        self.succeed(1, adapted, "--steps", 1, "--init", base, "--lora", 2)
        (configuration,) = events(adapted, "configuration")
        self.assertEqual(json.loads((out / "config.json").read_text())["tessera_base_hash"],
                         configuration["adapters"]["base_model_hash"])
        run_generate(adapted, "--base", out, "--prompt-ids", "116,104,101", "--max-tokens", 4)
        self.not_quantised(BAD_OPTIONS, "holds adapters, not a model", adapted, self.folder / "x")

    def test_a_base_in_4_bits_is_read_as_the_model_that_its_codes_stand_for(self):
        out, _ = self.quantised("packed", GOLDEN / "tied")
        tensors = read_folder(out)
        plain = self.folder / "widened"
        plain.mkdir()
        shutil.copy(GOLDEN / "tied/config.json", plain)
        write_safetensors(plain / "model.safetensors", {
            name: widened(tensors, name) if name + STATE in tensors else tensors[name] for name in read_folder(GOLDEN / "tied")})
        texts, merged = set(), []
        for base in out, plain:
            ids = ["--prompt-ids", "3,1,4,1,5", "--max-tokens", 12, "--temperature", 0]
            texts.add((run_generate(base, *ids), run_generate(GOLDEN / "peft", "--base", base, *ids)))
            merged.append(self.folder / f"{base.name}-merged")
            convert("merge", GOLDEN / "peft", merged[-1], "--base", base, "--dtype", "f32")
        self.assertEqual(len(texts), 1, texts)
        self.assertEqual(read_folder(merged[0]), read_folder(merged[1]))
        self.assertNotIn("quantization_config", json.loads((merged[0] / "config.json").read_text()))

    def test_what_cannot_be_quantised_is_refused_and_nothing_is_left(self):
        out, _ = self.quantised("done", GOLDEN / "tied")
        again = self.folder / "again"
        self.not_quantised(BAD_OPTIONS, "is in 4 bits already: give the model that it was made of", out, again)
        self.assertIn("is in 4 bits: `train --init ", convert("import", out, again, code=BAD_OPTIONS).stderr)
        self.not_quantised(BAD_OPTIONS, "exists and is not empty: give another folder", GOLDEN / "tied", out)
        self.not_quantised(BAD_FILE, "neither a Hugging Face folder with config.json nor a run or a step", self.folder, again)
        other = self.folder / "other"
        shutil.copytree(GOLDEN / "tied", other)
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
        self.not_quantised(BAD_OPTIONS, "quantization_config is ", other, again)
        (other / "config.json").write_text(json.dumps(config | {"intermediate_size": 97}))
        self.not_quantised(BAD_FILE, "has the shape", other, again)
        (other / "config.json").write_text(json.dumps(config))
        tensors = read_safetensors(other / "model.safetensors")
        name = "model.layers.1.mlp.up_proj.weight"
        kind, shape, content = tensors[name]
        tensors[name] = kind, shape, content[:4 * 77] + struct.pack("<f", float("nan")) + content[4 * 78:]
        (other / "model.safetensors").unlink()
        write_safetensors(other / "model.safetensors", tensors)
        self.not_quantised(BAD_FILE, f"{name}: element 77 is nan, and 4-bit codes stand for finite numbers only", other, again)
        self.assertFalse(again.exists())
        self.assertFalse((self.folder / "again.partial").exists())
        mine = self.folder / "again.partial"
        mine.mkdir()
        (mine / "notes").write_text("x")
        self.not_quantised(CANNOT_WRITE, "is not an unfinished export", GOLDEN / "tied", again)
        self.assertEqual((mine / "notes").read_text(), "x")
        for extra in (["--dtype", "f32"], ["--like", other], ["--adapter"]):
            self.not_quantised(BAD_OPTIONS, f"{extra[0]} is for export: quantise keeps what is not in 4 bits as it is",
                         GOLDEN / "tied", self.folder / "x", *extra)
        self.not_quantised(BAD_OPTIONS, "--base is for merge", GOLDEN / "tied", self.folder / "x", "--base", other)
        self.not_quantised(BAD_OPTIONS, "--resize-vocab is for import", GOLDEN / "tied", self.folder / "x", "--resize-vocab", 200)


if __name__ == "__main__":
    unittest.main()
