"""Seeing a run: its timeline, and what its model writes."""
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import time
import unittest

from train_test import (BAD_FILE, BAD_OPTIONS, BIN, CANNOT_WRITE, MPIEXEC, Case, environment, events, metrics,
                        state_hash, train, with_small)

GOLDEN = pathlib.Path(os.environ["TESSERA_GOLDEN"])


def generate(*arguments, stdin=""):
    return subprocess.run([BIN / "generate", *map(str, arguments)], capture_output=True, check=False,
                          input=stdin.encode(), timeout=100)


def small_tokenizer(end, *more):
    """A tokenizer.json of the 256 bytes, two merges, the token that ends a text, and more such tokens."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    vocab = {chr(byte) if byte in printable else chr(next(others)): byte for byte in range(256)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
            "pre_tokenizer": byte_level, "decoder": byte_level,
            "added_tokens": [{"id": end + i, "content": content, "single_word": False, "lstrip": False,
                              "rstrip": False, "normalized": False, "special": True}
                             for i, content in enumerate(["<|endoftext|>", *more])],
            "model": {"type": "BPE", "vocab": {**vocab, "th": 256, "the": 257}, "merges": ["t h", "th e"]}}


def top_level(ranges):
    """Those that are within no other one of their lane. Fails where two overlap without nesting."""
    outer, open_ends = [], []
    for event in sorted(ranges, key=lambda e: (e["ts"], -e["dur"])):
        begin, end = event["ts"], event["ts"] + event["dur"]
        while open_ends and open_ends[-1] <= begin + 1e-6:
            open_ends.pop()
        if open_ends:
            assert end <= open_ends[-1] + 1e-6, f"{event} overlaps the range that it begins in"
        else:
            outer.append(event)
        open_ends.append(end)
    return outer


def overlap(event, begin, end):
    return max(0, min(end, event["ts"] + event["dur"]) - max(begin, event["ts"]))


class Trace(Case):
    def test_three_steps_on_two_ranks_nest_align_and_add_up(self):
        out = self.out("traced")
        result = self.succeed(2, out, "--steps", 6, "--seq", 64, "--trace", "3:5", "--save-every", 4,
                              "--page-bytes", "64KiB", "--resident-bytes", "none")
        self.assertIn("the timeline of steps 3 to 5 is in", result.stdout)
        trace = json.loads((out / "trace.json").read_text())
        self.assertEqual((trace["otherData"]["first_step"], trace["otherData"]["last_step"],
                          trace["otherData"]["ranks"]), (3, 5, 2))
        events = trace["traceEvents"]
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        lanes = {}
        for event in events:
            if event["ph"] == "X":
                self.assertIn(event["cat"], ("compute", "exchange", "gather", "paging", "save", "data", "host",
                                             "exposed"))
                self.assertGreaterEqual(event["dur"], 0)
                self.assertGreaterEqual(event["args"]["step"], 3)
                self.assertLessEqual(event["args"]["step"], 5)
                lanes.setdefault((event["pid"], names[event["pid"], event["tid"]]), []).append(event)
        for rank in (0, 1):
            self.assertEqual({lane for at, lane in lanes if at == rank},
                             {"host", "compute", "communication", "page in", "update", "page out", "data",
                              "save"})
        outer = {lane: top_level(ranges) for lane, ranges in lanes.items()}
        steps = {}
        for rank in (0, 1):
            host = lanes[rank, "host"]
            mine = sorted((e for e in host if e["name"] == "step"), key=lambda e: e["ts"])
            self.assertEqual([e["args"]["step"] for e in mine], [3, 4, 5])
            shares = []
            for step in mine:
                begin, end = step["ts"], step["ts"] + step["dur"]
                shares.append(sum(overlap(e, begin, end) for e in outer[rank, "compute"]) / step["dur"])
                self.assertLessEqual(shares[-1], 1.0001)
                exchange, = (e for e in host if e["name"] == "exchange" and begin <= e["ts"] < end)
                steps[rank, step["args"]["step"]] = exchange
            # the phases of the compute lane against the step
            self.assertGreater(statistics.median(shares), 0.98, shares)
            compute = [(e["name"], e["args"].get("unit")) for e in lanes[rank, "compute"]]
            units = ["embedding", "block.0", "block.1", "block.2", "block.3"]
            for unit in units:
                for phase in ("forward", "backward"):
                    self.assertEqual(compute.count((phase, unit)), 3 * 4, f"{phase} {unit}")  # 4 rounds
            moved = [e["name"] for e in lanes[rank, "communication"]]
            for name, count in [("reduce-scatter", 3 * 4 * 6), ("all-gather", 3 * 6), ("norm", 3 * 6)]:
                self.assertEqual(moved.count(name), count, name)
            for lane in ("page in", "page out"):
                self.assertEqual({e["cat"] for e in lanes[rank, lane]}, {"paging"})
            self.assertIn("write shard", [e["name"] for e in lanes[rank, "save"]])
        for step in (3, 4, 5):
            # No rank leaves the exchange of integers before the other has come: one clock.
            one, other = steps[0, step], steps[1, step]
            self.assertGreater(overlap(one, other["ts"] - 1000, other["ts"] + other["dur"] + 1000), 0)
            latest_begin = max(one["ts"], other["ts"])
            self.assertGreaterEqual(min(one["ts"] + one["dur"], other["ts"] + other["dur"]),
                                    latest_begin - 1000)
        self.assertEqual([name.name for name in out.iterdir() if name.name.startswith("trace")], ["trace.json"])

    def test_a_trace_changes_nothing_and_ends_with_the_run(self):
        plain, traced = self.out("plain"), self.out("traced to the end")
        self.succeed(3, plain, "--steps", 4)
        self.succeed(3, traced, "--steps", 4, "--trace", "2:9")
        self.assertEqual(metrics(plain), metrics(traced))
        self.assertEqual(state_hash(plain), state_hash(traced))
        trace = json.loads((traced / "trace.json").read_text())
        self.assertEqual(trace["otherData"]["last_step"], 4)

    def test_a_trace_of_steps_that_are_done_is_reported_and_its_range_is_what_it_holds(self):
        out = self.out("traced later")
        self.succeed(2, out, "--steps", 3)
        past = self.succeed(2, out, "--steps", 4, "--trace", "1:2")
        self.assertIn("--trace 1:2: these steps were done before, up to step 3: no timeline is written", past.stdout)
        self.assertFalse((out / "trace.json").exists())
        half = self.succeed(2, out, "--steps", 6, "--trace", "2:20")
        self.assertIn("--trace 2:20: the timeline begins at step 5, where this start does", half.stdout)
        self.assertIn("the timeline of steps 5 to 6 is in", half.stdout)
        reported = json.loads((out / "trace.json").read_text())["otherData"]
        self.assertEqual((reported["first_step"], reported["last_step"]), (5, 6))

    def test_a_trace_that_cannot_be_written_is_refused_at_the_start(self):
        out = self.out("blocked")
        (out / "trace.json" / "in the way").mkdir(parents=True)
        self.refused(2, BAD_OPTIONS, "trace.json is a folder: give the name of a file", "--data", self.corpus, "--out", out, *with_small(),
                     "--steps", 2, "--trace", "1:1")

    def test_a_trace_that_cannot_be_written_later_ends_no_run(self):
        out = self.out("blocked later")
        steps = 60
        command = [MPIEXEC, "-np", 2, BIN / "train", "--data", self.corpus, "--out", out,
                   *with_small("--steps", steps, "--trace", f"{steps}:{steps}")]
        run = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env=environment())
        while run.poll() is None and not ((out / "metrics.jsonl").exists() and metrics(out)):
            time.sleep(0.01)
        (out / "trace.json" / "in the way").mkdir(parents=True)
        _, stderr = run.communicate(timeout=100)
        self.assertEqual(run.returncode, 0, stderr)
        self.assertIn("no timeline", stderr)
        self.assertEqual(len(metrics(out)), steps)
        self.assertEqual([p.name for p in out.glob("trace.json.part")], [])

    def test_steps_that_make_no_range_are_refused(self):
        for text, reported in [("5", "give the first and the last step"), ("5:4", "is behind the last"),
                           ("0:4", "--trace"), ("a:b", "--trace"), ("1:", "--trace")]:
            self.refused(1, BAD_OPTIONS, reported, "--data", self.corpus, "--out", self.out("none"), "--trace", text)


class Samples(Case):
    def test_samples_change_nothing_about_training_and_are_those_of_generate(self):
        plain, talking = self.out("silent"), self.out("talking")
        self.succeed(2, plain, "--steps", 4)
        result = self.succeed(2, talking, "--steps", 4, "--sample-every", 2, "--sample-prompt", "the fox",
                              "--sample-tokens", 20, "--sample-temperature", 0, "--keep", 9)
        self.assertEqual(metrics(plain), metrics(talking))
        self.assertEqual(state_hash(plain), state_hash(talking))
        samples = [event["text"] for event in events(talking, "sample")]
        self.assertEqual([text.split(":")[0] for text in samples], ["sample at step 2", "sample at step 4"])
        self.assertEqual(result.stdout.count("sample at step 4: the fox"), 1)
        alone = generate(talking, "--prompt", "the fox", "--max-tokens", 20, "--temperature", 0)
        self.assertEqual(alone.returncode, 0, alone.stderr)
        self.assertEqual(samples[-1].split(": ", 1)[1][:7], "the fox")
        # what is not text of letters is shown as '?' in the log
        shown = "".join(chr(b) if 32 <= b < 127 else "?" for b in alone.stdout.rstrip(b"\n"))
        reported = "".join(c if 32 <= ord(c) < 127 else "?" for c in samples[-1].split(": ", 1)[1])
        self.assertEqual(reported[:10], shown[:10])

    def test_prompts_side_by_side_write_what_each_writes_alone_wherever_parameters_are(self):
        prompts = ["the fox", "say \"hello, dog\"\n#1: with more than one tile", "the fox", "a"]
        common = ["--steps", 2, "--sample-every", 1, "--sample-tokens", 9]

        def written(name, ranks, given, *more):
            out = self.out(name)
            options = [word for prompt in given for word in ("--sample-prompt", prompt)]
            result = self.succeed(ranks, out, *common, *options, *more)
            rows = events(out, "sample")
            self.assertEqual(result.stdout.count("sample"), result.stdout.count("sample-") + len(rows))
            return {(row["step"], row["prompt"]): row["text"].split(": ", 1) for row in rows}
        together = written("prompts", 1, prompts)
        self.assertEqual(sorted(together), [(step, prompt) for step in (1, 2) for prompt in (1, 2, 3, 4)])
        for (step, prompt), (name, text) in together.items():
            self.assertEqual(name, f"sample {prompt} at step {step}")
            self.assertTrue(text.startswith(prompts[prompt - 1].splitlines()[0]), text)
        self.assertNotEqual(together[2, 1][1], together[2, 3][1])  # the same prompt, other random numbers
        alone = written("prompt alone", 1, prompts[:1])
        self.assertEqual([(key, text) for key, (_, text) in alone.items()],
                         [((step, 1), together[step, 1][1]) for step in (1, 2)])
        for ranks in 1, 2, 3:
            for where in ["--zero", 3], ["--params", "host"]:
                self.assertEqual(written(f"prompts {ranks} {where[1]}", ranks, prompts, *where), together)
        # the likeliest tokens do not depend on random numbers: each text is what its prompt gives alone
        cold = written("cold", 3, prompts, "--zero", 3, "--sample-temperature", 0)
        self.assertEqual(cold[2, 1][1], cold[2, 3][1])
        for number, prompt in enumerate(prompts, 1):
            one = written(f"cold {number}", 1, [prompt], "--sample-temperature", 0)
            self.assertEqual([one[step, 1] for step in (1, 2)],
                             [[f"sample at step {step}", cold[step, number][1]] for step in (1, 2)])

    def test_samples_that_cannot_be_are_refused(self):
        for arguments, reported in [
                (["--sample-every", 2], "--sample-every needs --sample-prompt"),
                (["--sample-prompt", "a"], "--sample-prompt needs --sample-every"),
                (["--sample-every", 2, *["--sample-prompt", "a"] * 17], "--sample-prompt is given 17 times: at most 16"),
                (["--sample-every", 2, "--sample-prompt", "a", "--sample-tokens", 999999999],
                 "more than the model's 40960 positions")]:
            self.refused(2, BAD_OPTIONS, reported, "--data", self.corpus, "--out", self.out("none"), *arguments)


class Generate(Case):
    def test_text_of_a_run_and_of_its_step_with_the_cache_and_without(self):
        out = self.out("writer")
        self.succeed(2, out, "--steps", 3)
        first = generate(out, "--prompt", "the lazy", "--max-tokens", 40, "--seed", 5)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertTrue(first.stdout.startswith(b"the lazy"))
        self.assertEqual(len(first.stdout), len("the lazy") + 40 + 1)
        step = next(out.glob("step-*"))
        for again in (generate(step, "--prompt", "the lazy", "--max-tokens", 40, "--seed", 5),
                      generate(out, "--prompt", "the lazy", "--max-tokens", 40, "--seed", 5, "--no-cache"),
                      generate(out, "--prompt", "the lazy", "--max-tokens", 40, "--seed", 5, "--tokenizer",
                               "bytes")):
            self.assertEqual(again.stdout, first.stdout)
        other = generate(out, "--prompt", "the lazy", "--max-tokens", 40, "--seed", 6)
        self.assertNotEqual(other.stdout, first.stdout)
        ids = generate(out, "--prompt", "the lazy", "--max-tokens", 40, "--seed", 5, "--ids").stdout
        self.assertEqual(bytes(int(n) for n in ids.split(b",")), first.stdout[8:-1])

    def test_text_of_a_sentencepiece_model(self):
        words = GOLDEN / "sentencepiece" / "words.model"
        text = self.folder / "words.txt"
        text.write_text("the quick brown fox jumps over the lazy dog\n" * 400)
        corpus = self.folder / "words.h5"
        subprocess.run([BIN / "tokenize", "--tokenizer", words, "--out", corpus, text], check=True, capture_output=True)
        out = self.out("words")
        result = train(2, "--data", corpus, "--out", out, *with_small("--steps", 40))
        self.assertEqual(result.returncode, 0, result.stderr)
        how = ("--max-tokens", 12, "--temperature", 0)
        written = generate(out, "--prompt", "the lazy dog", *how)
        self.assertEqual(written.returncode, 0, written.stderr)
        self.assertTrue(written.stdout.startswith(b"the lazy dog"), written.stdout)
        # what the sentencepiece package makes of the prompt, continued by ids
        by_ids = generate(out, "--prompt-ids", "3,5,26,7,34,16,35", *how, "--ids").stdout
        self.assertEqual(generate(out, "--prompt", "the lazy dog", *how, "--ids").stdout, by_ids)
        # a model from elsewhere brings its tokenizer along
        folder = self.folder / "with words"
        shutil.copytree(GOLDEN / "tied", folder)
        shutil.copy(words, folder / "tokenizer.model")
        imported = self.out("with its words")
        subprocess.run([BIN / "convert", "import", folder, imported], check=True, capture_output=True)
        self.assertEqual(generate(imported, "--prompt", "the lazy dog", *how).stdout,
                         generate(folder, "--prompt", "the lazy dog", *how, "--tokenizer", words).stdout)

    def test_a_tokenizer_json_goes_from_its_folder_to_the_model_that_is_exported(self):
        source = self.folder / "their tokenizer"
        source.mkdir()
        stop, end = ord("o"), 258  # a letter that even a model of few steps writes
        files = {"tokenizer.json": json.dumps(small_tokenizer(end)),
                 "tokenizer_config.json": '{"eos_token": "<|endoftext|>"}',
                 "generation_config.json": json.dumps({"eos_token_id": [stop]})}
        for name, content in files.items():
            (source / name).write_text(content)
        texts = self.folder / "texts"
        texts.mkdir()
        for i in range(200):
            (texts / f"{i}.txt").write_text("the quick brown fox jumps over the lazy dog")
        corpus = self.folder / "theirs.h5"
        subprocess.run([BIN / "tokenize", "--tokenizer", source, "--out", corpus, texts], check=True, capture_output=True)
        shown = subprocess.run([BIN / "tokenize", "--check", corpus], check=True, capture_output=True, text=True).stdout
        self.assertIn("beside the tokenizer: generation_config.json", shown)
        out, exported, imported = self.out("theirs"), self.folder / "exported", self.out("imported again")
        result = train(2, "--data", corpus, "--out", out, *with_small(
            "--steps", 40, "--sample-every", 40, "--sample-prompt", "the quick", "--sample-temperature", 0))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("sample at step 40: the quick", result.stdout)
        for name, content in files.items():
            self.assertEqual((out / name).read_text(), content)
        shutil.rmtree(source)  # nothing but the run is needed from here on
        how = ("--prompt", "the quick", "--max-tokens", 60, "--temperature", 0)
        written = generate(out, *how)
        self.assertEqual(written.returncode, 0, written.stderr)
        subprocess.run([BIN / "convert", "export", out, exported, "--dtype", "f32"], check=True, capture_output=True)
        stops = json.loads((exported / "generation_config.json").read_text())
        self.assertEqual(stops, {"eos_token_id": [stop, end]})  # where generate stops, too
        for name in "tokenizer.json", "tokenizer_config.json":
            self.assertEqual((exported / name).read_text(), files[name])
        subprocess.run([BIN / "convert", "import", exported, imported], check=True, capture_output=True)
        for folder in exported, imported:
            self.assertEqual(generate(folder, *how).stdout, written.stdout)
        # without what was beside it only the tokenizer's own end is an end
        bare = self.folder / "bare.json"
        bare.write_text(files["tokenizer.json"])
        longer = generate(out, *how, "--tokenizer", bare)
        self.assertEqual(longer.returncode, 0, longer.stderr)
        self.assertIn(b"o", longer.stdout.removeprefix(b"the quick"))
        self.assertEqual(written.stdout, b"the quick" + longer.stdout.removeprefix(b"the quick").split(b"o")[0] + b"\n")

    def test_the_golden_model_and_its_import_write_the_tokens_of_transformers(self):
        imported = self.out("imported")
        subprocess.run([BIN / "convert", "import", GOLDEN / "untied", imported], check=True, capture_output=True)
        case = json.loads((GOLDEN / "untied" / "greedy.json").read_text())["cases"][1]
        for folder in (GOLDEN / "untied", imported):
            result = generate(folder, "--prompt-ids", ",".join(map(str, case["prompt"])), "--max-tokens",
                              len(case["tokens"]), "--temperature", 0)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual([int(n) for n in result.stdout.split(b",")], case["tokens"])

    def test_a_chat_is_answered_turn_by_turn_until_the_end_of_a_turn(self):
        source, out = self.folder / "chatty", self.out("chatty")
        source.mkdir()
        start, end = 259, 260
        (source / "tokenizer.json").write_text(json.dumps(small_tokenizer(258, "<|im_start|>", "<|im_end|>")))
        answers = {"fox": "jumps", "dog": "sleeps"}

        def messages(*questions):
            return [message for question in questions
                    for message in ({"role": "user", "content": question},
                                    {"role": "assistant", "content": answers[question]})]

        chats = self.folder / "chats.jsonl"
        with open(chats, "w", encoding="utf-8") as file:
            for i in range(400):
                questions = [("fox", "dog"), ("dog", "fox"), ("fox",), ("dog",)][i % 4]
                file.write(json.dumps({"messages": messages(*questions)}) + "\n")
        corpus = self.folder / "chats.h5"
        subprocess.run([BIN / "tokenize", "--tokenizer", source, "--chat", "chatml", "--out", corpus, chats],
                       check=True, capture_output=True)
        result = train(2, "--data", corpus, "--out", out, *with_small("--steps", 300, "--lr", "3e-3"))
        self.assertEqual(result.returncode, 0, result.stderr)

        def turn(role, text):
            return [start, *f"{role}\n{text}".encode(), end, *b"\n"]

        opening = [start, *b"assistant\n"]
        greedy = ("--temperature", 0, "--max-tokens", 12)

        def continuation(ids):
            written = generate(out, "--prompt-ids", ",".join(map(str, ids)), *greedy)
            self.assertEqual(written.returncode, 0, written.stderr)
            return bytes(int(n) for n in written.stdout.split(b",") if n.strip()).decode()

        asked = [*turn("system", "S"), *turn("user", "fox")]
        first = continuation(asked + opening)
        second = continuation(asked + turn("assistant", first) + turn("user", "dog") + opening)
        chat = generate(out, "--chat", "chatml", "--system", "S", *greedy, stdin="fox\r\n\ndog")
        self.assertEqual(chat.returncode, 0, chat.stderr)
        self.assertEqual(chat.stdout.decode(), f"{first}\n{second}\n")
        learned = generate(out, "--chat", "chatml", *greedy, stdin="fox\ndog\n")
        self.assertEqual(learned.stdout.decode(), "jumps\nsleeps\n")
        self.assertEqual(learned.stderr, b"")
        alone = generate(out, "--chat", "chatml", "--prompt", "dog", *greedy)
        self.assertEqual(alone.stdout.decode(), "sleeps\n")
        cut = generate(out, "--chat", "chatml", "--prompt", "dog", "--temperature", 0, "--max-tokens", 3)
        self.assertEqual(cut.stdout.decode(), "sle\n")
        self.assertIn("the answer is cut off after 3 tokens: --max-tokens", cut.stderr.decode())
        # a format of the user's own: the same chat by prefixes and suffixes, whose answers a text ends
        own = self.folder / "own.json"
        own.write_text(json.dumps({"tokens": ["<|im_start|>", "<|im_end|>"], "roles": {
            "user": {"prefix": "<|im_start|>user\n", "suffix": "<|im_end|>\n"},
            "assistant": {"prefix": "<|im_start|>assistant\n", "suffix": "eeps"}}}))
        ended = generate(out, "--chat", own, "--prompt", "dog", *greedy)
        self.assertEqual(ended.stdout.decode(), "sl\n", ended.stderr)
        by_template = generate(out, "--chat", "auto", "--prompt", "fox", *greedy)  # that tokenize has kept
        self.assertEqual(by_template.stdout.decode(), "jumps\n", by_template.stderr)
        for template in out.rglob("chat_template.jinja"):
            template.unlink()
        for code, reported, arguments in [
                (BAD_OPTIONS, "has no chat template: give the format with --chat", ["--chat", "auto"]),
                (BAD_OPTIONS, "--chat alpaca is neither auto, one of chatml", ["--chat", "alpaca"]),
                (BAD_OPTIONS, "has no <|begin_of_text|>", ["--chat", "llama3"]),
                (BAD_OPTIONS, "the chat has a turn of the role \"system\"", ["--chat", own, "--system", "S"]),
                (BAD_OPTIONS, "positions: begin another one", ["--chat", "chatml", "--prompt", "x" * 41000])]:
            result = generate(out, *arguments, stdin="fox\n")
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(reported, result.stderr.decode())
            self.assertEqual(result.stdout, b"")

    def test_what_cannot_be_continued_is_refused(self):
        out = self.out("refusing")
        self.succeed(1, out, "--steps", 1)
        theirs = self.out("theirs")
        shutil.copytree(GOLDEN / "tied", theirs)
        (theirs / "tokenizer.json").write_text("{}")
        for code, reported, arguments in [
                (BAD_OPTIONS, "there is no folder", [out / "step-00000099", "--prompt", "a"]),
                (BAD_FILE, "holds no complete checkpoint", [self.folder, "--prompt", "a"]),
                (BAD_OPTIONS, "--prompt is empty", [out, "--prompt", ""]),
                (BAD_OPTIONS, "either --prompt TEXT, --prompt-ids ID,ID,... or --chat FORMAT", [out]),
                (BAD_OPTIONS, "--system goes with --chat", [out, "--prompt", "a", "--system", "b"]),
                (BAD_OPTIONS, "--samples continues texts: leave it or --chat out",
                 [out, "--chat", "chatml", "--samples", "2"]),
                (BAD_OPTIONS, "--prompt-ids continues texts", [out, "--chat", "chatml", "--prompt-ids", "1"]),
                (BAD_OPTIONS, "--chat is empty: give auto, the name of a format, or its file", [out, "--chat", ""]),
                (BAD_OPTIONS, "chats need a tokenizer.json or a file in tiktoken's form, not bytes", [out, "--chat", "chatml"]),
                (BAD_OPTIONS, "has no tokenizer of its own", [GOLDEN / "tied", "--chat", "chatml"]),
                (BAD_OPTIONS, "outside the model's vocabulary of 256 tokens", [out, "--prompt-ids", "3,256"]),
                (BAD_OPTIONS, "the tokenizer has 256 ids and the model 128",
                 [GOLDEN / "tied", "--prompt", "a", "--tokenizer", "bytes"]),
                (BAD_OPTIONS, "has no tokenizer of its own", [GOLDEN / "tied", "--prompt", "a"]),
                (BAD_FILE, f"{theirs}/tokenizer.json: it has no model", [theirs, "--prompt", "a"]),
                (BAD_FILE, "tokenizer.json: it has no model",
                 [GOLDEN / "tied", "--prompt", "a", "--tokenizer", theirs / "tokenizer.json"]),
                (BAD_OPTIONS, "--tokenizer-kind bpe is not a kind", [
                    out, "--prompt", "a", "--tokenizer", theirs, "--tokenizer-kind", "bpe"]),
                (BAD_OPTIONS, "there is no option --tokens; did you mean --max-tokens?", [out, "--tokens", "4"]),
                (BAD_OPTIONS, "there is no option --sample-tokens; did you mean --max-tokens?", [out, "--sample-tokens", "4"]),
                (BAD_OPTIONS, "more than the model's 64 positions",
                 [GOLDEN / "tied", "--prompt-ids", "1", "--max-tokens", "64"]),
                (BAD_OPTIONS, "--top-p 0 leaves no token", [out, "--prompt", "a", "--top-p", "0"]),
                (BAD_OPTIONS, "--temperature", [out, "--prompt", "a", "--temperature", "-1"]),
                (BAD_OPTIONS, "choose cpu, cuda", [out, "--prompt", "a", "--device", "tpu"]),
                (BAD_FILE, "is not a SentencePiece model", [out, "--prompt", "a", "--tokenizer", self.corpus])]:
            result = generate(*arguments)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(reported, result.stderr.decode())
            self.assertEqual(result.stdout, b"")


if __name__ == "__main__":
    unittest.main()
