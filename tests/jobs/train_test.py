"""train as a user runs it: the same numbers on any number of ranks, runs that stop and continue, ranks that
die, inputs at every edge, and what it says about options that make no run."""
import concurrent.futures
import hashlib
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from launcher import MPIEXEC, is_gone, is_mpich, pids_by_rank, statuses_of_kill, wait_for_ranks  # noqa: E402,F401

BIN = pathlib.Path(os.environ["TESSERA_BIN"])
BAD_OPTIONS, BAD_FILE, CANNOT_WRITE, LOST_RANK, DIVERGED, HANG, RESTART = 2, 3, 4, 6, 7, 8, 85
SMALL = {"--seq": "32", "--micro-batch": "2", "--global-batch": "16", "--lr": "1e-2"}


def with_small(*arguments):
    """The options of a small run, but for those that are given."""
    given = [str(argument) for argument in arguments]
    return [word for pair in SMALL.items() if pair[0] not in given for word in pair] + given


def environment(**more):
    return dict(os.environ, **more)


def train(ranks, *arguments, **more):
    return subprocess.run([MPIEXEC, "-np", str(ranks), BIN / "train", *map(str, arguments)],
                          capture_output=True, text=True, env=environment(**more), check=False,
                          stdin=subprocess.DEVNULL, timeout=250)


def metrics(out):
    """(step, loss, grad_norm) of each step, as the text in the file: equal text is equal bits."""
    rows = []
    for line in (out / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line, parse_float=str)
        if "loss" in row:
            rows.append((row["step"], row["loss"], row["grad_norm"]))
    return rows


def events(out, name):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row.get("event") == name]


def state_hash(folder):
    result = subprocess.run([BIN / "inspect", folder, "--hash"], capture_output=True, text=True,
                            check=True)
    return result.stdout.splitlines()[-1]


def evaluated(out):
    """Loss, accuracy and targets of the last evaluation, as they are printed."""
    rows = [json.loads(line, parse_float=str) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if "eval_loss" in row][-1]
    return last["eval_loss"], last["eval_accuracy"], last["eval_targets"]


def parameters(result):
    """The hash that a run ends with."""
    return result.stdout.rsplit("parameters ", 1)[1].split()[0]


def windows_taken(folder):
    result = subprocess.run([BIN / "inspect", folder, "--json"], capture_output=True, text=True, check=True)
    return json.loads(result.stdout)["info"]["windows_taken"]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="tessera ü %1 '")
        cls.folder = pathlib.Path(cls.scratch.name)
        text = cls.folder / "text"
        text.mkdir()
        words = random.Random(20261127)
        for i in range(40):
            lines = [" ".join(words.choice("the a fox dog runs sleeps over under lazy quick".split())
                              for _ in range(12)) for _ in range(4)]
            (text / f"file {i}.txt").write_text("\n".join(lines))
        cls.corpus = cls.folder / "corpus.h5"
        subprocess.run([BIN / "tokenize", "--tokenizer", "bytes", "--held-out", "0.1", "--out", cls.corpus,
                        text], check=True, capture_output=True)
        cls.held_out = cls.folder / "corpus.held-out.h5"

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def out(self, name):
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    def succeed(self, ranks, out, *arguments, **more):
        result = train(ranks, "--data", self.corpus, "--out", out, *with_small(*arguments), **more)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result

    def refused(self, ranks, code, sentence, *arguments, **more):
        return self.is_refusal(train(ranks, *arguments, **more), code, sentence)

    def all_refused(self, ranks, code, cases):
        """`cases`: (sentence, arguments). A few at a time: mpirun waits a second where ranks end with another code than 0."""
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            results = pool.map(lambda case: train(ranks, *case[1]), cases)
            for (sentence, arguments), result in zip(cases, results):
                with self.subTest(arguments=arguments):
                    self.is_refusal(result, code, sentence)

    def is_refusal(self, result, code, sentence):
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        reported = result.stderr.count(sentence)
        self.assertEqual(reported, 1, f"'{sentence}' was reported {reported} times:\n{result.stderr}")
        return result


class Equality(Case):
    def test_twenty_steps_of_tiny_have_the_same_bits_on_any_number_of_ranks(self):
        expected = None
        for ranks, extra in [(1, []), (2, ["--recompute", "block"]), (3, ["--page-bytes", "64KiB",
                             "--resident-bytes", "none"]), (4, ["--recompute", "mlp:1"]), (5, ["--recompute", "mlp"]),
                             (8, ["--batched-forward", 2, "--grad-offload", "--recompute", "block", "--page-bytes",
                                  "64KiB", "--resident-bytes", "none"])]:
            out = self.out(f"ranks {ranks}")
            self.succeed(ranks, out, "--steps", 20, *extra)
            got = metrics(out), state_hash(out)
            self.assertEqual(len(got[0]), 20)
            expected = expected or got
            self.assertEqual(got, expected, f"{ranks} ranks {extra}")
        self.assertLess(float(expected[0][-1][1]), float(expected[0][0][1]))

    def test_a_reduce_group_is_bit_identical_on_any_number_of_ranks(self):
        expected = None
        for ranks, extra in [(1, []), (3, []), (4, []), (8, ["--ranks-per-node", 4])]:
            out = self.out(f"group {ranks}")
            result = self.succeed(ranks, out, "--steps", 4, "--reduce-group", 4, *extra)
            expected = expected or (metrics(out), state_hash(out))
            self.assertEqual((metrics(out), state_hash(out)), expected)
            self.assertEqual("groups of 4 ranks add their gradients in their node" in result.stdout, bool(extra))

    def test_label_smoothing_and_z_loss_have_the_same_bits_on_any_number_of_ranks(self):
        terms = ["--label-smoothing", "0.1", "--z-loss", "1e-3", "--eval-data", self.held_out, "--eval-sequences", 8]
        expected = None
        for ranks, extra in [(1, []), (3, ["--recompute", "block", "--batched-forward", 2]),
                             (8, ["--resident-bytes", "none", "--page-bytes", "64KiB", "--grad-offload"])]:
            out = self.out(f"terms {ranks}")
            result = self.succeed(ranks, out, "--steps", 4, *terms, *extra)
            got = metrics(out), state_hash(out), evaluated(out)
            expected = expected or got
            self.assertEqual(got, expected, f"{ranks} ranks {extra}")
        self.assertIn("step 4/4  objective ", result.stdout)
        self.assertIn("the loss of a step is the training objective: cross entropy with label smoothing 0.1 + 0.001 x "
                      "(log of the softmax's denominator)^2 (z-loss); evaluations give the cross entropy alone\n",
                      result.stdout)
        plain = self.out("no terms")
        self.succeed(1, plain, "--steps", 4, *terms[4:])
        # the same weights in the first step, and ln(256) squared is 30.7
        added = float(metrics(out)[0][1]) - float(metrics(plain)[0][1])
        self.assertTrue(0.02 < added < 0.05, added)
        self.assertLess(float(evaluated(out)[0]), float(metrics(out)[0][1]))
        self.assertNotEqual(state_hash(out), state_hash(plain))

        result = self.succeed(2, out, "--steps", 5, *terms[:2], "--z-loss", "1e-4")
        self.assertIn("--z-loss was 1e-3 and is 1e-4 from step 5 on\n", result.stdout)
        result = self.succeed(2, plain, "--steps", 5, *terms[:2])
        self.assertIn("--label-smoothing was 0 and is 0.1 from step 5 on\n", result.stdout)

    def test_two_threads_give_the_same_bits_twice(self):
        rows = []
        for name in ("first", "second"):
            out = self.out(name)
            self.succeed(1, out, "--steps", 3, "--threads", 2, "--save-at-end", "false")
            rows.append(metrics(out))
        self.assertEqual(rows[0], rows[1])

    def test_zero_1_says_that_it_depends_on_the_number_of_ranks(self):
        for batch, sentence in ((8, "so the results depend on the number of ranks (2)"),
                                (4, "so the results are those of --zero 2")):
            result = self.succeed(2, self.out("zero 1"), "--steps", 1, "--zero", 1, "--global-batch", batch)
            self.assertEqual(result.stdout.count(sentence), 1, result.stdout)

    def test_fewer_threads_than_asked_for_are_refused(self):
        """oneDNN's products would be wrong, without a word."""
        for variable in ({"OMP_THREAD_LIMIT": "1"}, {"OMP_MAX_ACTIVE_LEVELS": "0"}):
            name, value = next(iter(variable.items()))
            reported = f"--threads 2: OpenMP starts a team of 1 ({name}={value}"
            self.refused(2, BAD_OPTIONS, reported, "--data", self.corpus, "--out", self.out("few"),
                         *with_small("--steps", 1, "--threads", 2), **variable)
        result = subprocess.run([BIN / "generate", self.out("none"), "--prompt", "a", "--threads", "2"],
                                capture_output=True, text=True, check=False,
                                env=environment(OMP_THREAD_LIMIT="1"))
        self.assertEqual(result.returncode, BAD_OPTIONS, result.stderr)
        self.assertIn("OMP_THREAD_LIMIT=1", result.stderr)
        self.succeed(1, self.out("dynamic"), "--steps", 1, "--threads", 2, OMP_DYNAMIC="true")

    def test_evaluation_and_saves_change_nothing_about_training(self):
        plain, busy = self.out("plain"), self.out("busy")
        self.succeed(2, plain, "--steps", 4)
        self.succeed(8, busy, "--steps", 4, "--eval-data", self.held_out, "--eval-every", 1,
                     "--save-every", 1, "--keep", 2)
        self.assertEqual(metrics(plain), metrics(busy))
        self.assertEqual(state_hash(plain), state_hash(busy))
        self.assertEqual(len(events(busy, "save")), 4)


