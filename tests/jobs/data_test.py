"""train and its data: which sequences an evaluation takes, data without targets, data of another tokenizer than the
weights, and files that change under a run."""
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import train_test  # noqa: E402
from train_test import BAD_FILE, BAD_OPTIONS, BIN, MPIEXEC, environment, train, with_small  # noqa: E402
from watching_test import small_tokenizer  # noqa: E402

MISMATCH = "--allow-tokenizer-mismatch"


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def evaluations(out):
    return [line for line in lines(out) if "eval_loss" in line]


def npy(path, values, kind="<u4"):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({len(values)},), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    letter = {"<u4": "I", "|u1": "B"}[kind]
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                     struct.pack(f"<{len(values)}{letter}", *values))
    return path


class Case(train_test.Case):
    def ids(self, name, ids, vocab, mask=None):
        """A token file of ids made elsewhere."""
        target = self.folder / f"{name}.h5"
        masked = ["--mask", npy(self.folder / f"{name}.mask.npy", mask, "|u1")] if mask else []
        subprocess.run([BIN / "tokenize", "--vocab", str(vocab), "--out", target, *masked,
                        npy(self.folder / f"{name}.npy", ids)], check=True, capture_output=True)
        return target

    def run_on(self, ranks, data, out, *arguments):
        """A run on these files; succeeds."""
        result = train(ranks, "--data", *data, "--out", out, "--verbose", *with_small(*arguments))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result

    def counting(self, name, vocab=256, count=1000, mask=None):
        return self.ids(name, [i * 7 % min(vocab, 251) for i in range(count)], vocab, mask)


class Evaluations(Case):
    def test_they_take_the_same_sequences_of_the_whole_file_on_any_number_of_ranks(self):
        expected = None
        for ranks in (1, 3):
            out = self.out(f"evaluated by {ranks}")
            result = self.succeed(ranks, out, "--steps", 4, "--eval-data", self.held_out, "--eval-every", 2,
                                  "--eval-sequences", 5, "--verbose")
            found = evaluations(out)
            self.assertEqual([line["eval_sequences"] for line in found], [5, 5])
            self.assertEqual(found[0]["eval_targets"], found[1]["eval_targets"])
            expected = expected or found
            self.assertEqual(found, expected)
            part = f"5 of {found[0]['eval_file_sequences']} sequences"
            self.assertIn(f"evaluations take {part} of {self.held_out}, spread evenly over it\n", result.stdout)
            self.assertEqual(result.stdout.count(f", {part}\n"), 2)
        whole = self.out("all of it")
        self.succeed(2, whole, "--steps", 2, "--eval-data", self.held_out, "--eval-sequences", 0)
        last = evaluations(whole)[-1]
        self.assertEqual(last["eval_sequences"], last["eval_file_sequences"])

    def test_a_file_whose_end_is_unlike_its_beginning_is_seen_to_its_end(self):
        # nine tenths of one letter, then all letters: what the first sequences give is far below the whole file
        ids = [97] * 9000 + [i * 7919 % 251 for i in range(1000)]
        data, held_out = self.ids("one letter", [97] * 2000, 256), self.ids("mixed", ids, 256)
        losses, accuracies = {}, {}
        for sequences in (20, 0):
            out = self.out(f"sequences {sequences}")
            self.run_on(1, [data], out, "--steps", 10, "--eval-data", held_out, "--eval-sequences", sequences)
            losses[sequences] = evaluations(out)[-1]["eval_loss"]
            accuracies[sequences] = evaluations(out)[-1]["eval_accuracy"]
        self.assertGreater(losses[0], 0.5)
        self.assertAlmostEqual(accuracies[0], 0.9, delta=0.02)  # the model has learnt the one letter
        self.assertLess(abs(losses[20] / losses[0] - 1), 0.1)


