"""train --lora as a user runs it: bit-identical on any number of ranks, runs that continue, files that go to PEFT and back,
a base that is checked, and what is refused. What PEFT itself makes of the same: tests/golden/peft, by interop/check_peft.py."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import unittest

from failures_test import FailureCase
from safetensors_files import read_safetensors, write_safetensors
from train_test import BAD_FILE, BAD_OPTIONS, BIN, Case, events, metrics, state_hash, train, with_small

GOLDEN = pathlib.Path(os.environ["TESSERA_GOLDEN"])
LORA = ["--lora", 4, "--lora-alpha", 8]


def run(*arguments, code=0):
    result = subprocess.run([str(word) for word in arguments], capture_output=True, text=True, check=False)
    if result.returncode != code:
        raise AssertionError(f"{arguments}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result


def convert(*arguments, code=0):
    return run(BIN / "convert", *arguments, code=code)


def write_npy(file, numbers):
    header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({len(numbers)},), }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    pathlib.Path(file).write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
                                   + struct.pack(f"<{len(numbers)}i", *numbers))


class AdapterCase(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.base = cls.folder / "base"  # a whole model of a few steps
        result = train(2, "--data", cls.corpus, "--out", cls.base, *with_small("--steps", 3))
        assert result.returncode == 0, result.stdout + result.stderr


class Bits(AdapterCase):
    def test_any_ranks_pages_levels_and_places_of_the_base_have_the_same_bits(self):
        paged = ["--resident-bytes", "none", "--page-bytes", "64KiB"]
        expected = None
        for ranks, extra in [(1, []), (2, ["--zero", 3, "--recompute", "block"]), (3, paged + ["--recompute", "mlp:1"]),
                             (8, ["--params", "host", "--batched-forward", 2, *paged])]:
            out = self.out(f"lora {ranks}")
            result = self.succeed(ranks, out, "--steps", 6, "--init", self.base, *LORA, *extra)
            got = metrics(out), state_hash(out)
            expected = expected or got
            self.assertEqual(got, expected, f"{ranks} ranks {extra}")
        self.assertIn("adapters of rank 4, alpha 8, beside all linear layers: ", result.stdout)
        self.assertLess(float(expected[0][-1][1]), float(expected[0][0][1]))
        (configuration,) = events(out, "configuration")
        self.assertLess(configuration["trained_parameters"], configuration["parameters"] // 2)
        self.assertEqual(configuration["adapters"]["targets"], "all")

    def test_a_run_continues_on_other_ranks_beside_the_same_base_alone(self):
        whole = self.out("whole")
        self.succeed(1, whole, "--steps", 6, "--init", self.base, *LORA)
        parts = self.out("parts")
        self.succeed(3, parts, "--steps", 3, "--init", self.base, *LORA, "--schedule-steps", 6, "--warmup", 0)
        rest = ["--steps", 6, *LORA, "--schedule-steps", 6, "--warmup", 0]
        result = self.succeed(2, parts, "--init", self.base, *rest, "--zero", 3, "--lora-init", "gaussian")
        self.assertIn("continuing after step 3", result.stdout)
        self.assertIn("--lora-init gaussian was for step 1: the adapters began as kaiming", result.stdout)
        self.assertEqual((metrics(parts), state_hash(parts)), (metrics(whole), state_hash(whole)))
        other = self.out("other base")
        self.succeed(1, other, "--steps", 4)
        again = self.out("again")
        shutil.copytree(parts, again)
        for extra, sentence in ((["--init", other], "holds adapters of another base (hash "),
                                ([], "holds adapters of another base (hash ")):
            self.refused(2, BAD_OPTIONS, sentence, "--data", self.corpus, "--out", again, *with_small(*rest, *extra))
        for options, sentence in ((["--lora", 8], "holds adapters of rank 4, alpha 8, beside all linear layers, and this run "
                                                  "trains adapters of rank 8, alpha 16, beside all linear layers"),
                                  ([], "and this run trains the whole model: give the same --lora")):
            self.refused(2, BAD_OPTIONS, sentence, "--data", self.corpus, "--out", again,
                         *with_small("--steps", 7, "--init", self.base, *options))
        self.refused(2, BAD_OPTIONS, "holds a whole model, and this run trains adapters (--lora)", "--data", self.corpus,
                     "--out", other, *with_small("--steps", 7, "--init", self.base, *LORA))

    def test_embeddings_presets_samples_documents_and_evaluations_go_with_adapters(self):
        expected = None
        for ranks in 1, 3:
            out = self.out(f"embeddings {ranks}")
            result = self.succeed(ranks, out, "--steps", 4, *LORA, "--train-embeddings", "--rslora", "--lora-targets",
                                  "attention", "--lora-init", "gaussian", "--documents", "separate", "--eval-data",
                                  self.corpus, "--eval-sequences", 4, "--sample-every", 2, "--sample-prompt", "the",
                                  "--sample-tokens", 8, "--sample-prompt", "a second prompt, of two tiles",
                                  *(["--zero", 3] if ranks == 3 else []))
            got = metrics(out), state_hash(out), [row["text"] for row in events(out, "sample")]
            expected = expected or got
            self.assertEqual(got, expected)
        self.assertEqual(len(expected[2]), 4)
        self.assertIn("rank 4, alpha 8 rank-stabilised, beside attention, with embedding and LM head", result.stdout)
        shown = run(BIN / "inspect", out).stdout
        self.assertIn("adapters of rank 4, alpha 8 rank-stabilised, beside attention, with embedding and LM head", shown)
        self.assertIn("block.0.attention.q.lora_a", shown)
        convert("export", out, self.out("no peft"), "--adapter", code=BAD_OPTIONS)
        convert("merge", out, self.out("merged"), "--base", self.base, code=BAD_OPTIONS)  # another base

    def test_the_plan_has_little_memory_for_what_is_trained(self):
        def plan(*extra):
            words = ["--plan", "--json", "--device", "cuda", "--model", "qwen3-8b", "--seq", 2048, "--ranks", 1, *extra]
            return json.loads(train(1, *words).stdout)
        whole, adapted = plan(), plan("--lora", 16)
        self.assertEqual(adapted["parameters"], whole["parameters"])
        self.assertEqual(adapted["trained_parameters"], 36 * 16 * (4096 + 4096 + 2 * (4096 + 1024) + 4096 + 4096
                                                                   + 3 * (4096 + 12288)))
        lines = {line["name"]: line["bytes"] for line in adapted["lines"]}
        self.assertEqual(lines["adapters"], 2 * adapted["trained_parameters"])
        self.assertLess(adapted["device_bytes"], whole["device_bytes"])
        self.assertLess(adapted["optimizer_state"]["bytes_per_rank"], whole["optimizer_state"]["bytes_per_rank"] / 100)
        self.assertGreater(adapted["estimate"]["tokens_per_second"], 1.2 * whole["estimate"]["tokens_per_second"])


class Nf4(AdapterCase):
    def test_any_ranks_and_places_of_a_base_in_nf4_have_the_same_bits(self):
        whole = self.out("whole precision")
        self.succeed(2, whole, "--steps", 4, "--init", self.base, *LORA)
        expected = None
        for ranks, extra in [(1, []), (2, ["--zero", 3, "--recompute", "block"]), (3, ["--params", "host"]),
                             (5, ["--zero", 2, "--batched-forward", 2]), (8, ["--zero", 3, "--params", "host"])]:
            out = self.out(f"nf4 {ranks}")
            result = self.succeed(ranks, out, "--steps", 4, "--init", self.base, *LORA, "--base-dtype", "nf4", *extra)
            got = metrics(out), state_hash(out)
            expected = expected or got
            self.assertEqual(got, expected, f"{ranks} ranks {extra}")
        self.assertIn(f"beside {self.base}/step-00000003 in nf4", result.stdout)
        self.assertNotEqual(metrics(whole), expected[0])
        self.assertEqual(events(out, "configuration")[0]["adapters"]["base"], "nf4")
        self.assertEqual(events(whole, "configuration")[0]["adapters"]["base"], "f32")
        hashes = {self.base_hash(folder) for folder in (whole, out)}
        self.assertEqual(len(hashes), 1, "a base has one hash, however it is stored")

    def base_hash(self, folder):
        text = run(BIN / "inspect", folder).stdout
        return text.split("the base has hash ")[1].split()[0]

    def test_a_run_continues_on_other_ranks_and_says_that_the_base_is_stored_otherwise(self):
        nf4 = ["--init", self.base, *LORA, "--schedule-steps", 6, "--warmup", 0, "--base-dtype", "nf4"]
        whole, parts = self.out("whole"), self.out("parts")
        self.succeed(1, whole, "--steps", 6, *nf4)
        self.succeed(3, parts, "--steps", 3, *nf4)
        self.succeed(2, parts, "--steps", 6, *nf4, "--zero", 3)
        self.assertEqual((metrics(parts), state_hash(parts)), (metrics(whole), state_hash(whole)))
        self.succeed(2, whole, "--steps", 7, *nf4[:-2])  # as it was, without the option
        self.succeed(2, parts, "--steps", 7, *nf4)
        self.assertEqual((metrics(parts), state_hash(parts)), (metrics(whole), state_hash(whole)))
        bf16 = ["--precision", "bf16-params", "--base-dtype", "bf16"]
        result = self.succeed(2, parts, "--steps", 8, *nf4[:-2], *bf16)
        self.assertIn("--base-dtype was nf4 and is bf16 from step 8 on: the adapters continue beside other numbers than they were "
                      "trained with", result.stdout)

    def test_a_base_is_quantised_once_and_kept_in_the_runs_folder(self):
        out, init = self.out("kept"), self.out("its base")
        shutil.copytree(self.base, init)
        nf4 = ["--init", init, *LORA, "--base-dtype", "nf4", "--schedule-steps", 9, "--warmup", 0]
        kept = f"the base in nf4 is kept in {out}/base-nf4 for the next start"
        whole = self.out("whole")
        self.succeed(1, whole, "--steps", 7, *nf4)
        result = self.succeed(3, out, "--steps", 2, *nf4)
        self.assertIn(kept, result.stdout + result.stderr)
        stamps = {file.name: file.stat().st_mtime_ns for file in (out / "base-nf4").iterdir()}
        self.assertEqual(sorted(stamps), ["base.json", *(f"block.{i}.nf4" for i in range(len(stamps) - 1))])

        def continued(ranks, steps, *extra):
            result = self.succeed(ranks, out, "--steps", steps, *nf4, *extra)
            return result.stdout + result.stderr
        text = continued(2, 3, "--zero", 3)  # read by others than wrote it
        self.assertNotIn(kept, text)
        self.assertEqual({file.name: file.stat().st_mtime_ns for file in (out / "base-nf4").iterdir()}, stamps)
        block = out / "base-nf4/block.1.nf4"
        bytes_of_block = bytearray(block.read_bytes())
        bytes_of_block[1000] ^= 1
        for damage in (lambda: block.write_bytes(bytes_of_block), lambda: block.unlink()):
            damage()
            step = 1 + int(metrics(out)[-1][0])
            text = continued(2, step)
            self.assertIn(kept, text)
        self.assertIn("they are made again", continued(1, 7) if block.write_bytes(bytes_of_block) else "")
        self.assertEqual((metrics(out), state_hash(out)), (metrics(whole), state_hash(whole)))
        # a start with another base is refused and leaves them; the same base by another name takes them over
        other = self.out("another base")
        self.succeed(1, other, "--steps", 3, "--seed", 99)
        stamps = {file.name: file.stat().st_mtime_ns for file in (out / "base-nf4").iterdir()}
        self.refused(2, BAD_OPTIONS, "holds adapters of another base", "--data", self.corpus, "--out", out, *with_small("--steps", 8),
                     "--init", other, *nf4[2:])
        self.assertEqual({file.name: file.stat().st_mtime_ns for file in (out / "base-nf4").iterdir()}, stamps)
        moved = self.out("its base, moved")
        convert("export", init, moved, "--dtype", "f32")
        by_other_name = ["--init", moved, *nf4[2:]]
        for expected in ({"base.json"}, set()):  # of the second start nothing is written
            before = {file.name: file.stat().st_mtime_ns for file in (out / "base-nf4").iterdir()}
            step = 1 + int(metrics(out)[-1][0])
            text = self.succeed(2, out, "--steps", step, *by_other_name)
            after = {file.name: file.stat().st_mtime_ns for file in (out / "base-nf4").iterdir()}
            self.assertEqual({name for name in after if after[name] != before.get(name)}, expected, text.stderr)
        # what is not of this program stays, whatever it is called and however the folder is named
        folder = out / "base-nf4"
        for step, (named, files) in enumerate([(out, {"keep.nf4": "the user's"}), (os.path.relpath(out), {"base.json": "{}", "a": "b"}),
                                               (out, {"block.0.nf4": "the user's"})], 10):
            shutil.rmtree(folder)
            folder.mkdir()
            for name, text in files.items():
                (folder / name).write_text(text)
            result = self.succeed(2, named, "--steps", step, *nf4)
            self.assertIn("the base in nf4 is not kept for the next start: ", result.stdout + result.stderr)
            self.assertEqual({file.name: file.read_text() for file in folder.iterdir()}, files)

    def test_blocks_of_other_weights_are_never_used(self):
        folder, out, relative = self.out("changing"), self.out("of it"), self.out("fresh")
        convert("export", self.base, folder, "--dtype", "f32")
        nf4 = ["--init", folder, *LORA, "--base-dtype", "nf4"]
        self.succeed(2, os.path.relpath(out), "--steps", 2, *nf4)
        blocks = sorted(file.name for file in (out / "base-nf4").iterdir())
        weights = folder / "model.safetensors"
        tensors = read_safetensors(weights)
        name = next(name for name in tensors if name.endswith("mlp.down_proj.weight"))
        content = bytearray(weights.read_bytes())
        begin = content.find(tensors[name][2])
        content[begin + 8:begin + 408] = struct.pack("<100f", *[0.5] * 100)  # between the places that are sampled
        weights.write_bytes(content)
        self.refused(2, BAD_OPTIONS, "holds adapters of another base (hash ", "--data", self.corpus, "--out", out,
                     *with_small("--steps", 3, *nf4))
        # a new run on the old folder of blocks makes them again
        self.succeed(1, relative, "--steps", 2, *nf4)
        shutil.copytree(out / "base-nf4", self.out("again") / "base-nf4")
        again = self.folder / "again"
        self.succeed(2, os.path.relpath(again), "--steps", 2, *nf4)
        self.assertEqual((metrics(again), state_hash(again)), (metrics(relative), state_hash(relative)))
        self.assertEqual(sorted(file.name for file in (again / "base-nf4").iterdir()), blocks)

    def test_a_folder_in_4_bits_whose_weights_were_changed_is_another_base(self):
        packed, out = self.out("packed"), self.out("of packed")
        convert("quantise", self.base, packed)
        self.succeed(1, out, "--steps", 2, "--init", packed, *LORA)
        weights = packed / "model.safetensors"
        content = bytearray(weights.read_bytes())
        codes = read_safetensors(weights)["model.layers.0.mlp.down_proj.weight"][2]
        content[content.find(codes) + 7] ^= 1
        weights.write_bytes(content)
        self.refused(2, BAD_OPTIONS, "holds adapters of another base (hash ", "--data", self.corpus, "--out", out,
                     *with_small("--steps", 3, "--init", packed, *LORA))
        for words in ([], ["--plan"]):
            self.refused(2, BAD_OPTIONS, "holds weights in 4 bits, beside which adapters alone are trained", "--data", self.corpus,
                         "--out", self.out("never"), *with_small("--steps", 3, "--init", packed, *words))
        self.assertFalse(self.out("never").exists())

    def test_a_folder_in_4_bits_is_the_base_that_it_was_made_of(self):
        folder, packed = self.out("whole folder"), self.out("packed folder")
        convert("export", self.base, folder, "--dtype", "f32")
        convert("quantise", self.base, packed)
        expected = None
        for ranks, init, extra in [(1, folder, ["--base-dtype", "nf4"]), (1, packed, []), (3, packed, ["--zero", 3])]:
            out = self.out(f"{ranks} {init.name}")
            self.succeed(ranks, out, "--steps", 4, "--init", init, *LORA, *extra)
            got = metrics(out), state_hash(out), self.base_hash(out)
            expected = expected or got
            self.assertEqual(got, expected)
        result = self.succeed(2, out, "--steps", 5, "--init", folder, *LORA, "--base-dtype", "nf4")
        self.assertNotIn("--base-dtype was", result.stdout)
        plan = train(1, "--plan", "--init", packed, *LORA, "--seq", 32).stdout
        self.assertIn("the base's blocks in nf4", plan)
        for extra, sentence in (([], "holds weights in 4 bits, beside which adapters alone are trained: give --lora"),
                                ([*LORA, "--precision", "bf16-params", "--base-dtype", "bf16"],
                                 f"--base-dtype bf16: the weights of --init {packed} are in 4 bits")):
            self.refused(2, BAD_OPTIONS, sentence, "--data", self.corpus, "--out", self.out("refused"),
                         *with_small("--steps", 2, "--init", packed, *extra))

    def test_a_random_base_is_marked_and_continued_by_itself_alone(self):
        random = ["--steps", 3, *LORA, "--base-dtype", "nf4", "--base-random"]
        expected = None
        for ranks in 1, 3:
            out = self.out(f"random {ranks}")
            result = self.succeed(ranks, out, *random)
            got = metrics(out), state_hash(out)
            expected = expected or got
            self.assertEqual(got, expected)
        self.assertIn("beside random codes (--base-random: for measurements alone)", result.stdout)
        self.assertEqual(events(out, "configuration")[0]["adapters"]["base"], "random nf4")
        self.refused(2, BAD_OPTIONS, "holds adapters of a random base (hash ", "--data", self.corpus, "--out", out,
                     *with_small("--steps", 4, "--init", self.base, *LORA, "--base-dtype", "nf4"))
        self.assertIn(", was stored in nf4 and was random (--base-random)", run(BIN / "inspect", out).stdout)
        # nothing else takes them
        sentence = ("step-00000003 holds adapters that were trained beside a random base (--base-random), for measurements alone: "
                    "there is no model to merge them into or to use them with")
        for words in (["convert", "export", out, self.out("x"), "--adapter"], ["convert", "export", out, self.out("x")],
                      ["convert", "merge", out, self.out("x"), "--base", self.base],
                      ["generate", out, "--base", self.base, "--prompt-ids", "1"], ["generate", out, "--prompt-ids", "1"]):
            result = run(BIN / words[0], *words[1:], code=BAD_OPTIONS)
            self.assertIn(sentence, result.stderr, words)
        for place in out, out / "step-00000003":
            self.refused(2, BAD_OPTIONS, sentence, "--data", self.corpus, "--out", self.out("x"),
                         *with_small("--steps", 1, "--init", self.base, "--init-adapter", place))
        self.assertFalse(self.out("x").exists())

    def test_inspect_says_what_the_base_was_and_an_exported_folder_says_it_too(self):
        packed = self.out("named in 4 bits")
        convert("quantise", self.base, packed)
        for dtype, init, extra in (("f32", self.base, []), ("nf4", self.base, ["--base-dtype", "nf4"]), ("nf4", packed, []),
                                   ("bf16", self.base, ["--precision", "bf16-params"]), ("f32", None, [])):
            name = f"{dtype} {init.name if init else 'fresh'}"
            out, folder = self.out(name), self.out(f"folder of {name}")
            self.succeed(2, out, "--steps", 1, *LORA, *extra, *(["--init", init] if init else []), "--export", folder)
            info = json.loads(run(BIN / "inspect", out, "--json").stdout)["info"]
            self.assertEqual(info["base"], {"source": str(init or ""), "dtype": dtype, "is_random": False})
            source = f"came from {init}" if init else "was made of fresh weights, without --init"
            self.assertIn(f"the base has hash {info['base_model_hash']}, was stored in {dtype} and {source}",
                          run(BIN / "inspect", out).stdout)
            shown = json.loads(run(BIN / "inspect", folder, "--json").stdout)
            self.assertEqual(shown["base"], {"name": str(init or ""), "hash": info["base_model_hash"], "dtype": dtype})
            self.assertEqual(shown["params"], json.loads(run(BIN / "inspect", out, "--json").stdout)["params"])
            text = run(BIN / "inspect", folder).stdout
            self.assertIn(f"{folder}: PEFT's adapters of rank 4, alpha 8, beside all linear layers, ", text)
            self.assertIn(f"the base: {init or 'not named'}; hash {info['base_model_hash']}, stored in {dtype}", text)
        text = run(BIN / "inspect", GOLDEN / "peft").stdout  # PEFT's own
        self.assertIn("the base: tests/golden/tied; hash not named, stored in an unknown type", text)
        self.assertIn("holds PEFT's adapters: of --stats, ", run(BIN / "inspect", folder, "--hash", code=BAD_OPTIONS).stderr)

    def test_the_plan_has_a_quarter_of_the_bases_bytes(self):
        def plan(*extra):
            words = ["--plan", "--json", "--device", "cuda", "--model", "qwen3-32b", "--seq", 2048, "--micro-batch", 1,
                     "--global-batch", 8, "--ranks", 1, "--lora", 16, "--device-memory", "83.3GB", *extra]
            result = train(1, *words)
            return json.loads(result.stdout)
        whole, packed = plan("--params", "device"), plan("--base-dtype", "nf4")
        self.assertEqual((whole["fits"], packed["fits"]), (False, True))
        self.assertEqual(packed["base"], "nf4")
        lines = {line["name"]: line["bytes"] for line in packed["lines"]}
        self.assertAlmostEqual(lines["parameters"] / (2 * 2 * 151936 * 5120 + 0.516 * 64 * 487.6e6), 1, delta=0.01)
        self.assertGreater(packed["estimate"]["widen_seconds"], 0)
        self.assertEqual(whole["estimate"]["widen_seconds"], 0)
        self.assertIn("--base-dtype nf4", train(1, "--plan", "--device", "cuda", "--model", "qwen3-32b", "--seq", 2048,
                                                "--micro-batch", 1, "--global-batch", 1, "--ranks", 1, "--lora", 16,
                                                "--recompute", "block", "--offload-activations", "--host-memory", "16GB",
                                                "--device-memory", "40GB").stdout)


class Disk(AdapterCase, FailureCase):
    """Blocks in nf4 where the disk has no room: the run continues, and they take none from checkpoints."""
    NOT_KEPT = "the base in nf4 is not kept for the next start: "

    def files_of(self, out):
        return sorted(file.name for file in (out / "base-nf4").iterdir())

    def test_the_plan_counts_the_blocks_where_a_run_keeps_them(self):
        packed = self.out("packed")
        convert("quantise", self.base, packed)
        kept, out = ["--init", self.base, *LORA, "--base-dtype", "nf4"], self.out("planned")

        def plan(*words):
            json_text, text = [train(1, "--plan", "--seq", 32, *words, *extra) for extra in (["--json"], [])]
            size = json.loads(json_text.stdout)["base_cache_bytes"]
            self.assertEqual("of the base's blocks in nf4, in OUT/base-nf4" in " ".join(text.stdout.split()), size > 0, text.stdout)
            return size
        planned = plan(*kept)
        for words in (["--init", packed, *LORA], [*LORA, "--base-dtype", "nf4"], [*LORA, "--base-dtype", "nf4", "--base-random"],
                      ["--init", self.base, *LORA]):
            self.assertEqual(plan(*words), 0, words)
        self.succeed(2, out, "--steps", 1, *kept)
        self.assertEqual(sum(file.stat().st_size for file in (out / "base-nf4").glob("*.nf4")), planned)
        self.assertIn(f"of the base's blocks in nf4, in {out}/base-nf4", (out / "start.txt").read_text())

    def test_a_disk_without_room_costs_the_blocks_and_not_the_run(self):
        nf4 = ["--steps", 3, "--init", self.base, *LORA, "--base-dtype", "nf4", "--save-every", 1]
        whole = self.out("roomy")
        self.succeed(2, whole, *nf4)
        blocks = len(self.files_of(whole)) - 1
        for number, full in enumerate([{"BAD_DISK_FULL_RANK": "1"}, {"BAD_DISK_FULL_RANK": "0"}]):  # on the way
            out = self.out(f"full {number}")
            result = train(2, "--data", self.corpus, "--out", out, *with_small(*nf4), LD_PRELOAD=self.bad_disk,
                           BAD_DISK_FULL_PART="/base-nf4/block.", **full)
            reported = result.stdout + result.stderr
            self.assertEqual(result.returncode, 0, reported)
            self.assertEqual(reported.count(self.NOT_KEPT), 1, reported)
            self.assertIn("no space left on the device", reported)
            self.assertEqual(self.files_of(out), ["base.json"])
            self.assertEqual((metrics(out), state_hash(out)), (metrics(whole), state_hash(whole)))
            self.succeed(2, out, *with_small(*nf4[2:], "--steps", 4))  # there is room now
            self.assertEqual(len(self.files_of(out)), blocks + 1)

    def test_blocks_leave_room_for_a_checkpoint(self):
        if os.geteuid() != 0:
            self.skipTest("mounting a small file system needs root")
        mount = self.out("small disk")
        mount.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", mount], check=False, capture_output=True).returncode != 0:
            self.skipTest("this machine does not let us mount a file system")
        try:
            out = mount / "run"
            result = self.succeed(2, out, "--steps", 1, "--init", self.base, *LORA, "--base-dtype", "nf4")
            self.assertRegex(" ".join((result.stdout + result.stderr).split()),
                             self.NOT_KEPT + r"[0-9.]+ .B are free in .*/base-nf4, and [0-9.]+ .B are needed for it and [0-9.]+ .B for a "
                             "checkpoint and the run's other files: free some before the next start")
            self.assertEqual(self.files_of(out), ["base.json"])
            run(BIN / "inspect", out, "--verify")
        finally:
            subprocess.run(["umount", mount], check=False)


class Files(AdapterCase):
    def golden_tokens(self):
        golden = json.loads((GOLDEN / "peft/expected.json").read_text())
        ids = self.folder / "ids.npy"
        write_npy(ids, golden["ids"])
        tokens = self.folder / "golden.h5"
        if not tokens.exists():
            run(BIN / "tokenize", "--vocab", 128, "--out", tokens, ids)
        return golden, tokens

    def golden_run(self, name, *extra, ranks=2):
        golden, tokens = self.golden_tokens()
        out = self.out(name)
        result = train(ranks, "--init", GOLDEN / "tied", "--data", tokens, "--seq", 32, "--micro-batch", 1, "--global-batch", 4,
                       "--steps", 5, "--lr", "1e-2", "--schedule", "constant", "--warmup", 0, "--weight-decay", "0.1",
                       "--clip", 1, "--out", out, *extra)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return golden, out

    def test_pefts_folder_trains_as_in_peft_and_comes_back(self):
        golden, out = self.golden_run("golden", "--init-adapter", GOLDEN / "peft")
        losses = [float(row[1]) for row in metrics(out)]
        for ours, theirs in zip(losses, golden["losses"], strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-5)
        folder = self.out("exported")
        convert("export", out, folder, "--adapter")
        theirs = read_safetensors(GOLDEN / "peft/adapter_model.safetensors")
        ours = read_safetensors(folder / "adapter_model.safetensors")
        self.assertEqual({name: entry[:2] for name, entry in ours.items()}, {name: entry[:2] for name, entry in theirs.items()})
        config = json.loads((folder / "adapter_config.json").read_text())
        first = json.loads((GOLDEN / "peft/adapter_config.json").read_text())
        self.assertEqual((config["r"], config["lora_alpha"], set(config["target_modules"]), config["fan_in_fan_out"]),
                         (first["r"], first["lora_alpha"], set(first["target_modules"]), False))
        self.assertEqual(config["base_model_name_or_path"], str(GOLDEN / "tied"))

        # what was exported is where the run ended, beside the base and in it
        def greedy(*words):
            text = run(BIN / "generate", *words, "--prompt-ids", ",".join(map(str, golden["ids"][:8])), "--max-tokens", 8,
                       "--temperature", 0, "--ids").stdout
            return [int(word) for word in text.replace("\n", ",").split(",") if word.strip()]
        merged = self.out("merged")
        convert("merge", out, merged, "--base", GOLDEN / "tied", "--dtype", "f32")
        self.assertEqual(greedy(out, "--base", GOLDEN / "tied"), golden["greedy"])
        self.assertEqual(greedy(folder, "--base", GOLDEN / "tied"), golden["greedy"])
        self.assertEqual(greedy(merged), golden["greedy"])
        again = self.out("merged from PEFT's")
        convert("merge", folder, again, "--base", GOLDEN / "tied", "--dtype", "f32")
        self.assertEqual(read_safetensors(again / "model.safetensors"), read_safetensors(merged / "model.safetensors"))
        bf16 = self.out("merged in bf16")
        convert("merge", folder, bf16, "--base", GOLDEN / "tied")
        whole, half = read_safetensors(merged / "model.safetensors"), read_safetensors(bf16 / "model.safetensors")
        for name, (_, _, content) in whole.items():
            words = struct.unpack(f"<{len(content) // 4}I", content)
            rounded = b"".join(struct.pack("<H", (w + 0x7FFF + (w >> 16 & 1)) >> 16) for w in words)
            self.assertEqual(half[name][2], rounded, name)
        # the same numbers from other files are the same base
        convert("import", GOLDEN / "tied", self.out("imported"))
        result = train(3, "--init", self.folder / "imported", "--data", self.folder / "golden.h5", "--seq", 32, "--micro-batch", 1,
                       "--global-batch", 4, "--steps", 6, "--schedule", "constant", "--out", out, "--init-adapter", GOLDEN / "peft")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("continuing after step 5", result.stdout)
        # unknown to whoever expects a model
        for words in (["generate", out, "--prompt-ids", "1"], ["generate", folder, "--prompt-ids", "1"],
                      ["convert", "export", out, self.out("x")], ["generate", merged, "--base", GOLDEN / "tied", "--prompt-ids", "1"]):
            result = subprocess.run([BIN / words[0], *map(str, words[1:])], capture_output=True, text=True, check=False)
            self.assertIn(result.returncode, (BAD_OPTIONS, BAD_FILE), words)
        for words in (["convert", "import", folder, self.out("x")], ["convert", "export", folder, self.out("x"), "--adapter"],
                      ["convert", "merge", out, self.out("x"), "--base", folder],
                      ["generate", out, "--base", folder, "--prompt-ids", "1"],
                      ["train", "--init", folder, "--data", self.folder / "golden.h5", "--out", self.out("x"), "--steps", 1]):
            result = subprocess.run([BIN / words[0], *map(str, words[1:])], capture_output=True, text=True, check=False)
            self.assertIn(result.returncode, (BAD_OPTIONS, BAD_FILE), words)
            self.assertIn("holds PEFT's adapters, not a ", result.stdout + result.stderr, words)
        for place in (out, out / (out / "LATEST").read_text().strip()):
            self.refused(2, BAD_OPTIONS, "is a run of train: continue it by --out, or make a folder of PEFT's of it", "--data",
                         self.folder / "golden.h5", "--out", self.out("x"), "--steps", 1, "--init", GOLDEN / "tied", "--init-adapter", place)
        self.assertFalse(self.out("x").exists())
        result = convert("merge", out, self.out("x"), "--base", GOLDEN / "untied", code=BAD_OPTIONS)
        self.assertIn("holds adapters of another model", result.stderr)

    def test_an_export_on_any_number_of_ranks_is_what_convert_writes(self):
        expected = None
        for ranks, extra in [(1, []), (3, ["--resident-bytes", "none", "--page-bytes", "64KiB", "--zero", 3])]:
            out, folder = self.out(f"exporting {ranks}"), self.out(f"exported {ranks}")
            self.succeed(ranks, out, "--steps", 4, "--save-every", 2, "--export-every", 2, "--init", self.base, *LORA, "--export",
                         folder, *extra)
            written = self.out("written")
            convert("export", out, written, "--adapter")
            got = {file.name: file.read_bytes() for file in folder.iterdir() if file.name.startswith("adapter_")}
            self.assertEqual(got, {file.name: file.read_bytes() for file in written.iterdir()})
            expected = expected or got
            self.assertEqual(got, expected)
        self.assertEqual(set(got), {"adapter_config.json", "adapter_model.safetensors"})
        self.assertEqual({row["step"] for row in events(out, "export")}, {2, 4})
        again = self.out("from export")
        self.succeed(2, again, "--steps", 1, "--init", self.base, "--init-adapter", folder)
        # a base of the same shape with other numbers is refused by all that read the folder
        other = self.out("other base")
        self.succeed(1, other, "--steps", 1, "--seed", 7)
        merged = self.out("merged")
        for result in (train(2, "--data", self.corpus, "--out", self.out("never"),
                             *with_small("--steps", 1, "--init", other, "--init-adapter", folder)),
                       convert("merge", folder, merged, "--base", other, code=BAD_OPTIONS),
                       run(BIN / "generate", folder, "--base", other, "--prompt-ids", "1", code=BAD_OPTIONS)):
            self.assertEqual(result.returncode, BAD_OPTIONS, result.stderr)
            self.assertIn("holds adapters of another base (hash", result.stdout + result.stderr)
        self.assertFalse(merged.exists())
        convert("merge", folder, merged, "--base", self.base)

    def test_every_field_of_pefts_configuration_is_known_or_refused_by_name(self):
        # interop/check_peft.py recorded them, and that those which are read change nothing in PEFT or are compared there
        config = json.loads((GOLDEN / "peft/adapter_config.json").read_text())
        folder = self.out("other fields")
        shutil.copytree(GOLDEN / "peft", folder)
        values = json.loads((GOLDEN / "peft/fields.json").read_text())["values"]
        for key, outcome in values.items():
            field, value = key.split(" ", 1)
            (folder / "adapter_config.json").write_text(json.dumps({**config, field: json.loads(value)}))
            result = run(BIN / "inspect", folder, code=BAD_OPTIONS if outcome == "refused" else 0)
            if outcome == "refused":
                self.assertIn(field, result.stderr)
        self.assertGreaterEqual(len({key.split(" ")[0] for key in values}), 42)

    def test_what_peft_has_and_we_have_not_is_refused_by_name(self):
        config = json.loads((GOLDEN / "peft/adapter_config.json").read_text())
        tensors = read_safetensors(GOLDEN / "peft/adapter_model.safetensors")
        a = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
        changes = [(dict(peft_type="IA3"), "peft_type is"), (dict(use_dora=True), "use_dora"),
                   (dict(modules_to_save=["lm_head"]), "modules_to_save"), (dict(rank_pattern={"q_proj": 2}), "rank_pattern"),
                   (dict(alpha_pattern={"q_proj": 2}), "alpha_pattern"), (dict(bias="all"), "bias is"),
                   (dict(target_modules=".*_proj"), "regular expressions"), (dict(target_modules=["q_proj", "lm_head"]), "lm_head"),
                   (dict(layers_to_transform=[0]), "layers_to_transform"), (dict(fan_in_fan_out=True), "fan_in_fan_out"),
                   (dict(init_lora_weights="pissa"), "init_lora_weights"), (dict(r=0), "r is 0"),
                   (dict(lora_alpha=0), "lora_alpha is 0; it must be a number from 1e-06 to 1000000"),
                   (dict(lora_alpha=1e39), "lora_alpha is"), (dict(use_rslora="yes"), "it must be true or false"),
                   (dict(something_new={"a": 1}), "something_new"), (dict(r=5), "it must be [5, 64]")]
        cases = [(change, tensors, sentence) for change, sentence in changes]
        cases.append(({}, {k: v for k, v in tensors.items() if k != a}, "q_proj.lora_A.weight\" is missing"))
        cases.append(({}, {**tensors, "base_model.model.model.norm.weight": ("F32", (1,), b"\0" * 4)}, "norm.weight"))
        kind, shape, numbers = tensors[a]
        cases.append(({}, {**tensors, a: (kind, shape, b"\0\0\xc0\x7f" + numbers[4:])}, "numbers that are not finite"))
        arguments = []
        for number, (change, content, sentence) in enumerate(cases):
            folder = self.out(f"peft {number}")
            folder.mkdir()
            (folder / "adapter_config.json").write_text(json.dumps({**config, **change}))
            write_safetensors(folder / "adapter_model.safetensors", content)
            result = subprocess.run([BIN / "generate", folder, "--base", GOLDEN / "tied", "--prompt-ids", "1", "--max-tokens", "2"],
                                    capture_output=True, text=True, check=False)
            self.assertIn(result.returncode, (BAD_OPTIONS, BAD_FILE), result.stderr)
            self.assertIn(sentence.replace("\"", ""), result.stderr.replace("'", "").replace("\"", ""))
            if number in (1, len(cases) - 3, len(cases) - 1):
                arguments.append((result.returncode, sentence.split("\"")[0], folder))
        for code, sentence, folder in arguments:  # the same on all ranks, once
            self.refused(2, code, sentence, "--data", self.golden_tokens()[1], "--out", self.out("refused"), "--init",
                         GOLDEN / "tied", "--seq", 32, "--micro-batch", 1, "--global-batch", 4, "--steps", 1, "--init-adapter", folder)


class Refusals(AdapterCase):
    def test_nothing_of_the_users_is_deleted_for_an_export(self):
        adapters = self.out("kept")
        self.succeed(1, adapters, "--steps", 1, *LORA)
        to = self.folder / "exported"
        theirs = self.folder / "exported.partial"  # where unfinished exports are made
        theirs.mkdir()
        (theirs / "notes.txt").write_text("mine")
        result = convert("export", adapters, to, "--adapter", code=4)
        self.assertIn("exported.partial", result.stderr)
        self.assertIn("exists and is not an unfinished export", result.stderr)
        self.assertEqual((theirs / "notes.txt").read_text(), "mine")
        self.assertFalse(to.exists())
        shutil.rmtree(theirs)
        to.mkdir()  # an empty folder is filled
        convert("export", adapters, to, "--adapter")
        self.assertEqual(sorted(file.name for file in to.iterdir()), ["adapter_config.json", "adapter_model.safetensors"])

    def test_options_that_do_not_go_together_are_refused_by_name(self):
        start = ["--data", self.corpus, "--out", self.out("refused"), *with_small("--steps", 1)]
        cases = [(["--lora", 0], "--lora"), (["--lora", 4, "--lora-targets", "q_proj,head"], "there is no linear layer 'head'"),
                 (["--lora", 4, "--optimizer", "muon"], "--lora does not go with --optimizer muon"),
                 (["--lora", 4, "--precision", "fp8"], "--lora does not go with --precision fp8"),
                 (["--lora", 4, "--train-embeddings", "--export", "x"], "--export of adapters writes PEFT's folder"),
                 (["--lora-alpha", 4], "--lora-alpha needs --lora"), (["--train-embeddings"], "--train-embeddings needs --lora"),
                 (["--lora", 4, "--init-adapter", self.base], "--lora cannot be given with --init-adapter"),
                 (["--init-adapter", self.folder / "nowhere"], "--init-adapter")]
        self.all_refused(2, BAD_OPTIONS, [(sentence, start + extra) for extra, sentence in cases])
        adapters = self.out("adapters")
        self.succeed(1, adapters, "--steps", 1, *LORA)
        self.refused(2, BAD_OPTIONS, "holds adapters, not a model", "--data", self.corpus, "--out", self.out("x"),
                     *with_small("--steps", 1, "--init", adapters))
        for words, sentence in ((["export", self.base, "x", "--adapter"], "holds a whole model"),
                                (["merge", adapters, "x"], "merge needs --base"),
                                (["merge", self.base, self.folder / "x", "--base", self.base], "holds a whole model"),
                                (["merge", adapters, self.folder / "x", "--base", adapters], "--base"),
                                (["import", self.base, "x", "--base", "y"], "--base is for merge")):
            self.assertIn(sentence, convert(*words, code=BAD_OPTIONS).stderr)


if __name__ == "__main__":
    unittest.main()
