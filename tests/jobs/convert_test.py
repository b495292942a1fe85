"""convert as a user runs it: golden models in and out bit for bit, in bounded memory, and what it says
and returns for files, folders and options that are not what they should be."""
import array
import fcntl
import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import tempfile
import unittest

from safetensors_files import read_safetensors

CONVERT = pathlib.Path(os.environ["TESSERA_BIN"]) / "convert"
GOLDEN = pathlib.Path(os.environ["TESSERA_GOLDEN"])
BAD_OPTIONS, BAD_FILE, CANNOT_WRITE = 2, 3, 4


def convert(*arguments):
    # Freed memory is not kept back under the address sanitizer: one case measures memory.
    environment = dict(os.environ,
                       ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1")
    return subprocess.run([CONVERT, *map(str, arguments)], capture_output=True, text=True,
                          env=environment, check=False)


def read_folder(folder):
    tensors = {}
    for file in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        tensors.update(read_safetensors(file))
    return tensors


class Convert(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="tessera é %1 ")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def succeed(self, *arguments):
        result = convert(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        return result.stdout

    def fail_with(self, code, *arguments):
        result = convert(*arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("convert: "), result.stderr)
        return result.stderr

    def test_golden_models_come_back_bit_for_bit(self):
        for variant in "tied", "untied":
            run, out = self.folder / variant, self.folder / (variant + "-out")
            self.succeed("import", GOLDEN / variant, run)
            self.succeed("export", run, out, "--dtype", "f32", "--max-shard-bytes", "100kB")
            self.assertEqual(read_folder(out), read_folder(GOLDEN / variant))
            self.assertGreater(len(list(out.glob("model*.safetensors"))), 2)
            index = json.loads((out / "model.safetensors.index.json").read_text())
            self.assertEqual(set(index["weight_map"]), set(read_folder(GOLDEN / variant)))
            # A step's folder does as well as a run's, and the export as well as the first source.
            self.succeed("import", out, self.folder / (variant + "-again"))
            self.succeed("export", self.folder / (variant + "-again") / "step-00000000",
                         self.folder / (variant + "-single"), "--dtype", "f32")
            self.assertEqual(read_folder(self.folder / (variant + "-single")),
                             read_folder(GOLDEN / variant))

    def test_bf16_halves_the_bytes_and_keeps_the_upper_half_rounded(self):
        self.succeed("import", GOLDEN / "tied", self.folder / "run")
        self.succeed("export", self.folder / "run", self.folder / "out")
        exact = read_folder(GOLDEN / "tied")
        for name, (dtype, shape, data) in read_folder(self.folder / "out").items():
            self.assertEqual((dtype, shape), ("BF16", exact[name][1]))
            halves = array.array("H", data)
            words = array.array("I", exact[name][2])
            for half, word in zip(halves, words, strict=True):
                self.assertEqual(half, (word + 0x7FFF + ((word >> 16) & 1)) >> 16, name)

    def test_tokenizer_files_are_copied_from_a_folder_like_it(self):
        like = self.folder / "like"
        like.mkdir()
        (like / "tokenizer.json").write_text("{}")
        (like / "generation_config.json").write_text('{"eos_token_id": 7}')
        (like / "notes.txt").write_text("not this")
        self.succeed("import", GOLDEN / "tied", self.folder / "run")
        self.succeed("export", self.folder / "run", self.folder / "out", "--like", like)
        self.assertEqual((self.folder / "out/tokenizer.json").read_text(), "{}")
        self.assertIn("7", (self.folder / "out/generation_config.json").read_text())
        self.assertFalse((self.folder / "out/notes.txt").exists())

    def test_a_vocabulary_grows_by_rows_that_are_the_mean_of_the_old_ones(self):
        for variant in ("tied", "untied"):
            config = json.loads((GOLDEN / variant / "config.json").read_text())
            rows, width = config["vocab_size"], config["hidden_size"]
            imported, exported = self.folder / f"{variant}-run", self.folder / f"{variant}-model"
            self.succeed("import", GOLDEN / variant, imported, "--resize-vocab", rows + 3)
            self.succeed("export", imported, exported, "--dtype", "f32")
            self.assertEqual(json.loads((exported / "config.json").read_text())["vocab_size"], rows + 3)
            before, after = read_folder(GOLDEN / variant), read_folder(exported)
            grown = {name for name in after if after[name] != before[name]}
            self.assertEqual(grown, {"model.embed_tokens.weight"} | ({"lm_head.weight"} if variant == "untied" else set()))
            for name in grown:
                self.assertEqual(after[name][1], (rows + 3, width))
                self.assertEqual(after[name][2][:4 * rows * width], before[name][2])
                values = array.array("f", before[name][2])
                mean = array.array("f", [sum(values[column::width]) / rows for column in range(width)])
                new = array.array("f", after[name][2][4 * rows * width:])
                for row in range(3):
                    for got, wanted in zip(new[row * width:(row + 1) * width], mean):
                        self.assertAlmostEqual(got, wanted, delta=1e-6 * (1 + abs(wanted)))
            self.assertIn(f"--resize-vocab {rows - 1} is less than the model's vocabulary of {rows}", self.fail_with(
                BAD_OPTIONS, "import", GOLDEN / variant, self.folder / "smaller", "--resize-vocab", rows - 1))
        self.assertIn("--resize-vocab is for import",
                      self.fail_with(BAD_OPTIONS, "export", imported, self.folder / "x", "--resize-vocab", 5))

    def test_an_import_keeps_the_whole_tokenizer_and_an_export_gives_it_back(self):
        theirs = self.folder / "theirs"
        shutil.copytree(GOLDEN / "tied", theirs)
        files = {"tokenizer.json": '{"version": "1.0"}', "tokenizer_config.json": '{"eos_token": "a"}',
                 "generation_config.json": '{"eos_token_id": [7]}', "chat_template.jinja": "{{ messages }}"}
        for name, content in files.items():
            (theirs / name).write_text(content)
        self.assertIn("kept the tokenizer: tokenizer.json, tokenizer_config.json, ",
                      self.succeed("import", theirs, self.folder / "run"))
        self.assertIn("with 4 files of the run's tokenizer", self.succeed(
            "export", self.folder / "run/step-00000000", self.folder / "out"))
        for name, content in files.items():
            self.assertEqual((self.folder / "out" / name).read_text(), content)

    def test_a_tokenizer_of_other_tokens_is_not_copied_and_a_missing_one_is_named(self):
        like = self.folder / "like"
        like.mkdir()
        (like / "tokenizer.json").write_text("{}")
        run, out = self.folder / "run", self.folder / "out"
        self.succeed("import", GOLDEN / "tied", run)
        self.assertIn(f"{out} has no tokenizer: export with --like HF_FOLDER", self.succeed("export", run, out))
        (run / "tokens.json").write_text('{"tokenizer": "bytes", "vocab_size": 128, "end_token": -1}')
        refusal = self.fail_with(BAD_OPTIONS, "export", run, self.folder / "mixed", "--like", like)
        self.assertIn(f"{run} and --like {like} have other tokens: bytes (128 tokens), and a tokenizer.json", refusal)
        self.assertFalse((self.folder / "mixed").exists())
        self.fail_with(BAD_OPTIONS, "export", run / "step-00000000", self.folder / "mixed", "--like", like)
        allowed = convert("export", run, self.folder / "mixed", "--like", like, "--allow-tokenizer-mismatch")
        self.assertEqual(allowed.returncode, 0, allowed.stderr)
        self.assertIn("allowed by --allow-tokenizer-mismatch", allowed.stderr)
        self.assertIn("copied 1 file of", allowed.stdout)
        self.assertNotIn("has no tokenizer", allowed.stdout)
        self.assertIn("the run's tokens are bytes, of which there is no file; generate needs --tokenizer bytes",
                      self.succeed("export", run, self.folder / "bytes"))

    def test_the_other_direction_is_named_where_a_folder_is_of_the_other_kind(self):
        self.succeed("import", GOLDEN / "tied", self.folder / "run")
        for given in self.folder / "run", self.folder / "run/step-00000000":
            self.assertIn("holds a checkpoint, not a Hugging Face model: `train --init ", self.fail_with(
                BAD_FILE, "import", given, self.folder / "out"))
        self.assertIn("is a Hugging Face model already: `convert import ", self.fail_with(
            BAD_FILE, "export", GOLDEN / "tied", self.folder / "out"))
        self.assertFalse((self.folder / "out").exists())

    @unittest.skipIf("TESSERA_SANITIZED" in os.environ, "a sanitizer takes memory of its own")
    def test_memory_is_bounded_whatever_the_model(self):
        model = self.folder / "large"
        model.mkdir()
        config = {"model_type": "llama", "vocab_size": 49152, "hidden_size": 1024,
                  "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 8,
                  "tie_word_embeddings": True}
        (model / "config.json").write_text(json.dumps(config))
        layer = "model.layers.0."
        shapes = {"model.embed_tokens.weight": [49152, 1024], "model.norm.weight": [1024],
                  layer + "input_layernorm.weight": [1024],
                  layer + "post_attention_layernorm.weight": [1024],
                  layer + "mlp.gate_proj.weight": [512, 1024],
                  layer + "mlp.up_proj.weight": [512, 1024],
                  layer + "mlp.down_proj.weight": [1024, 512],
                  **{f"{layer}self_attn.{x}_proj.weight": [1024, 1024] for x in "qkvo"}}
        header, end = {}, 0
        for name, shape in shapes.items():
            begin, end = end, end + 4 * shape[0] * (shape[1] if len(shape) == 2 else 1)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        with open(model / "model.safetensors", "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + end)  # zeros
        self.assertGreater(end, 200e6)
        self.succeed("import", model, self.folder / "run")
        self.succeed("export", self.folder / "run", self.folder / "out", "--dtype", "f32")
        most_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        self.assertLess(most_bytes, 190e6)

    def test_a_file_that_is_damaged_or_missing_is_named(self):
        model = self.folder / "model"
        model.mkdir()
        (model / "config.json").write_bytes((GOLDEN / "tied/config.json").read_bytes())
        reported = self.fail_with(BAD_FILE, "import", model, self.folder / "run")
        self.assertIn("it holds neither model.safetensors nor", reported)
        for content, complaint in ((b"", "it has 0 bytes"), (b"\0" * 7, "it has 7 bytes"),
                                   (struct.pack("<Q", 1 << 63), "more than 100000000"),
                                   (struct.pack("<Q", 9) + b"{}", "and the file has 10"),
                                   (struct.pack("<Q", 2) + b"{}", "is missing"),
                                   (struct.pack("<Q", 2) + b"[]", "is not a JSON object")):
            (model / "model.safetensors").write_bytes(content)
            reported = self.fail_with(BAD_FILE, "import", model, self.folder / "run")
            self.assertIn(str(model), reported)
            self.assertIn(complaint, reported)
        self.assertFalse((self.folder / "run").exists())
        self.assertIn("config.json", self.fail_with(BAD_OPTIONS, "import", self.folder, "x"))
        self.assertIn("no folder", self.fail_with(BAD_OPTIONS, "export", self.folder / "none", "x"))
        (self.folder / "empty").mkdir()
        self.assertIn("no complete checkpoint",
                      self.fail_with(BAD_FILE, "export", self.folder / "empty", self.folder / "out"))

    def model_with(self, name, content):
        """A sound model, but for this file of it. None: a named pipe."""
        model = self.folder / "model"
        if not model.exists():
            shutil.copytree(GOLDEN / "tied", model)
        for file in ("config.json", "model.safetensors"):
            (model / file).unlink(missing_ok=True)
            shutil.copyfile(GOLDEN / "tied" / file, model / file)
        (model / name).unlink(missing_ok=True)
        if content is None:
            os.mkfifo(model / name)
        else:
            (model / name).write_bytes(content)
        return model

    def test_what_stands_in_place_of_a_file_is_called_by_its_name(self):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n"
        for name in ("config.json", "model.safetensors", "tokenizer.model"):
            for content, what in ((pointer, "is a pointer of git-lfs, not the file itself"),
                                  (b"/annex/objects/SHA256E-s9--0.bin\n", "is a pointer of git-annex"),
                                  (b"<!DOCTYPE html><html>", "is a web page saved in place"),
                                  (b"PK\x03\x04" + bytes(60), "is a zip archive"),
                                  (b"\x1f\x8b\x08" + bytes(60), "is a compressed file or an archive"),
                                  (b"GGUF" + bytes(60), "is a model file of llama.cpp"),
                                  (None, "it is a named pipe, and a regular file is needed here")):
                model = self.model_with(name, content)
                reported = self.fail_with(BAD_FILE, "import", model, self.folder / "run")
                self.assertIn(name, reported)
                self.assertIn(what, reported)
                (model / "tokenizer.model").unlink(missing_ok=True)
        for target, what in (("../../blobs/4d7a", "a link to ../../blobs/4d7a, which does not exist"),
                             (".git/annex/objects/x", "`git annex get`")):
            (model / "model.safetensors").unlink()
            os.symlink(target, model / "model.safetensors")
            self.assertIn(what, self.fail_with(BAD_OPTIONS, "import", model, self.folder / "run"))
        (model / "model.safetensors").unlink()
        (model / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
        self.assertIn("but 'pytorch_model.bin': load it with transformers and save it again",
                      self.fail_with(BAD_FILE, "import", model, self.folder / "run"))
        self.assertIn("pytorch_model.bin is a zip archive", self.fail_with(
            BAD_FILE, "import", model / "pytorch_model.bin", self.folder / "run"))
        self.assertIn("is a file; give the folder that holds config.json and the weights", self.fail_with(
            BAD_FILE, "import", model / "config.json", self.folder / "run"))
        self.assertFalse((self.folder / "run").exists())

    def test_biases_go_in_and_out(self):
        config = {"model_type": "llama", "vocab_size": 7, "hidden_size": 4, "intermediate_size": 6,
                  "num_hidden_layers": 1, "num_attention_heads": 2, "attention_bias": True,
                  "mlp_bias": True, "tie_word_embeddings": True}
        layer = "model.layers.0."
        shapes = {"model.embed_tokens.weight": [7, 4], "model.norm.weight": [4],
                  layer + "input_layernorm.weight": [4], layer + "post_attention_layernorm.weight": [4],
                  **{f"{layer}self_attn.{x}_proj.weight": [4, 4] for x in "qkvo"},
                  **{f"{layer}self_attn.{x}_proj.bias": [4] for x in "qkvo"},
                  **{f"{layer}mlp.{x}_proj.weight": [6, 4] for x in ("gate", "up")},
                  **{f"{layer}mlp.{x}_proj.bias": [6] for x in ("gate", "up")},
                  layer + "mlp.down_proj.weight": [4, 6], layer + "mlp.down_proj.bias": [4]}
        model = self.folder / "biased"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config))
        header, data = {}, b""
        for number, (name, shape) in enumerate(shapes.items()):
            count = shape[0] * (shape[1] if len(shape) == 2 else 1)
            values = array.array("f", [number + i / 64 for i in range(count)]).tobytes()
            header[name] = {"dtype": "F32", "shape": shape,
                            "data_offsets": [len(data), len(data) + len(values)]}
            data += values
        text = json.dumps(header).encode()
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        self.succeed("import", model, self.folder / "run")
        self.succeed("export", self.folder / "run", self.folder / "out", "--dtype", "f32")
        self.assertEqual(read_folder(self.folder / "out"), read_folder(model))
        written = json.loads((self.folder / "out/config.json").read_text())
        self.assertEqual((written["attention_bias"], written["mlp_bias"]), (True, True))

    def test_a_damaged_checkpoint_is_not_exported(self):
        self.succeed("import", GOLDEN / "tied", self.folder / "run")
        shard = self.folder / "run/step-00000000/shard-00000-of-00001.h5"
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        self.assertIn("shard-00000-of-00001.h5", self.fail_with(
            BAD_FILE, "export", self.folder / "run/step-00000000", self.folder / "out"))
        shard.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n")
        self.assertIn("were written: it is a pointer of git-lfs", self.fail_with(
            BAD_FILE, "export", self.folder / "run/step-00000000", self.folder / "out"))
        self.assertEqual({entry.name for entry in self.folder.iterdir()}, {"run"})

    def test_what_is_there_is_not_overwritten(self):
        self.succeed("import", GOLDEN / "tied", self.folder / "run")
        self.assertIn("holds checkpoints already", self.fail_with(
            BAD_OPTIONS, "import", GOLDEN / "tied", self.folder / "run"))
        self.assertIn("is not empty", self.fail_with(
            BAD_OPTIONS, "export", self.folder / "run", self.folder / "run"))
        (self.folder / "file").write_text("x")
        self.fail_with(BAD_OPTIONS, "import", GOLDEN / "tied", self.folder / "file/run")
        self.fail_with(BAD_OPTIONS, "export", self.folder / "run", self.folder / "file/out")
        self.assertIn("File name too long: give another folder", self.fail_with(
            BAD_OPTIONS, "export", self.folder / "run", self.folder / ("a" * 256)))
        # a folder of the user's that has the name of an unfinished export stays; one of ours goes
        mine, ours = self.folder / "a.partial", self.folder / "b.partial"
        for folder in mine, ours:
            folder.mkdir()
            (folder / "notes").write_text("x")
        self.assertIn("is not an unfinished export", self.fail_with(
            CANNOT_WRITE, "export", self.folder / "run", self.folder / "a"))
        self.assertEqual((mine / "notes").read_text(), "x")
        (ours / ".tessera-export").touch()
        self.succeed("export", self.folder / "run", self.folder / "b")
        self.assertFalse(ours.exists())
        self.assertFalse((self.folder / "b/.tessera-export").exists())
        # nor does one go that another process writes: it holds the lock of the mark
        busy = self.folder / "c.partial"
        busy.mkdir()
        (busy / "model.safetensors").write_text("half of it")
        with open(busy / ".tessera-export", "w") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX)
            self.assertIn("another export is writing there", self.fail_with(
                CANNOT_WRITE, "export", self.folder / "run", self.folder / "c"))
            self.assertEqual((busy / "model.safetensors").read_text(), "half of it")
        self.succeed("export", self.folder / "run", self.folder / "c")
        # through a link to an empty folder, which stays a link; not over a file or a link to nothing
        (self.folder / "real").mkdir()
        (self.folder / "link").symlink_to("real")
        (self.folder / "empty").touch()
        (self.folder / "dangling").symlink_to("nowhere")
        self.succeed("export", self.folder / "run", self.folder / "link")
        self.assertTrue((self.folder / "link").is_symlink())
        self.assertTrue((self.folder / "real/config.json").exists())
        for name, why in ("empty", "is not a folder"), ("dangling", "is a link to nowhere, which is not there"):
            self.assertIn(why, self.fail_with(BAD_OPTIONS, "export", self.folder / "run", self.folder / name))
        # nor a tokenizer that the run did not put there
        source = self.folder / "source"
        shutil.copytree(GOLDEN / "tied", source)
        (source / "tokenizer.model").write_text("of the model")
        (self.folder / "other").mkdir()
        (self.folder / "other/tokenizer.model").write_text("mine")
        self.assertIn("is not the tokenizer of a run", self.fail_with(
            BAD_OPTIONS, "import", source, self.folder / "other"))
        self.assertEqual((self.folder / "other/tokenizer.model").read_text(), "mine")
        # and it is seen before anything is written, as what is in tokens.json is
        self.assertEqual({entry.name for entry in (self.folder / "other").iterdir()}, {"tokenizer.model"})
        (self.folder / "other/tokenizer.model").unlink()
        (self.folder / "other/tokens.json").write_text('{"mine": 1}')
        self.assertIn("is not the description of a run's tokens", self.fail_with(
            BAD_OPTIONS, "import", source, self.folder / "other"))
        self.assertEqual({entry.name for entry in (self.folder / "other").iterdir()}, {"tokens.json"})
        self.assertIn("is not a folder", self.fail_with(
            BAD_OPTIONS, "import", source, self.folder / "empty"))
        (self.folder / "other/tokens.json").unlink()
        self.succeed("import", source, self.folder / "other")

    def test_a_folder_that_is_there_is_filled_and_not_replaced(self):
        self.succeed("import", GOLDEN / "tied", self.folder / "run")
        out = self.folder / "volume"  # a mount point: it cannot be renamed, nor can another to its name
        (out / "lost+found").mkdir(parents=True)
        inode = out.stat().st_ino
        # what a killed export left goes, what another writes stays
        (out / ".partial").mkdir()
        with open(out / ".partial/.tessera-export", "w") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX)
            self.assertIn("another export is writing there", self.fail_with(
                CANNOT_WRITE, "export", self.folder / "run", out))
        self.succeed("export", self.folder / "run", out, "--max-shard-bytes", "100kB", "--dtype", "f32")
        self.assertEqual(read_folder(out), read_folder(GOLDEN / "tied"))
        self.assertEqual(out.stat().st_ino, inode)
        self.assertEqual({entry.name for entry in self.folder.iterdir()}, {"run", "volume"})
        self.assertEqual({entry.name for entry in out.iterdir() if not entry.name.startswith("model")},
                         {"config.json", "generation_config.json", "lost+found"})

    def test_what_cannot_be_copied_is_seen_before_the_export_is_done(self):
        self.succeed("import", GOLDEN / "tied", self.folder / "run")
        like = self.folder / "like"
        like.mkdir()
        for code, make, why in ((BAD_OPTIONS, lambda path: path.symlink_to("../blobs/1"), "is a link to ../blobs/1"),
                                (BAD_FILE, lambda path: path.mkdir(), "it is a folder"),
                                (BAD_FILE, os.mkfifo, "it is a named pipe")):
            file = like / "tokenizer.json"
            make(file)
            reported = self.fail_with(code, "export", self.folder / "run", self.folder / "out", "--like", like)
            self.assertIn(why, reported)
            self.assertIn(str(file), reported)
            self.assertEqual({entry.name for entry in self.folder.iterdir()}, {"run", "like"})
            file.rmdir() if file.is_dir() else file.unlink()

    def test_a_file_size_limit_ends_it_with_a_sentence(self):
        self.succeed("import", GOLDEN / "tied", self.folder / "run")
        for arguments in (["import", GOLDEN / "tied"], ["export", self.folder / "run"]):
            out = self.folder / f"out of {arguments[0]}"
            # From the first byte, within the headers, within the tensors.
            for kilobytes in (0, 1, 64):
                result = subprocess.run(
                    ["bash", "-c", f'ulimit -f {kilobytes}; exec "$@"', "bash", CONVERT,
                     *map(str, arguments), out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                    text=True, check=False)
                self.assertEqual(result.returncode, CANNOT_WRITE, (arguments, kilobytes, result.stderr))
                self.assertRegex(result.stderr, r"^convert: cannot write \S.*out of .*: the file size limit "
                                                r"\(ulimit -f, or the file system's\) is reached\n$")
                self.assertEqual(list(out.rglob("*")), [])

    def test_options_that_make_no_run_are_refused(self):
        self.succeed("import", GOLDEN / "tied", self.folder / "run")
        for arguments in ([], ["import"], ["import", "a"], ["import", "a", "b", "c"], ["copy", "a", "b"],
                          ["export", "a", "b", "--dtype", "f16"], ["export", "a", "b", "--dtype"],
                          ["export", "a", "b", "--max-shard-bytes", "0"],
                          ["export", "a", "b", "--max-shard-bytes", "5XB"],
                          ["export", "a", "b", "--unknown"],
                          ["export", self.folder / "run", "b", "--like", self.folder / "none"],
                          ["import", "a", "b", "--dtype", "f32"]):
            self.fail_with(BAD_OPTIONS, *arguments)
        self.assertIn("--max-shard-bytes", self.succeed("--help"))
        self.assertRegex(self.succeed("--version"), r"^convert of tessera \d")


if __name__ == "__main__":
    unittest.main()