class Targets(Case):
    def test_a_training_file_without_any_target_is_refused_by_name(self):
        masked = self.counting("masked", mask=[0] * 1000)
        result = train(2, "--data", self.corpus, masked, "--out", self.out("no targets"), *with_small("--steps", 2),
                       MISMATCH)
        self.assertEqual(result.returncode, BAD_FILE, result.stderr)
        self.assertEqual(result.stderr.count(f"{masked} has no target to train on: its mask leaves out"), 1)
        self.assertFalse((self.folder / "no targets/step-00000002").exists())

    def test_steps_and_evaluations_without_targets_have_no_loss_and_are_counted(self):
        # one target in 40 sequences of 32: at most one of five steps has it
        data = self.counting("one target", count=40 * 32 + 1, mask=[0] * 600 + [1] + [0] * 680)
        held_out = self.counting("unmasked", mask=[0] * 1000)
        out = self.out("rare targets")
        result = self.run_on(2, [data], out, "--steps", 5, "--global-batch", 8, "--eval-data", held_out,
                              "--eval-every", 5)
        steps = [line for line in lines(out) if "loss" in line]
        self.assertEqual(sorted(line["targets"] for line in steps), [0, 0, 0, 0, 1])
        for line in steps:
            self.assertEqual(line["loss"] is None, line["targets"] == 0)
            self.assertFalse(line["skipped"])
        self.assertEqual(result.stdout.count("  no targets  "), 4, result.stdout)
        self.assertEqual(result.stderr.count("has no target, and changes no parameter"), 1)
        self.assertIn("4 of 5 steps had no target, and changed no parameter\n", result.stderr)
        info = json.loads(subprocess.run([BIN / "inspect", out, "--json"], capture_output=True, text=True,
                                         check=True).stdout)["info"]
        self.assertEqual((info["updates"], info["skipped"]), (1, 0))
        evaluated = evaluations(out)[-1]
        self.assertIsNone(evaluated["eval_loss"])
        self.assertEqual(evaluated["eval_targets"], 0)
        self.assertIsNone(evaluated["eval_accuracy"])
        self.assertNotIn("bits_per_byte", evaluated)
        self.assertIn("evaluation at step 5: no targets in 32 of 32 sequences\n", result.stdout)
        self.assertEqual(result.stderr.count("the evaluation has no target in 32 of 32 sequences"), 1)


class DataSets(Case):
    """Folders and lists of token files in place of a file."""

    def shards(self, name, sizes):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        for i, size in enumerate(sizes):
            self.counting("part", count=size).rename(folder / f"part-{i}.h5")
        return folder, [folder / f"part-{i}.h5" for i in range(len(sizes))]

    def test_a_folder_and_a_list_are_the_files_by_name_on_any_number_of_ranks(self):
        folder, files = self.shards("shards", (400, 1300, 700))
        listed = self.folder / "shards.list"
        listed.write_text("# three\n" + "".join(f"shards/{file.name}\n" for file in files))
        (folder / "readme.md").write_text("not one of them")
        shutil.copy(files[0], folder / "part.held-out.h5")
        expected = None
        for ranks, data in ((1, files), (3, [folder]), (2, [listed]), (8, [folder])):
            out = self.out(f"set on {ranks}")
            result = self.run_on(ranks, data, out, "--steps", 4, "--global-batch", 16)
            got = train_test.metrics(out), train_test.state_hash(out)
            expected = expected or got
            self.assertEqual(got, expected)
            self.assertEqual(f"--data {data[0]} has 3 token files: {files[0]} to {files[2]}\n" in result.stdout,
                             data != files)
            self.assertEqual(result.stdout.count("1 file of tokenize --held-out is left out\n"), data == [folder])
            self.assertEqual(result.stdout.count("1 file that is not a token file is left out\n"), data == [folder])
        mixed = self.run_on(2, [f"{folder}:3", f"{self.counting('other', count=500)}:1"], self.out("weights"), "--steps", 1)
        self.assertIn("has 3 token files", mixed.stdout)

    def test_another_set_of_files_is_not_continued_unless_allowed(self):
        folder, files = self.shards("growing", (400, 700))
        out = self.out("grown")
        self.run_on(2, [folder], out, "--steps", 2)
        self.assertIn("continuing after step 2", self.run_on(1, [folder], out, "--steps", 3).stdout)
        shutil.copy(files[0], folder / "part-2.h5")
        common = ("--data", folder, "--out", out, *with_small("--steps", 4))
        self.refused(3, BAD_OPTIONS, "was trained on another order of data (the files of --data, or their contents, changed)",
                     *common)
        result = self.run_on(3, [folder], out, "--steps", 4, "--allow-data-change")
        self.assertIn("the data order is another one from step 4 on", result.stdout)

    def test_files_that_do_not_belong_together_are_refused_with_both_names(self):
        folder, files = self.shards("unlike", (400, 700))
        masked = self.counting("masked", count=700, mask=[1] * 700)
        masked.rename(files[1])
        common = ("--out", self.out("refused"), *with_small("--steps", 2), MISMATCH)
        empty = self.folder / "no files"
        empty.mkdir()
        wrong = self.folder / "wrong.list"
        wrong.write_text("nowhere.h5\n")
        self.all_refused(3, BAD_OPTIONS, [
            (f"{files[0]} and {files[1]} of --data {folder} are not one data set: the second has a mask of targets, and the "
             "other none", ["--data", folder, *common]),
            (f"--data {empty}: there is no token file in this folder", ["--data", empty, *common]),
            (f"--data {wrong} line 1: {self.folder / 'nowhere.h5'} is not there", ["--data", wrong, *common])])