class Resume(Case):
    SCHEDULE = ["--schedule", "cosine", "--schedule-steps", "10", "--warmup", "2", "--eval-every", "2"]

    def test_ten_steps_equal_four_and_three_and_three(self):
        data = ["--eval-data", self.held_out, "--global-batch", "32"]  # crosses an epoch's end
        straight, parts = self.out("straight"), self.out("parts")
        self.succeed(2, straight, "--steps", 10, *self.SCHEDULE, *data)
        for steps in (4, 7, 10):
            result = self.succeed(2, parts, "--steps", steps, *self.SCHEDULE, *data)
            self.assertEqual("continuing after step" in result.stdout, steps > 4)
        self.assertEqual(metrics(parts), metrics(straight))
        self.assertEqual(state_hash(parts), state_hash(straight))
        manifest = json.loads(subprocess.run([BIN / "inspect", parts, "--json"], capture_output=True,
                                             text=True, check=True).stdout)
        self.assertIn("10", json.dumps(manifest))

    def test_other_numbers_of_ranks_go_on_with_the_same_bits(self):
        straight, parts = self.out("four ranks"), self.out("changing ranks")
        self.succeed(4, straight, "--steps", 10, *self.SCHEDULE, "--eval-data", self.held_out)
        for steps, ranks in ((4, 4), (7, 1), (10, 3)):
            self.succeed(ranks, parts, "--steps", steps, *self.SCHEDULE, "--eval-data", self.held_out)
        self.assertEqual(metrics(parts), metrics(straight))
        self.assertEqual(state_hash(parts), state_hash(straight))

    def test_one_checkpoint_goes_on_alike_with_any_number_of_ranks(self):
        first, straight = self.out("saved by eight"), self.out("never stopped")
        saved = parameters(self.succeed(8, first, "--steps", 2, "--schedule-steps", 4))
        self.assertEqual(windows_taken(first), 2 * 16)  # where the data continues: see data_loader_test.cpp
        self.succeed(1, straight, "--steps", 4)
        expected = metrics(straight), state_hash(straight)
        for ranks in (1, 2, 3):
            out = self.out(f"loaded by {ranks}")
            shutil.copytree(first, out)
            loaded = self.succeed(ranks, out, "--steps", 2, "--schedule-steps", 4)  # nothing is left to do
            self.assertEqual(parameters(loaded), saved, f"{ranks} ranks")
            self.assertEqual(state_hash(out), state_hash(first))
            self.succeed(ranks, out, "--steps", 4, "--page-bytes", "48KiB", "--resident-bytes", "none")
            self.assertEqual(windows_taken(out), 4 * 16)
            self.assertEqual((metrics(out), state_hash(out)), expected, f"{ranks} ranks")

    def test_parameters_in_shards_and_on_the_host_go_on_with_the_same_bits(self):
        common = ["--schedule-steps", 6, "--eval-data", self.held_out, "--eval-every", 2, "--sample-every", 3,
                  "--sample-prompt", "a", "--sample-tokens", 5, "--global-batch", 28, "--micro-batch", 4,
                  "--sample-prompt", "several prompts share what is gathered"]
        straight, out = self.out("whole copies"), self.out("shards")
        whole = self.succeed(1, straight, "--steps", 6, *common)
        printed = []
        for steps, ranks, more in ((2, 3, ["--zero", 3]), (4, 5, ["--params", "host", "--recompute", "block"]),
                                   (6, 2, ["--zero", 3, "--params", "host", "--batched-forward", 3])):
            printed.append(self.succeed(ranks, out, "--steps", steps, *common, *more, "--verbose").stdout)
        self.assertEqual(metrics(out), metrics(straight))
        self.assertEqual(state_hash(out), state_hash(straight))
        self.assertIn("each rank stores 1/3 of them on its device; blocks are gathered ahead of use", printed[0])
        self.assertIn("each rank stores 1/5 of them in pinned host memory", printed[1])
        self.assertNotIn(": the results have", "".join(printed))

        def samples(text):
            return [line for line in text.splitlines() if re.search(r"sample \d at step", line)]
        self.assertEqual(samples("\n".join(printed)), samples(whole.stdout))
        self.assertEqual(len(samples(whole.stdout)), 4)

    def test_packed_and_whole_masters_continue_each_other(self):
        rounded = ["--precision", "bf16-params", "--schedule-steps", 6]
        paged = ["--resident-bytes", "none", "--page-bytes", "40KiB"]  # auto: packed
        whole = ["--master-weights", "f32"]
        straight, exact = self.out("whole masters"), self.out("exact parameters")
        ends = parameters(self.succeed(2, straight, "--steps", 6, *rounded, *whole))
        expected = metrics(straight), state_hash(straight)
        self.assertNotEqual(parameters(self.succeed(2, exact, "--steps", 6)), ends)
        self.assertIn("10 bytes per parameter", train(1, "--plan", *rounded, *paged).stdout)
        self.assertIn("12 bytes per parameter", train(1, "--plan", *rounded, *paged, *whole).stdout)
        for (ranks, first), (more, last) in (((1, paged), (8, whole)), ((3, whole), (5, paged + ["--save-every", 1])),
                                             ((2, ["--master-weights", "packed"]), (2, paged + whole))):
            out = self.out(f"masters of {ranks} and {more}")
            self.succeed(ranks, out, "--steps", 3, *rounded, *first)
            result = self.succeed(more, out, "--steps", 6, *rounded, *last)
            self.assertEqual((metrics(out), state_hash(out), parameters(result)), (*expected, ends), f"{ranks} to {more}")

    def test_rounded_moments_continue_with_the_same_bits(self):
        paged = ["--resident-bytes", "none", "--page-bytes", "40KiB"]
        for moments in ("bf16", "8bit"):
            options = ["--moments", moments, "--schedule-steps", 6]
            straight, out = self.out("straight " + moments), self.out(moments)
            self.succeed(1, straight, "--steps", 6, *options)
            self.succeed(3, out, "--steps", 3, *options, *paged, "--save-every", 1)
            shown = json.loads(subprocess.run([BIN / "inspect", out, "--json"], capture_output=True, text=True,
                                              check=True).stdout)["info"]
            self.assertEqual(shown["moments"], moments)
            self.succeed(8, out, "--steps", 6, *options)
            self.assertEqual((metrics(out), state_hash(out)), (metrics(straight), state_hash(straight)))
            subprocess.run([BIN / "inspect", out, "--verify"], check=True, capture_output=True)
        changed = self.succeed(2, out, "--steps", 7, "--schedule-steps", 6, "--moments", "bf16")
        self.assertIn("--moments was 8bit and is bf16 from step 7 on: the results change bit for bit", changed.stdout)
        self.succeed(2, out, "--steps", 8, "--schedule-steps", 6)

    def test_muon_continues_with_the_same_bits_on_other_ranks_and_not_from_adamw(self):
        muon = ["--optimizer", "muon", "--muon-lr", "5e-3", "--schedule-steps", 6]
        paged = ["--resident-bytes", "none", "--page-bytes", "40KiB"]
        straight, out, adamw = self.out("straight muon"), self.out("muon"), self.out("before muon")
        self.succeed(1, straight, "--steps", 6, *muon)
        self.succeed(3, out, "--steps", 3, *muon, *paged, "--save-every", 1)
        self.succeed(8, out, "--steps", 6, *muon, *paged, "--grad-offload")
        self.assertEqual((metrics(out), state_hash(out)), (metrics(straight), state_hash(straight)))
        subprocess.run([BIN / "inspect", out, "--verify"], check=True, capture_output=True)
        shown = json.loads(subprocess.run([BIN / "inspect", out, "--json"], capture_output=True, text=True,
                                          check=True).stdout)["info"]
        self.assertEqual(shown["optimizer"], "muon")
        by_name = subprocess.run([BIN / "inspect", out, "--param", "block.0.mlp.down", "--at", "3,7"], capture_output=True,
                                 text=True, check=True).stdout
        self.assertIn("exp_avg", by_name)
        self.succeed(2, adamw, "--steps", 2)
        common = ["--data", self.corpus, *with_small(), "--steps", 4, *muon]
        self.refused(2, BAD_OPTIONS, "holds the state of optimizer adamw, and this run's is muon", *common, "--out", adamw)
        self.succeed(2, self.out("muon from adamw"), "--steps", 2, *muon, "--init", adamw)

    def test_another_model_or_data_order_is_refused_and_other_bits_are_named(self):
        out = self.out("compared")
        self.succeed(1, out, "--steps", 2)
        common = ["--data", self.corpus, "--out", out, *with_small(), "--steps", 4]
        self.refused(2, BAD_OPTIONS, "holds another model", *common, "--model", "small")
        self.refused(2, BAD_OPTIONS, "holds another model than --model: its head_dim is 32, this run's is 64; leave --model",
                     "--data", self.corpus, "--out", self.out("other"), *with_small(), "--steps", 4, "--init", out,
                     "--model", "small")
        self.refused(2, BAD_OPTIONS, "another order of data", *common, "--seed", "5")
        self.refused(2, BAD_OPTIONS, "--resume none", *common, "--resume", "none")
        result = self.succeed(1, out, "--steps", 4, "--micro-batch", "4", "--lr", "1e-3")
        self.assertIn("--micro-batch was 2 and is 4 from step 3 on: the results change bit for bit",
                      result.stdout)
        self.assertIn("--lr was 1e-2 and is 1e-3 from step 3 on", result.stdout)

    def test_what_a_continued_run_does_not_do_is_reported(self):
        first, out = self.out("weights"), self.out("finished")
        self.succeed(1, first, "--steps", 1)
        self.succeed(1, out, "--steps", 3, "--init", first)
        result = self.succeed(1, out, "--steps", 2, "--init", first, "--lr", "1e-3")
        self.assertIn(f"--init {first} was for step 1 and is not read", result.stdout)
        self.assertIn(f"{out} is at step 3 already, and the run's length is --steps 2: nothing is left to do", result.stdout)
        self.assertNotIn("--lr was", result.stdout)

    def test_options_that_do_nothing_in_a_run_are_reported(self):
        reported = ["--batched-forward 9: a rank's micro-batches of a step are 2, and no more run side by side",
                "--warmup 5 continues after --steps 2: the learning rate does not reach --lr 0.01",
                "--decay-steps does nothing here: it needs --schedule wsd",
                "--save-at-end false, and no step of this run is one of --save-every: nothing will be saved",
                "--sample-every 7 is beyond --steps 2: no sample is written",
                "--eval-every 3 is beyond --steps 2: one evaluation, at the end"]
        out = self.out("idle")
        result = self.succeed(
            2, out, "--steps", 2, "--micro-batch", 2, "--global-batch", 8, "--batched-forward", 9, "--warmup", 5,
            "--lr", "0.01", "--decay-steps", 1, "--save-at-end", "false", "--sample-every", 7, "--sample-prompt", "a",
            "--eval-every", 3, "--eval-data", self.held_out)
        for sentence in reported:
            self.assertEqual(result.stdout.count(sentence + "\n"), 1, result.stdout)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        starts = [line["text"] for line in lines if line.get("event") == "start"]
        self.assertEqual(sorted(text for text in starts[1:] if not text.startswith("one pass over the data is")), sorted(reported))
        quiet = self.succeed(
            2, self.out("not idle"), "--steps", 2, "--micro-batch", 2, "--global-batch", 8, "--batched-forward", 2,
            "--warmup", 2, "--schedule", "wsd", "--decay-steps", 1, "--save-at-end", "false", "--save-every", 2)
        for option in ("--batched-forward", "--warmup", "--decay-steps", "--save-at-end"):
            self.assertNotIn(option, quiet.stdout)

    def test_an_old_name_of_an_option_is_taken_and_reported_once(self):
        note = "--sum-group is called --reduce-group now; the old name works until 0.3"  # old_name
        out = self.out("old name")
        old = self.succeed(2, out, "--steps", 1, "--sum-group", 2)  # old_name
        self.assertEqual(old.stderr.count(note), 1, old.stderr)
        self.assertIn(note, (out / "warnings.jsonl").read_text())
        self.assertIn("reduce-group = 2\n", (out / "start.txt").read_text())
        new = self.succeed(2, out, "--steps", 2, "--reduce-group", 2)
        self.assertNotIn("reduce-group was", new.stdout)
        self.assertNotIn("works until", new.stderr)

    def test_an_earlier_step_leaves_the_later_ones_superseded(self):
        out = self.out("branches")
        self.succeed(2, out, "--steps", 6, "--save-every", 2, "--keep", 9)
        result = self.succeed(2, out, "--steps", 5, "--resume", out / "step-00000002", "--keep", 9)
        self.assertIn("superseded", result.stderr)
        self.assertEqual(sorted(p.name for p in out.glob("step-*")),
                         ["step-00000002", "step-00000005"])
        self.assertEqual(len(list(out.glob(".superseded-step-*"))), 2)
        lines = [json.loads(line) for line in (out / ".superseded-metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines if "loss" in line], [3, 4, 5, 6])

    def test_a_branch_of_another_run_is_begun_once_and_then_continued(self):
        """The same command, as batch scripts run it again: from a step elsewhere, and from one of OUT itself."""
        first, branch = self.out("first"), self.out("branch")
        self.succeed(2, first, "--steps", 4, "--save-every", 2, "--keep", 9)
        for out in (branch, first):
            command = ["--resume", first / "step-00000002", "--keep", 9]
            begun = self.succeed(2, out, "--steps", 5, *command)
            self.assertIn("continuing after step 2 from", begun.stdout)
            again = self.succeed(2, out, "--steps", 6, *command)
            self.assertIn("has begun at --resume", again.stderr)
            self.assertIn(f"continuing after step 5 from {out}", again.stdout)
            self.assertTrue((out / "step-00000005").is_dir())

    def test_a_run_never_mixes_with_another(self):
        theirs, mine = self.out("theirs"), self.out("mine")
        self.succeed(1, theirs, "--steps", 4, "--save-every", 2, "--keep", 9)
        self.succeed(1, mine, "--steps", 2, "--seed", 5)

        def content():
            return {path.relative_to(theirs): hashlib.sha256(path.read_bytes()).hexdigest() for path in
                    theirs.rglob("*") if path.is_file() and path.name not in (".lock", "warnings.jsonl")}
        before = content()
        common = ["--data", self.corpus, *with_small("--steps", 6, "--keep", 1, "--seed", 5)]
        self.refused(1, BAD_OPTIONS, "holds steps that did not begin there", *common, "--out", theirs,
                     "--resume", mine / "step-00000002")
        self.refused(1, BAD_OPTIONS, "is the name of a step", *common, "--out", theirs / "step-00000004")
        self.assertEqual(content(), before)
        # nor does it begin anew where only superseded steps lie
        (mine / "step-00000002").rename(mine / ".superseded-step-00000002.1")
        self.refused(1, BAD_FILE, "holds no step but superseded ones", *common, "--out", mine)

    def test_where_nothing_is_left_to_do_nothing_is_superseded(self):
        out = self.out("nothing to do")
        self.succeed(1, out, "--steps", 4, "--save-every", 2, "--keep", 9)
        before, start, tokens = [(out / name).read_text() for name in ("metrics.jsonl", "start.txt", "tokens.json")]
        (out / "metrics.jsonl").write_text(before[:-1])  # a kill before the last line's end: nothing joins it
        result = self.succeed(1, out, "--steps", 2, "--resume", out / "step-00000002", "--keep", 9, "--clip", 0.5)
        self.assertNotIn("start.txt", result.stdout)
        # what describes the run is of the start that made the steps
        self.assertEqual([(out / name).read_text() for name in ("start.txt", "tokens.json")], [start, tokens])
        self.assertEqual([row["clip"] for row in events(out, "configuration")], [1])
        self.assertEqual(sorted(p.name for p in out.glob("*step-*")), ["step-00000002", "step-00000004"])
        self.assertTrue((out / "metrics.jsonl").read_text().startswith(before))
        self.assertFalse(list(out.glob(".superseded*")))

    def test_a_damaged_step_is_passed_over_loudly(self):
        out = self.out("damaged")
        self.succeed(2, out, "--steps", 4, "--save-every", 2)
        shard = next((out / "step-00000004").glob("shard-00001*"))
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        result = self.succeed(2, out, "--steps", 4)
        self.assertIn("passing over", result.stderr)
        self.assertIn("continuing after step 2", result.stdout)
        # the start text was of step 4: of its second version only what differs is printed
        for label, times in (("model", 2), ("ranks", 1), ("data", 1), ("memory", 1), ("steps", 2)):
            self.assertEqual(len(re.findall(f"(?m)^{label} ", result.stdout)), times, result.stdout)
        self.assertRegex(result.stdout, "(?m)^steps +none left of 4(.*\n)+steps +3 to 4,")
        self.refused(2, BAD_FILE, "it is truncated", "--data", self.corpus, "--out", self.out("elsewhere"),
                     *with_small(), "--steps", 5, "--resume", self.damaged_copy(out))

    def damaged_copy(self, out):
        copy = self.out("copy")
        shutil.copytree(out, copy)
        shard = next((copy / "step-00000004").glob("shard-00000*"))
        with open(shard, "r+b") as file:
            file.truncate(shard.stat().st_size - 1)
        return copy / "step-00000004"


class Kills(Case):
    def start(self, ranks, out, *arguments):
        return subprocess.Popen([MPIEXEC, "-np", str(ranks), BIN / "train", "--data", self.corpus, "--out",
                                 out, *with_small(*arguments)], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=environment())

    @staticmethod
    def ranks_of(process):
        return [pid for _, pid in sorted(pids_by_rank(process.pid, "train").items())]

    def announced(self, out):
        file = out / "metrics.jsonl"
        if not file.exists():
            return 0
        last = 0
        for line in file.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue  # the line that was being written
            if row.get("event") == "save":
                last = max(last, int(row["text"].split()[2]))
        return last

    def test_killed_at_random_moments_it_always_goes_on_from_an_announced_step(self):
        out = self.out("killed")
        straight = self.out("never killed")
        chance = random.Random(7)
        killed = 0
        attempts = int(os.environ.get("TESSERA_KILLS", "8"))  # 50 by hand, before a release
        for attempt in range(attempts):
            process = self.start(2, out, "--steps", 4000, "--save-every", 1)
            deadline = time.monotonic() + 30
            while len(self.ranks_of(process)) < 2 and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(0.5 + 1.5 * chance.random())
            while attempt == attempts - 1 and self.announced(out) == 0 and process.poll() is None:
                time.sleep(0.1)  # on a slow machine: one save at least
            pids = self.ranks_of(process)
            self.assertEqual(len(pids), 2)
            for pid in pids if attempt % 2 == 0 else pids[-1:]:
                os.kill(pid, signal.SIGKILL)
            _, _ = process.communicate(timeout=60)
            killed += 1 if pids else 0
            last = self.announced(out)
            complete = [int(p.name[5:]) for p in out.glob("step-*")]
            self.assertGreaterEqual(max(complete, default=0), last)
        self.assertGreater(killed, attempts // 2)
        reached = max(int(p.name[5:]) for p in out.glob("step-*"))
        self.succeed(2, out, "--steps", reached + 2, "--schedule-steps", 4000)
        self.succeed(2, straight, "--steps", reached + 2, "--schedule-steps", 4000)
        self.assertEqual(metrics(out), metrics(straight))
        self.assertEqual(state_hash(out), state_hash(straight))
        self.assertEqual(list(out.glob(".tmp-*")), [])

    def test_many_saves_keep_memory_and_open_files_flat(self):
        saves = int(os.environ.get("TESSERA_SAVES", "40"))  # 200 by hand, before a release
        out = self.out("many saves")
        process = self.start(2, out, "--steps", saves, "--save-every", 1, "--keep", 2)
        rows = []  # (saves announced, pages of memory, open files, shared mappings) of each rank
        while process.poll() is None:
            announced = self.announced(out)
            if 3 <= announced <= saves - 3:  # the end of a run hashes all parameters
                rows.append((announced, [self.usage(pid) for pid in self.ranks_of(process)]))
            time.sleep(0.05)
        stdout, stderr = process.communicate()
        self.assertEqual(process.returncode, 0, stdout + stderr)
        self.assertEqual(len(events(out, "save")), saves)
        rows = [row for row in rows if len(row[1]) == 2 and all(row[1])]
        self.assertGreater(len(rows), 4, "too fast to be seen")
        half = len(rows) // 2
        for rank in range(2):
            for value, slack in ((0, 4 << 20), (1, 4), (2, 0)):
                early = max(usage[rank][value] for _, usage in rows[:half])
                late = max(usage[rank][value] for _, usage in rows[half:])
                self.assertLessEqual(late, early + slack, f"rank {rank}, value {value}: {rows}")

    @staticmethod
    def usage(pid):
        """Bytes of memory, open files and shared mappings of a process; None once it has gone."""
        try:
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            resident = int(status.split("RssAnon:")[1].split()[0]) << 10
            maps = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
            shared = sum(1 for line in maps if line.split()[1].endswith("s"))
            return resident, len(os.listdir(f"/proc/{pid}/fd")), shared
        except (OSError, IndexError):
            return None

    def test_a_signal_to_one_rank_saves_and_asks_to_be_started_again(self):
        for number in (signal.SIGUSR1, signal.SIGTERM):
            out = self.out(f"signal {number}")
            process = self.start(2, out, "--steps", 100000)
            while len(metrics(out) if (out / "metrics.jsonl").exists() else []) < 3:
                self.assertIsNone(process.poll())
                time.sleep(0.05)
            os.kill(self.ranks_of(process)[-1], number)
            stdout, stderr = process.communicate(timeout=60)
            self.assertEqual(process.returncode, RESTART, stdout + stderr)
            last = metrics(out)[-1][0]
            self.assertEqual([p.name for p in out.glob("step-*")], [f"step-{last:08}"])
            self.assertIn(f"stopped at step {last}", stdout)

    def test_a_signal_is_reported_at_once_and_what_mpirun_makes_of_it(self):
        for number, words in ((signal.SIGUSR1, "signal USR1: stops when the step under way has ended"),
                              (signal.SIGTERM, "signal TERM from mpirun, which kills the ranks a second later")):
            out = self.out(f"reported {number}")
            process = self.start(2, out, "--steps", 100000)
            while len(metrics(out) if (out / "metrics.jsonl").exists() else []) < 3:
                self.assertIsNone(process.poll())
                time.sleep(0.05)
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=60)
            self.assertEqual((stdout + stderr).count(words), 1, stdout + stderr)

    def test_a_second_run_in_the_same_folder_is_refused(self):
        out = self.out("shared")
        first = self.start(2, out, "--steps", 100000, "--save-every", 5)
        while self.announced(out) < 5:
            self.assertIsNone(first.poll())
            time.sleep(0.05)
        self.refused(2, CANNOT_WRITE, f"another run writes to {out} (process ", "--data", self.corpus, "--out", out,
                     *with_small("--steps", 3))
        os.kill(self.ranks_of(first)[0], signal.SIGUSR1)
        stdout, stderr = first.communicate(timeout=60)
        self.assertEqual(first.returncode, RESTART, stdout + stderr)
        steps = [step for step, *_ in metrics(out)]
        self.assertEqual(steps, list(range(1, steps[-1] + 1)))

    def test_a_stopped_rank_is_named_and_ends_the_run(self):
        out = self.out("stopped")
        process = self.start(2, out, "--steps", 100000, "--timeout-seconds", 3)
        while len(metrics(out) if (out / "metrics.jsonl").exists() else []) < 3:
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        pids = self.ranks_of(process)
        os.kill(pids[1], signal.SIGSTOP)
        start = time.monotonic()
        _, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, HANG, stderr)
        self.assertLess(time.monotonic() - start, 15)
        self.assertIn("rank 1", stderr)
        deadline = time.monotonic() + 10  # mpirun kills what is left when it exits
        while not all(map(is_gone, pids)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in pids:
            self.assertTrue(is_gone(pid), f"process {pid} is still there")

    def test_time_and_a_stop_file_end_a_run_with_a_save(self):
        out = self.out("time")
        result = train(2, "--data", self.corpus, "--out", out, *with_small(), "--steps", 100000, "--max-seconds",
                       "2")
        self.assertEqual(result.returncode, RESTART, result.stderr)
        # the last, and the one that shows how long a save takes
        self.assertEqual(max(p.name for p in out.glob("step-*")), f"step-{metrics(out)[-1][0]:08}")
        self.assertIn("by --max-seconds: saved", result.stdout)


class Edges(Case):
    def npy(self, name, values):
        import struct
        header = f"{{'descr': '<u4', 'fortran_order': False, 'shape': ({len(values)},), }}"
        header += " " * (-(len(header) + 11) % 64) + "\n"
        file = self.folder / f"{name}.npy"
        file.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                         struct.pack(f"<{len(values)}I", *values))
        return file

    def ids(self, name, ids, vocab, mask=None):
        target = self.folder / f"{name}.h5"
        target.unlink(missing_ok=True)
        masked = [] if mask is None else ["--mask", self.npy(f"{name} mask", mask)]
        subprocess.run([BIN / "tokenize", "--vocab", str(vocab), "--out", target, self.npy(name, ids), *masked],
                       check=True, capture_output=True)
        return target

    def test_vocabularies_of_any_size_train(self):
        for vocab in (1, 2, 63, 127, 50257):
            data = self.ids(f"vocabulary {vocab}", [i * 7919 % vocab for i in range(700)], vocab)
            out = self.out(f"run {vocab}")
            result = train(2, "--data", data, "--out", out, "--seq", 32, "--micro-batch", 1,
                           "--global-batch", 2, "--steps", 1)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_batches_without_a_target_train_on(self):
        def masked_run(name, mask, *more):
            data = self.ids(name, [i * 7919 % 61 for i in range(len(mask))], 61, mask)
            out = self.out(f"run {name}")
            result = train(2, "--data", data, "--out", out, "--seq", 32, "--micro-batch", 1,
                           "--global-batch", 2, "--lr", "1e-2", "--max-skipped", 0, *more)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            rows = [(float(loss or 0), float(norm)) for _, loss, norm in metrics(out)]  # null without targets
            statistics = subprocess.run([BIN / "inspect", out, "--stats", "--json"], capture_output=True,
                                        text=True, check=True).stdout
            self.assertNotRegex(statistics, r'"nonfinite": *[1-9]')
            return rows, out

        # Nothing but such batches (the one target comes later): no loss, no gradient, the same weights.
        rows, out = masked_run("nothing", [0] * 1600 + [1] + [0] * 1600, "--steps", 3, "--save-every", 1)
        self.assertEqual(rows, [(0, 0)] * 3)
        same = subprocess.run([BIN / "inspect", out / "step-00000001", "--diff", out / "step-00000003"],
                              capture_output=True, text=True, check=True)
        self.assertIn("all numbers are equal", same.stdout)
        # Eight sequences, of which two have targets: most batches of two have none, and training continues.
        rows, _ = masked_run("few", [0] * 1 + [1] * 64 + [0] * 192, "--steps", 40)
        self.assertGreater(sum(row == (0, 0) for row in rows), 8)
        learnt = [loss for loss, norm in rows if norm > 0]
        self.assertGreater(len(learnt), 8)
        self.assertLess(learnt[-1], learnt[0])

    def test_more_ranks_than_micro_batches_take_part_and_are_reported(self):
        out, alone = self.out("idle ranks"), self.out("alone")
        common = ["--global-batch", "4", "--steps", "3"]
        result = self.succeed(8, out, *common)
        self.assertEqual(result.stderr.count("so 6 of 8 ranks have no work: 75% of the ranks' time is idle"), 1)
        self.assertNotIn("idle", self.succeed(1, alone, *common).stderr)
        self.assertEqual(metrics(out), metrics(alone))

    def test_files_that_are_too_short_or_wrong_are_refused_by_name(self):
        short = self.ids("short", [1] * 33, 256)
        self.assertEqual(train(2, "--data", short, "--out", self.out("x"), *with_small(), "--steps", 1).returncode,
                         0)
        self.refused(2, BAD_OPTIONS, "--seq 64", "--data", short, "--out", self.out("x"), "--seq", 64,
                     "--steps", 1)
        empty = self.folder / "empty.h5"
        empty.write_bytes(b"")
        self.refused(2, BAD_FILE, "empty.h5", "--data", empty, "--out", self.out("x"), *with_small())
        truncated = self.folder / "truncated.h5"
        truncated.write_bytes(self.corpus.read_bytes()[:5000])
        self.refused(2, BAD_FILE, "truncated.h5", "--data", truncated, "--out", self.out("x"), *with_small())
        text = self.folder / "text" / "file 0.txt"
        self.refused(2, BAD_FILE, "make one of it: `tokenize --tokenizer HF_FOLDER --out 'file 0.h5' ", "--data", text, "--out", self.out("x"), *with_small())
        chats = self.folder / "chats.jsonl"
        chats.write_text('{"messages": []}\n')
        self.refused(2, BAD_FILE, "tokenize --tokenizer HF_FOLDER --chat auto --out chats.h5 ", "--data", chats, "--out", self.out("x"),
                     *with_small())
        self.refused(2, BAD_OPTIONS, "missing.h5: No such file or directory; give token files (tokenize makes",
                     "--data", self.folder / "missing.h5", "--out",
                     self.out("x"), *with_small())

    def test_a_comma_locale_changes_nothing(self):
        out, plain = self.out("locale"), self.out("no locale")
        self.succeed(1, out, "--steps", 2, LC_ALL="de_DE.UTF-8")
        self.succeed(1, plain, "--steps", 2, LC_ALL="C")
        self.assertEqual(metrics(out), metrics(plain))

    def test_a_diverging_run_ends_with_its_own_code(self):
        result = train(2, "--data", self.corpus, "--out", self.out("diverged"), "--seq", 32, "--steps", 60,
                       "--lr", "1e18", "--clip", 0, "--warmup", 0, "--max-skipped", 2)
        self.assertEqual(result.returncode, DIVERGED, result.stdout + result.stderr)
        self.assertEqual(result.stderr.count("--max-skipped 2"), 1, result.stderr)
        self.assertIn("lower", result.stderr)
        self.assertIn("--lr", result.stderr)

    def test_a_run_that_diverges_with_finite_losses_is_reported_and_continues(self):
        out, fine = self.out("worse than guessing"), self.out("fine")
        worse = self.succeed(2, out, "--steps", 30, "--lr", 3, "--clip", 0, "--warmup", 0)
        reported = events(out, "diverged")
        self.assertEqual(len(reported), 2, worse.stderr)
        losses = [float(loss) for _, loss, _ in metrics(out)]
        for event in reported:
            step = event["step"]
            mean = sum(losses[step - 10:step]) / 10
            self.assertAlmostEqual(event["mean_loss"], mean, places=9)
            self.assertGreater(mean, 1.1 * max(math.log(256), losses[0]))
        self.assertEqual(worse.stderr.count("the run has diverged: the loss of the last 10 steps"), 1, worse.stderr)
        self.assertEqual(worse.stderr.count("the run ends diverged: "), 1, worse.stderr)
        self.succeed(2, fine, "--steps", 30)
        self.assertEqual(events(fine, "diverged"), [])

    def poisoned(self, name, tensor):
        """A Hugging Face folder whose weights are finite but for one tensor, all NaN."""
        run, folder = self.out(f"{name} run"), self.out(f"{name} weights")
        self.succeed(1, run, "--steps", 1)
        subprocess.run([BIN / "convert", "export", run, folder], check=True, capture_output=True)
        file = folder / "model.safetensors"
        content = bytearray(file.read_bytes())
        length = int.from_bytes(content[:8], "little")
        begin, end = json.loads(content[8:8 + length])[tensor]["data_offsets"]
        content[8 + length + begin:8 + length + end] = b"\xc0\x7f" * ((end - begin) // 2)
        file.write_bytes(content)
        return folder

    def test_weights_that_are_not_finite_are_named_and_no_run_of_skipped_steps_succeeds(self):
        weights = self.poisoned("poisoned", "model.layers.1.mlp.down_proj.weight")
        out = self.out("all skipped")
        result = train(2, "--data", self.corpus, "--out", out, *with_small("--steps", 2, "--init", weights))
        self.assertEqual(result.returncode, DIVERGED, result.stdout + result.stderr)
        found = rf"the weights of --init {weights} are not finite: block\.1\.mlp\.down \(\d+ numbers\)"
        self.assertRegex(result.stderr, found)
        self.assertRegex(result.stderr, r"step 1 is skipped, not finite: the parameters block\.1\.mlp\.down .*; "
                                        r"the loss on ranks 0-1 \(.*\), and so the gradient of \d+ tensors; ")
        self.assertIn("were not finite from the start: give others", result.stderr)
        self.assertEqual(result.stderr.count("every step of this run was skipped"), 1, result.stderr)
        self.assertEqual(len(events(out, "skipped")), 1)
        self.assertNotIn("lower --lr", result.stderr)
        result = train(2, "--data", self.corpus, "--out", self.out("gives up"),
                       *with_small("--steps", 9, "--init", weights, "--max-skipped", 1))
        self.assertEqual(result.returncode, DIVERGED, result.stdout + result.stderr)
        self.assertIn("(--max-skipped 1): the weights of --init", result.stderr)

    def test_a_full_disk_fails_the_save_and_leaves_the_last_one(self):
        if os.geteuid() != 0:
            self.skipTest("mounting a small file system needs root")
        mount = self.out("small disk")
        mount.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", mount], check=False,
                          capture_output=True).returncode != 0:
            self.skipTest("this machine does not let us mount a file system")
        try:
            out = mount / "run"
            result = train(2, "--data", self.corpus, "--out", out, *with_small(), "--steps", 4, "--save-every", 1,
                           "--keep", 9)
            self.assertEqual(result.returncode, CANNOT_WRITE, result.stderr)  # the last save is the result
            self.assertGreaterEqual(len(events(out, "save failed")), 1)
            self.assertIn("no space left on the device", result.stderr)
            self.assertEqual(list(out.glob(".tmp-*")), [])
            complete = sorted(out.glob("step-*"))
            self.assertGreaterEqual(len(complete), 1)
            subprocess.run([BIN / "inspect", complete[-1], "--verify"], check=True, capture_output=True)
            self.assertRegex(result.stderr, r"error: the save of step 4 failed, which was the last: step \d is the newest that is saved; make room in ")
            shutil.rmtree(out)
            (mount / "fill").write_bytes(bytes(os.statvfs(mount).f_bavail * os.statvfs(mount).f_frsize - (1 << 20)))
            result = train(2, "--data", self.corpus, "--out", out, *with_small(), "--steps", 1)
            self.assertEqual(result.returncode, CANNOT_WRITE, result.stderr)
            self.assertRegex(result.stderr, rf"warning: --out {re.escape(str(out))}: its disk has [\d.]+ [kM]B free, and a checkpoint takes [\d.]+ MB: ")
            self.assertIn("error: the save of step 1 failed, which was the last: nothing of this run is saved; make room in ", result.stderr)
            (mount / "fill").unlink()
            shutil.rmtree(out)
            stopped = train(2, "--data", self.corpus, "--out", out, *with_small(), "--steps", 4, "--save-every",
                            1, "--keep", 9, "--on-save-failure", "stop")
            self.assertEqual(stopped.returncode, CANNOT_WRITE, stopped.stderr)
        finally:
            subprocess.run(["umount", mount], check=False)


    def test_a_file_size_limit_on_one_rank_fails_the_save_on_all(self):
        out = self.out("limited")
        self.succeed(2, out, "--steps", 2)
        before = state_hash(out)
        common = [BIN / "train", "--data", self.corpus, "--out", out, *with_small("--steps", "4")]
        limited = ["bash", "-c", 'ulimit -f 64; exec "$@"', "bash", *common]
        for policy in ("continue", "stop"):  # 4 both ways: the last save of the run failed
            options = ["--save-every", "3", "--save-at-end", "false", "--on-save-failure", policy]
            result = subprocess.run([MPIEXEC, "-np", "1", *common, *options, ":", "-np", "1", *limited,
                                     *options], capture_output=True, text=True,
                                    # MPI's files of shared memory would meet the limit first.
                                    env=environment(OMPI_MCA_btl="self,tcp", UCX_TLS="tcp,self"), check=False,
                                    timeout=100, stdin=subprocess.DEVNULL)
            reported = result.stdout + result.stderr
            self.assertEqual(result.returncode, CANNOT_WRITE, reported)
            self.assertIn("shard-00001-of-00002.h5: the file size limit", reported)
            self.assertEqual(reported.count("the save of step 3 failed: rank 1"), 1, reported)
            self.assertIn("the save of step 3 failed: rank 1", result.stderr)
            self.assertEqual([path.name for path in out.glob(".tmp-*")], [])
            self.assertEqual([path.name for path in out.glob("step-*")], ["step-00000002"])
            self.assertEqual(state_hash(out), before)


class Unequal(Case):
    """Two ranks that see other inputs behind the same names: two working folders, or mounts."""
    CONFIG = {"model_type": "qwen3", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
              "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "hidden_act": "silu",
              "tie_word_embeddings": True, "attention_bias": False}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.here = [cls.folder / "first", cls.folder / "second"]
        cls.number = 0
        for number, folder in enumerate(cls.here):
            folder.mkdir()
            (folder / "model.json").write_text(json.dumps(cls.CONFIG))
            shutil.copy((cls.held_out, cls.corpus)[number], folder / "other.h5")
            shutil.copy(cls.held_out, folder / "same.h5")
            done = train(1, "--data", cls.corpus, "--out", folder / "run", "--model", folder / "model.json",
                         *with_small("--seed", number, "--steps", 2, "--save-every", 1))
            assert done.returncode == 0, done.stderr
            subprocess.run([BIN / "convert", "export", folder / "run", folder / "hf"], check=True,
                           capture_output=True)

    def start(self, *arguments, first=(), second=(), programs=((), ())):
        """Rank 0 in the first folder, rank 1 in the second."""
        Unequal.number += 1
        common = ["--data", self.corpus, "--out", self.out(f"unequal {self.number}"), *with_small("--steps", 2),
                  *arguments]
        ranks = [["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", folder, *program, BIN / "train", *common, *own]
                 for folder, own, program in zip(self.here, (first, second), programs)]
        return subprocess.run([MPIEXEC, "-np", "1", *map(str, ranks[0]), ":", "-np", "1", *map(str, ranks[1])],
                              capture_output=True, text=True, env=environment(), check=False, timeout=60,
                              stdin=subprocess.DEVNULL)

    def differs(self, what, *arguments, **more):
        result = self.start(*arguments, **more)
        self.assertEqual(result.returncode, BAD_OPTIONS, result.stdout + result.stderr)
        self.assertRegex(result.stderr, what)
        self.assertEqual(result.stderr.count("start every rank with the same program"), 1, result.stderr)
        self.assertRegex(result.stderr, r"rank 1 \(.*\) has .*, rank 0 \(.*\) has ")
        self.assertNotRegex(result.stdout, r"loss \d")

    def test_contents_behind_the_same_path_are_refused_where_they_differ(self):
        self.differs("contents of --init run/step-00000002 = step 2, save ", "--init", "run")
        self.differs("contents of --init hf = .*sample", "--init", "hf")
        self.differs("contents of run/step-00000002 = step 2, save ", "--resume", "run", "--model", "model.json",
                     "--allow-data-change")
        self.differs("contents of --eval-data other.h5", "--eval-data", "other.h5")
        self.differs("contents of --data other.h5", "--data", "other.h5")
        result = self.start("--eval-data", "same.h5", "--model", "model.json")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_weights_of_one_model_that_differ_in_one_tensor_are_refused(self):
        """As after fine-tuning: everything but some numbers is alike."""
        for number, folder in enumerate(self.here):
            shutil.copytree(self.here[0] / "hf", folder / "tuned", dirs_exist_ok=True)
            file = folder / "tuned" / "model.safetensors"
            content = bytearray(file.read_bytes())
            length = int.from_bytes(content[:8], "little")
            header = json.loads(content[8:8 + length])
            begin, end = header["model.layers.1.mlp.down_proj.weight"]["data_offsets"]
            for at in range(8 + length + begin, 8 + length + end, 2):
                content[at] ^= number
            file.write_bytes(content)
        self.differs("contents of --init tuned", "--init", "tuned")

    def test_weights_that_differ_where_no_sample_is_taken_are_refused(self):
        """As after a fine-tune of a few tokens: one row of the embedding, its first."""
        for number, folder in enumerate(self.here):
            shutil.copytree(self.here[0] / "hf", folder / "tokens", dirs_exist_ok=True)
            file = folder / "tokens" / "model.safetensors"
            content = bytearray(file.read_bytes())
            length = int.from_bytes(content[:8], "little")
            begin, _ = json.loads(content[8:8 + length])["model.embed_tokens.weight"]["data_offsets"]
            for place in (0, 1) if number == 0 else ():  # the other one is sound
                content[8 + length + begin + place] ^= 1
            file.write_bytes(content)
        result = self.start("--init", "tokens")
        self.assertEqual(result.returncode, BAD_OPTIONS, result.stdout + result.stderr)
        self.assertRegex(result.stderr, r"contents of --init tokens differ between rank 0 \(.*\) and rank 1 \(.*\): "
                                        "every rank must see the same weights")
        self.assertNotRegex(result.stdout, r"loss \d")
        result = self.start("--init", "tokens", "--lora", "4")  # as a frozen base
        self.assertEqual(result.returncode, BAD_OPTIONS, result.stdout + result.stderr)
        self.assertRegex(result.stderr, "contents of --init tokens differ between hosts .*: every rank must see the same weights")
        # copies of one content are as good as one file
        shutil.copy(self.here[1] / "tokens/model.safetensors", self.here[0] / "tokens/model.safetensors")
        result = self.start("--init", "tokens")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_a_model_file_that_differs_is_refused_by_field(self):
        for key, value in (("rope_theta", 500000.0), ("num_hidden_layers", 3)):  # all: startup_check_test
            with self.subTest(key=key):
                (self.here[1] / "model.json").write_text(json.dumps({**self.CONFIG, key: value}))
                try:
                    self.differs(f"rank 1 .* has {key} of the model = {value}", "--model", "model.json")
                finally:
                    (self.here[1] / "model.json").write_text(json.dumps(self.CONFIG))

    def test_options_and_variables_that_differ_are_refused(self):
        self.differs("--save-every = 2", first=["--save-every", 1], second=["--save-every", 2])
        self.differs("what is asked for = --help", second=["--help"])
        self.differs("environment variable ONEDNN_MAX_CPU_ISA = SSE41",
                     programs=((), ("env", "ONEDNN_MAX_CPU_ISA=SSE41")))
        result = self.start(first=["--max-seconds", 100])  # of one rank: as fits it
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


class Options(Case):
    def test_options_that_make_no_run_are_refused_in_one_sentence(self):
        common = ["--data", self.corpus, "--out", self.out("refused")]
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        cases = [
            (["--bogus", "1"], "--bogus"),
            (["--steps"], "--steps"),
            (["--lr", "fast"], "--lr 'fast'"),
            (["--label-smoothing", "1"], "--label-smoothing 1 leaves nothing of the targets: give a share below 1"),
            (["--z-loss", "-1e-4"], "--z-loss '-1e-4'"),
            (["--micro-batch", "0"], "--micro-batch '0'"),
            (["--global-batch", "10", "--micro-batch", "4"], "--global-batch 10 is not a multiple"),
            (["--resident-bytes", "0"], "--resident-bytes 0"),
            (["--page-bytes", "many"], "--page-bytes 'many'"),
            (["--keep", "0"], "--keep '0'"),
            (["--model", "gpt-9"], "gpt-9"),
            (["--precision", "bf16"], "--precision bf16 needs --device cuda: the CPU computes in f32; bf16-params "),
            (["--precision", "bf16-params", "--device", "cuda"], "--precision bf16-params is for --device cpu: "),
            (["--master-weights", "packed"], "--master-weights packed needs parameters of bf16: "),
            (["--schedule", "linear"], "--schedule 'linear'"),
            (["--zero", "4"], "--zero '4'"),
            (["--params", "disk"], "--params 'disk'"),
            (["--network-bandwidth", "0"], "--network-bandwidth '0'"),
            (["--card", "v100"], "--card 'v100'"),
            (["--eval-every", "5"], "--eval-every needs --eval-data"),
            (["--trace", "10:12", "--steps", "2"], "--trace begins at step 10, beyond --steps 2: trace steps of this run"),
            (["--host-memory", "10MB"], "and a node has 10.00 MB: "),
            (["--config", self.folder],
             f"--config {self.folder}: cannot read this file: it is a folder, and a regular file is needed here"),
            (["--config", pipe], f"--config {pipe}: cannot read this file: it is a named pipe"),
            (["--seq", "65536"], "--seq 65536 exceeds the model's 40960 positions: give at most 40960, or a config.json with"),
            (["--init", "Qwen/Qwen3-0.6B"], "`hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B`"),
            (["--model", "Qwen/Qwen3-0.6B"], "`hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B`"),
            (["--init", "/nowhere"], "--init /nowhere: No such file or directory; give the folder of a step"),
            (["--resume", "/nowhere"], "--resume /nowhere: No such file or directory; give auto, none, or"),
            (["--eval-data", "/nowhere"], "--eval-data /nowhere: No such file or directory; give a token file"),
            (["--model", "no/config.json"], "--model no/config.json: No such file or directory; give a preset's"),
            (["--plan", "--model", "no.json"], "--model no.json: No such file or directory; give a preset's"),
            (["word"], "word"),
        ]
        self.all_refused(2, BAD_OPTIONS, [(sentence, [*common, *arguments]) for arguments, sentence in cases])
        self.refused(1, BAD_OPTIONS, "--data is missing", "--out", self.out("x"))
        self.refused(1, BAD_OPTIONS, "--out is missing", "--data", self.corpus)
        self.refused(1, BAD_OPTIONS, f"--out {self.corpus} is there and is not a folder: give another one", "--data", self.corpus, "--out", self.corpus)
        if (BIN / "inspect").exists():
            for target, words in ((self.folder / "none.h5", "there is no such file or folder; give a token file, or the folder of"),
                                  (self.folder / "text" / "file 0.txt", "it is not a token file; give a token file, or the folder of")):
                result = subprocess.run([BIN / "inspect", target], capture_output=True, text=True, check=False)
                self.assertEqual((result.returncode, result.stderr.count(f"{target}: {words}")), (BAD_OPTIONS, 1), result.stderr)
        bad = self.folder / "bad.ini"
        bad.write_text("lr = 1e-3\nspeed = 9\n")
        self.refused(1, BAD_OPTIONS, "speed", *common, "--config", bad)

    def test_weights_without_state_are_not_resumed_and_a_config_beside_steps_changes_nothing(self):
        weights = self.folder / "weights"
        weights.mkdir()
        (weights / "config.json").write_text("{}")
        self.refused(2, BAD_OPTIONS, f"--init {weights} starts from its weights", "--data", self.corpus, "--out",
                     self.out("of weights"), *with_small("--resume", weights))
        first = self.out("with a config")
        self.succeed(2, first, "--steps", 2)
        (first / "config.json").write_text("{}")
        (first / "step-00000002" / "config.json").write_text("{}")
        for number, begin in enumerate((first, first / "step-00000002")):
            result = self.succeed(2, self.out(f"resumed {number}"), "--steps", 3, "--resume", begin)
            self.assertIn("continuing after step 2", result.stdout + result.stderr)

    def test_a_stop_file_that_could_never_be_written_is_refused(self):
        common = ["--data", self.corpus, "--out", self.out("stop")]
        self.refused(2, BAD_OPTIONS, "so it could never be written", *common, "--stop-file", self.folder / "none/stop")
        self.refused(2, BAD_OPTIONS, "it is a folder; give the name of a file", *common, "--stop-file", self.folder)

    def test_what_makes_results_less_than_they_seem_is_reported_at_the_start(self):
        out = self.out("reported")
        (out / "warnings.jsonl").mkdir(parents=True)
        arguments = ["--data", self.corpus, self.corpus, "--eval-data", self.corpus, "--out", out, "--reduce", "native"]
        reported = train(2, *arguments, *with_small("--steps", 2, "--save-every", 1))
        self.assertEqual(reported.returncode, 0, reported.stderr)
        self.assertIn("--reduce native: gradients are added in the order of the library, so the results depend on the "
                      "number of ranks (2)", reported.stdout)
        self.assertIn(f"--data {self.corpus} holds the same tokens as {self.corpus}: both are used", reported.stderr)
        self.assertIn(f"--eval-data {self.corpus} is among the training data", reported.stderr)
        self.assertRegex(reported.stderr, "cannot write .*warnings.jsonl: it is a folder, .*; warnings are on stderr alone")
        # a metrics.jsonl that is a link stays one, when lines of steps that are left are taken out
        shutil.move(out / "metrics.jsonl", self.folder / "metrics elsewhere")
        (out / "metrics.jsonl").symlink_to(self.folder / "metrics elsewhere")
        again = train(2, *arguments, "--resume", out / "step-00000001", *with_small("--steps", 2))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertTrue((out / "metrics.jsonl").is_symlink())
        self.assertEqual(len(metrics(out)), 2)

    def test_the_command_line_wins_over_the_file(self):
        config = self.folder / "run.ini"
        config.write_text("steps = 2\nlr = 5e-3\nseq = 32\nmicro-batch = 2\nglobal-batch = 4\n")
        out = self.out("config")
        result = train(1, "--config", config, "--data", self.corpus, "--out", out, "--lr", "1e-3")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("lr = 1e-3\n", (out / "start.txt").read_text())
        self.assertIn("seq = 32\n", (out / "start.txt").read_text())
        self.assertEqual(len(metrics(out)), 2)

    def test_ranks_with_other_options_are_refused_by_name(self):
        common = [BIN / "train", "--data", self.corpus, "--out", self.out("unequal"), "--seq", "32"]
        result = subprocess.run([MPIEXEC, "-np", "1", *common, "--lr", "1e-3", ":", "-np", "1", *common,
                                 "--lr", "1e-4"], capture_output=True, text=True, env=environment(),
                                check=False, timeout=60)
        self.assertEqual(result.returncode, BAD_OPTIONS, result.stderr)
        self.assertIn("--lr", result.stderr)
        self.assertIn("rank 1", result.stderr)

    def test_help_and_version_and_plan_need_nothing(self):
        result = train(2, "--help")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stdout.count("--micro-batch SEQUENCES"), 1)  # rank 0 alone prints
        for preset in ("tiny", "small", "d12", "qwen2.5-1.5b", "qwen3-32b"):
            self.assertIn(f"{preset},", " ".join(result.stdout.split()))
        self.assertIn("tessera", train(1, "--version").stdout)
        plan = train(1, "--plan", "--model", "qwen3-4b", "--ranks", 8, "--device", "cuda", "--json")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        rows = {row["name"]: row["bytes"] for row in json.loads(plan.stdout)["lines"]}
        padded = -(-100930816 // (8 * 1024)) * 8 * 1024
        self.assertEqual(rows["gradient slots"], 2 * 2 * padded)
        state = json.loads(plan.stdout)["optimizer_state"]
        rest = {row["name"]: row["bytes"] for row in json.loads(train(
            1, "--plan", "--model", "qwen3-4b", "--ranks", 8, "--device", "cuda", "--json", "--resident-bytes",
            "all").stdout)["lines"]}
        self.assertEqual((state["bytes_per_parameter"], state["saved_share"]), (12, 0.875))
        self.assertEqual(state["bytes_per_rank"], rest["optimizer state"])
        self.assertEqual(state["bytes_without_sharding"], 8 * state["bytes_per_rank"])
        self.assertEqual(json.loads(plan.stdout)["resident_parameters"]["names"], "all")
        text = train(1, "--plan", "--model", "d12", "--ranks", 2, "--resident-bytes", "500MB").stdout
        self.assertRegex(text, r"\nOptimizer state, 12 bytes per parameter: \S+ MB on each rank, \S+ GB without sharding, "
                               r"50\.0% saved\nResident on rank 0, of \d+ parameters of which it stores a part: \d+ "
                               r"\(embedding, block\.0 to block\.\d+, block\.")
        sampled = ["--plan", "--model", "d12", "--sample-every", 5, "--sample-prompt", "a text", "--json"]
        plan = json.loads(train(1, *sampled).stdout)
        saving = {row["name"]: row for row in plan["savings"]}["samples in the buffers of steps"]
        own = sum(row["bytes"] for row in plan["lines"] if row["name"] == "generation")
        self.assertEqual(saving["bytes"], own)
        # rows of 16 tokens in f32: 5 of the width, of heads as many, the MLP's, and the logits
        work = 4 * 16 * (1 + 3 * 768 + 3 * 768 + 768 + 3 * 2048 + 50304)
        self.assertGreaterEqual(saving["without_bytes"] - own, work)
        for more, nccl in ((), 419430400), (("--peer-copies", "off"), 958398464), (
                ("--ranks-per-node", 4), 958398464):
            rows = {row["name"]: row["bytes"] for row in json.loads(train(
                1, "--plan", "--model", "d12", "--ranks", 8, "--device", "cuda", "--json", *more).stdout)["lines"]}
            self.assertEqual(rows["nccl buffers"], nccl, more)
        idle = train(1, "--plan", "--model", "d12", "--ranks", 4, "--global-batch", 8, "--micro-batch", 1,
                     "--batched-forward", 9)
        self.assertIn("--batched-forward 9: a rank's micro-batches of a step are 2,", idle.stdout.splitlines()[-4])
        readme = ["--plan", "--model", "qwen3-8b", "--ranks", 8, "--device", "cuda"]
        self.assertIn("Warning: a step has 4 micro-batches (--global-batch 16 / --micro-batch 4), so 4 of 8 ranks have "
                      "no work: 50% of the ranks' time is idle; --global-batch 32", train(1, *readme).stdout)
        self.assertEqual(json.loads(train(1, *readme, "--json").stdout)["idle_rank_share"], 0.5)
        self.assertNotIn("idle", train(1, *readme, "--global-batch", 32).stdout)
        full = train(1, "--plan", "--model", "qwen3-32b", "--ranks", 1, "--device", "cuda")
        self.assertEqual(full.returncode, BAD_OPTIONS)
        self.assertIn("does not fit", full.stdout)
        # mpirun's ranks where --ranks is not given; the node's memory only where it is known whose it is
        self.assertIn("Memory of one rank of 2:", train(2, "--plan", "--model", "tiny").stdout)
        paged = ["--plan", "--model", "qwen3-8b", "--ranks", 8, "--device", "cuda", "--device-memory", "40GB",
                 "--global-batch", 32]
        unknown = train(1, *paged)
        self.assertEqual(unknown.returncode, 0, unknown.stdout)
        self.assertIn("It fits the devices.\nThe host memory of a node is not judged: --host-memory says", unknown.stdout)
        self.assertIn("and a node has 4.00 GB", train(1, *paged, "--host-memory", "4GB").stdout)
        self.assertIn("--host-memory plans for another", train(1, "--plan", "--model", "tiny").stdout)


if __name__ == "__main__":
    unittest.main()