class Documents(Case):
    """--documents: whole ones that do not see each other, or joined."""

    def setUp(self):
        super().setUp()
        self.chats = self.folder / "chats.jsonl"
        self.chats.write_text("".join(
            json.dumps({"messages": [{"role": "user", "content": f"{i}?"},
                                     {"role": "assistant", "content": f"{i + 1} {'!' * (i % 40)}"}]}) + "\n"
            for i in range(60)))
        self.tokenizer = self.folder / "tokenizer.json"
        self.tokenizer.write_text(json.dumps(small_tokenizer(258, "<|im_start|>", "<|im_end|>")))

    def tokens(self, *words, name="chats"):
        target = self.folder / f"{name}.h5"
        subprocess.run([BIN / "tokenize", "--tokenizer", self.tokenizer, "--out", target, *words], check=True,
                       capture_output=True)
        return target

    def of_chats(self, *words, name="chats"):
        return self.tokens("--chat", "chatml", *words, self.chats, name=name)

    def begin(self, ranks, data, out, *words):
        return self.run_on(ranks, [data], out, "--steps", "4", "--schedule", "constant", *words)

    def setup_of(self, out):
        return [line for line in lines(out) if line.get("event") == "configuration"][-1]

    def hash_of(self, out):
        shown = subprocess.run([BIN / "inspect", "--hash", out], check=True, capture_output=True, text=True).stdout
        return shown.splitlines()[-1]

    def test_chats_are_separate_by_themselves_and_alike_on_any_number_of_ranks(self):
        for name, words in (("masked", ()), ("whole", ("--loss", "all"))):
            data = self.of_chats(*words, name=name)
            hashes = set()
            for ranks in (1, 2, 3):
                out = self.out(f"{name} {ranks}")
                shown = self.begin(ranks, data, out, "--eval-data", data, "--eval-sequences", "0").stdout
                self.assertRegex(shown, r"documents are separate: 60 in \d+ sequences, \d+\.\d% full")
                setup = self.setup_of(out)
                self.assertEqual(setup["options"]["documents"], "separate")
                packing = setup["packing"]
                self.assertEqual(packing["documents"], 60)
                self.assertEqual(packing["padding"] + packing["tokens"], packing["sequences"] * 32)
                self.assertEqual(setup["pass_sequences"], packing["sequences"])
                for step in (line for line in lines(out) if "tokens_per_second" in line):
                    self.assertLessEqual(step["padding"], step["tokens"])
                hashes.add(self.hash_of(out))
            self.assertEqual(len(hashes), 1)

    def test_text_is_joined_unless_it_is_asked_for(self):
        texts = self.folder / "texts"
        texts.mkdir()
        for i in range(30):
            (texts / f"{i}.txt").write_text(f"text {i} " * (3 + i))
        data = self.tokens(texts, name="text")
        out = self.out("joined")
        self.assertNotIn("documents are separate", self.begin(1, data, out).stdout)
        self.assertEqual(self.setup_of(out)["options"]["documents"], "joined")
        self.assertIsNone(self.setup_of(out)["packing"])
        self.assertEqual({line["padding"] for line in lines(out) if "tokens_per_second" in line}, {0})
        apart = self.out("separate")
        self.assertIn("documents are separate: 30 in", self.begin(1, data, apart, "--documents", "separate").stdout)
        self.assertNotEqual(self.hash_of(out), self.hash_of(apart))

    def test_a_run_continues_as_it_began_and_not_otherwise(self):
        data = self.of_chats()
        for mode in ("separate", "joined"):
            out = self.out(f"begun {mode}")
            self.begin(2, data, out, "--documents", mode)
            shown = self.run_on(3, [data], out, "--schedule", "constant", "--steps", "8").stdout
            self.assertIn("continuing after step", shown)
            self.assertEqual(self.setup_of(out)["options"]["documents"], mode)
            other = "joined" if mode == "separate" else "separate"
            refused = train(1, "--data", data, "--out", out, *with_small("--steps", "12", "--schedule", "constant",
                                                                           "--documents", other))
            self.assertEqual(refused.returncode, BAD_OPTIONS, refused.stdout + refused.stderr)
            self.assertIn(f"--documents was {mode} and is {other}", refused.stderr)
            straight = self.out(f"straight {mode}")
            self.run_on(1, [data], straight, "--documents", mode, "--schedule", "constant", "--steps", "8")
            self.assertEqual(self.hash_of(out), self.hash_of(straight))

    def test_a_file_without_borders_is_refused_by_name_and_joined_by_itself(self):
        data = self.counting("ids", mask=[1] * 1000)
        out = self.out("no borders")
        refused = train(2, "--data", data, "--out", out, *with_small("--documents", "separate"))
        self.assertEqual(refused.returncode, BAD_OPTIONS, refused.stdout + refused.stderr)
        self.assertIn(f"{data} has no border between documents", refused.stderr)
        self.assertNotIn("documents are separate", self.begin(1, data, out).stdout)

    def test_inspect_shows_documents_and_how_they_fill_sequences(self):
        data = self.of_chats()
        out = self.out("filled")
        self.begin(1, data, out)
        shown = json.loads(subprocess.run([BIN / "inspect", data, "--json", "--seq", "32", "--verify"], check=True,
                                          capture_output=True, text=True).stdout)
        self.assertEqual(shown["documents"], 60)
        packing = self.setup_of(out)["packing"]
        self.assertEqual(shown["separate_documents"][0]["sequences"], packing["sequences"])
        self.assertEqual(shown["separate_documents"][0]["padding"], packing["padding"])
        text = subprocess.run([BIN / "inspect", data], check=True, capture_output=True, text=True).stdout
        self.assertRegex(text, r"60 documents")
        self.assertRegex(text, r"documents have \d+ to \d+ tokens")
        refused = subprocess.run([BIN / "inspect", data, "--stats"], capture_output=True, text=True)
        self.assertEqual(refused.returncode, BAD_OPTIONS)
        self.assertIn("is a token file", refused.stderr)
        refused = subprocess.run([BIN / "inspect", out, "--seq", "32"], capture_output=True, text=True)
        self.assertEqual(refused.returncode, BAD_OPTIONS)


class Tokenizers(Case):
    def options(self, out, *more, data=None):
        return ["--data", *(data or [self.corpus]), "--out", self.out(out), *with_small("--steps", 1), *more]

    def refused_or_allowed(self, sentence, *arguments):
        self.refused(2, BAD_OPTIONS, sentence, *arguments)
        result = train(1, *arguments, MISMATCH)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(result.stdout.count(f"allowed by {MISMATCH}: "), 1, result.stdout)
        self.assertIn(sentence, result.stdout)

    def test_data_of_two_tokenizers_and_a_vocabulary_unlike_the_models_are_refused(self):
        wide = self.counting("wide", 1000)
        pair = f"--data {wide} and --data {self.corpus} have other tokens: an unknown tokenizer (1,000 tokens), and bytes"
        self.refused_or_allowed(pair, *self.options("second file", data=[self.corpus, wide]))
        self.refused_or_allowed(
            f"--eval-data {self.held_out} and --data {wide} have other tokens: bytes (256 tokens), and an unknown",
            *self.options("evaluation", "--eval-data", self.held_out, data=[wide]))
        model = self.folder / "config.json"
        model.write_text(json.dumps({
            "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 1000, "hidden_size": 32,
            "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
            "tie_word_embeddings": True, "hidden_act": "silu"}))
        self.refused_or_allowed(
            f"--data {self.corpus} has tokens of bytes (256 tokens), and the model a vocabulary of 1,000",
            *self.options("vocabulary", "--model", model))
        larger = self.counting("larger", 1001)
        self.refused(2, BAD_OPTIONS, "a vocabulary of 1001 tokens, the model one of 1000",
                     *self.options("too large", "--model", model, MISMATCH, data=[larger]))
        result = train(1, *self.options("padded", "--model", model, data=[self.counting("padded", 990)]))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("unknown tokenizer: the ids were made elsewhere"), 1, result.stdout)

    def test_weights_of_another_tokenizer_are_refused_at_init_and_resume_and_by_generate(self):
        first, wide = self.out("of bytes"), self.counting("as wide", 257)
        self.succeed(1, first, "--steps", 1)
        tokens = first / "tokens.json"
        self.assertEqual(json.loads(tokens.read_text())["tokenizer"], "bytes")
        # a model of bytes becomes one of SentencePiece: what the folder says is compared
        own = tokens.read_text()
        (first / "tokenizer.model").write_bytes(b"a model")
        tokens.write_text('{"tokenizer": "sentencepiece", "vocab_size": 256, "end_token": 2}')
        sentence = "have other tokens: bytes (256 tokens), and a SentencePiece model (hash "
        self.refused_or_allowed(sentence, *self.options("init"), "--init", first)
        again = ["--data", self.corpus, "--out", first, *with_small("--steps", 2), "--seed", 5, "--allow-data-change"]
        self.refused(2, BAD_OPTIONS, sentence, *again)
        self.assertEqual(json.loads(tokens.read_text())["tokenizer"], "sentencepiece")  # as it was
        generate = [BIN / "generate", first, "--prompt", "the", "--max-tokens", "2", "--tokenizer", "bytes"]
        result = subprocess.run(generate, capture_output=True, text=True, errors="replace", check=False)
        self.assertEqual(result.returncode, BAD_OPTIONS, result.stderr)
        self.assertIn(f"--tokenizer and {first} {sentence}", result.stderr)
        result = subprocess.run([*generate, MISMATCH], capture_output=True, text=True, errors="replace", check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count("allowed by"), 1)
        # the same data continues, whatever lies beside it, and says so again
        tokens.write_text(own)
        self.succeed(2, first, "--steps", 2)
        self.refused(1, BAD_OPTIONS, "holds another model", "--data", wide, "--out", first, *with_small("--steps", 3))
        moved = self.out("moved")  # nothing is known of a step alone
        shutil.copytree(first / "step-00000002", moved / "step-00000002")
        self.succeed(1, self.out("from moved"), "--init", moved / "step-00000002", "--steps", 1)

    def test_a_hugging_face_folders_tokenizer_is_compared(self):
        first, folder = self.out("bytes"), self.out("exported")
        self.succeed(1, first, "--steps", 1)
        subprocess.run([BIN / "convert", "export", first, folder], check=True, capture_output=True)
        self.succeed(1, self.out("none of its own"), "--steps", 1, "--init", folder)
        (folder / "tokenizer.json").write_text("{}")
        self.refused_or_allowed(f"--data {self.corpus} and --init {folder} have other tokens: bytes (256 tokens), and a "
                                "tokenizer.json", *self.options("json"), "--init", folder)


class Changes(Case):
    """A file that changes while a run reads it: the file is named, exit 3, and the steps that are done are saved."""

    def changed(self, change, *arguments):
        """Starts an endless run, changes its file after the first step, and returns the run's end."""
        out = self.out("changing")
        data = self.folder / "changing.h5"
        shutil.copy(self.corpus, data)
        process = subprocess.Popen(
            [MPIEXEC, "-np", "2", BIN / "train", "--data", data, "--out", out, *with_small(
                "--steps", "100000", *arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment())
        end = time.monotonic() + 60
        while not (out / "metrics.jsonl").exists() or '"loss"' not in (out / "metrics.jsonl").read_text():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        change(data)
        try:
            reported, complaint = process.communicate(timeout=2 if change is self.rename else 60)
            return process.returncode, reported, complaint, data, out
        except subprocess.TimeoutExpired:
            process.terminate()
            process.communicate(timeout=60)
            return None, "", "", data, out

    @staticmethod
    def truncate(path):
        with open(path, "r+b") as file:
            file.truncate(5000)

    def write_over(self, path):
        shutil.copyfile(self.counting("other", 256, 100), path)

    def rename(self, path):
        shutil.copyfile(self.held_out, self.folder / "new.h5")
        (self.folder / "new.h5").rename(path)

    def check_saved(self, out):
        steps = [line["step"] for line in lines(out) if "loss" in line]
        self.assertEqual([p.name for p in out.glob("step-*")], [f"step-{steps[-1]:08}"])

    def test_training_data_that_is_truncated_or_written_over_ends_the_run_with_a_save(self):
        for change in (self.truncate, self.write_over):
            status, reported, complaint, data, out = self.changed(change)
            self.assertEqual(status, BAD_FILE, reported + complaint)
            self.assertEqual(complaint.count(f"{data} was "), 1, complaint)
            self.assertIn("while it was in use: it had ", complaint)
            self.check_saved(out)

    def test_evaluation_data_that_is_truncated_ends_the_run_with_a_save(self):
        held_out = self.folder / "held.h5"
        shutil.copy(self.held_out, held_out)
        status, reported, complaint, _, out = self.changed(
            lambda data: self.truncate(held_out), "--eval-data", held_out, "--eval-every", "1", "--eval-sequences", "3")
        self.assertEqual(status, BAD_FILE, reported + complaint)
        self.assertEqual(complaint.count(f"{held_out} was truncated while it was in use"), 1, complaint)
        self.check_saved(out)

    def test_tokens_that_were_damaged_on_the_way_end_the_run(self):
        for option in ("--data", "--eval-data"):
            damaged = self.folder / "damaged.h5"
            content = bytearray((self.corpus if option == "--data" else self.held_out).read_bytes())
            arrays = [tuple(map(int, found)) for found in re.findall(rb"data (\d+) (\d+)\n", content[:4096])]
            begin, length = max(arrays, key=lambda array: array[1])
            content[begin + length // 2] ^= 1  # a letter of the text: every id stays valid
            damaged.write_bytes(content)
            data = {"--data": self.corpus, option: damaged}
            words = [word for pair in data.items() for word in pair]
            self.refused(2, BAD_FILE, f"{damaged} is damaged: its content has the hash", *words, "--out",
                         self.out("damaged"), *with_small("--steps", 3))

    def test_data_that_is_replaced_by_renaming_is_read_on(self):
        status, reported, complaint, _, _ = self.changed(self.rename)
        self.assertIsNone(status, reported + complaint)


if __name__ == "__main__":
    unittest.main()
