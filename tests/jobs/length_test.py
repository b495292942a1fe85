"""train's length in passes over the data (--epochs) and in tokens (--tokens): the steps that come of them, on any number
of ranks, in a run that continues, and what is refused."""
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import train_test  # noqa: E402
from train_test import BAD_OPTIONS, BIN, events, metrics, state_hash, train, windows_taken, with_small  # noqa: E402

SEQ, BATCH = 32, 4
FIXED = ("--seq", SEQ, "--micro-batch", 2, "--global-batch", BATCH)


class Length(train_test.Case):
    def corpus_of(self, sequences):
        """A token file of so many sequences, and its tokens."""
        tokens = (sequences - 1) * SEQ + 12  # the last sequence is short
        text = self.folder / f"{sequences}.txt"
        text.write_text(("a quick dog runs under the fox. " * 1000)[:tokens])
        file = text.with_suffix(".h5")
        subprocess.run([BIN / "tokenize", "--tokenizer", "bytes", "--out", file, text], check=True, capture_output=True)
        return file, tokens

    def run_on(self, file, out, ranks, *arguments):
        result = train(ranks, "--data", file, "--out", out, *FIXED, "--lr", "1e-2", "--verbose", *arguments)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result

    def test_passes_and_tokens_are_whole_steps_on_any_number_of_ranks(self):
        file, tokens = self.corpus_of(30)
        passes = f"one pass over the data is 8 steps, rounded up: 30 sequences with {tokens} tokens; "
        for ranks, length, steps, shown in (
                (1, ("--epochs", "2"), 15, "--epochs 2 is 15 steps"),
                (3, ("--epochs", "2"), 15, "--epochs 2 is 15 steps"),
                (2, ("--epochs", "0.1"), 1, "--epochs 0.1 is 1 step, rounded up"),  # 3 sequences
                (8, ("--epochs", "1"), 8, "--epochs 1 is 8 steps, rounded up"),
                (2, ("--tokens", str(5 * BATCH * SEQ)), 5, "--tokens 640 is 5 steps, 0.667 passes"),
                (3, ("--tokens", "641"), 6, "--tokens 641 is 6 steps, rounded up, 0.8 passes"),
                (1, ("--steps", "15"), 15, "--steps 15 is 2 passes")):
            with self.subTest(ranks=ranks, length=length):
                out = self.out(f"{ranks} {length}")
                result = self.run_on(file, out, ranks, *length)
                self.assertIn(passes + shown + "\n", result.stdout)
                self.assertEqual(metrics(out)[-1][0], steps)
                self.assertEqual(windows_taken(out), steps * BATCH)
                shown = events(out, "configuration")[0]
                self.assertEqual(shown["options"]["steps"], str(steps))
                self.assertEqual((shown["pass_sequences"], shown["pass_tokens"]), (30, tokens))
        # the schedule is that of the steps which came of it
        same = [metrics(self.folder / name) for name in ("1 ('--epochs', '2')", "3 ('--epochs', '2')", "1 ('--steps', '15')")]
        self.assertEqual(same[0], same[1])
        self.assertEqual(same[0], same[2])

    def test_a_run_that_continues_has_the_same_steps_and_a_longer_one_says_what_changes(self):
        file, _ = self.corpus_of(32)
        straight, parts = self.out("straight"), self.out("parts")
        self.run_on(file, straight, 2, "--epochs", 2, "--save-every", 3)
        first = self.run_on(file, parts, 3, "--epochs", 1, "--schedule-steps", 16)
        self.assertNotIn("the schedule follows", first.stdout)
        second = self.run_on(file, parts, 1, "--epochs", 2)  # 16 steps, which the schedule spans by itself
        self.assertIn("continuing after step 8", second.stdout)
        self.assertEqual(metrics(parts), metrics(straight))
        self.assertEqual(state_hash(parts), state_hash(straight))
        again = self.run_on(file, parts, 2, "--epochs", 2)
        self.assertIn(f"{parts} is at step 16 already, and the run's length is --epochs 2 (16 steps): nothing is left",
                      again.stdout)
        longer = self.run_on(file, parts, 2, "--epochs", 2.5)
        self.assertIn("--epochs was 2 (16 steps) and is 2.5 (20 steps), and the schedule follows it: it spans 20 steps "
                      "instead of 16", longer.stdout)
        other = self.run_on(file, parts, 3, "--tokens", 24 * BATCH * SEQ)
        self.assertIn("the length was --epochs 2.5 (20 steps) and is --tokens 3072 (24 steps), and the schedule follows",
                      other.stdout)
        self.assertNotIn("does not know", other.stdout)

    def test_another_batch_takes_what_is_left_of_the_passes(self):
        file, _ = self.corpus_of(32)
        out = self.out("other batch")
        self.run_on(file, out, 1, "--epochs", 1)  # 8 steps of 4
        for ranks, epochs, steps in ((2, 2, 12), (3, 2, 12)):
            result = train(ranks, "--data", file, "--out", out, "--seq", SEQ, "--micro-batch", 2, "--global-batch", 8,
                           "--epochs", epochs, "--verbose")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"--epochs {epochs} is {steps} steps\n", result.stdout)
        self.assertEqual(metrics(out)[-1][0], 12)
        self.assertEqual(windows_taken(out), 64)

    def test_a_length_is_given_once(self):
        file, _ = self.corpus_of(32)
        one = "cannot be given with another length: of --steps, --epochs and --tokens give one"
        common = ("--data", file, "--out", self.out("refused"), *FIXED)
        self.all_refused(2, BAD_OPTIONS, [
            (f"--steps {one}", [*common, "--steps", 2, "--epochs", 1]),
            (f"--steps {one}", [*common, "--steps", 2, "--tokens", 1]),
            (f"--epochs {one}", [*common, "--tokens", 2, "--epochs", 1]),
            ("--epochs '0' is not a number from 1e-09 to 1000000000", [*common, "--epochs", 0]),
            ("--tokens '1.5'", [*common, "--tokens", 1.5]),
            ("--trace begins at step 9, beyond the 8 steps of --epochs 1", [*common, "--epochs", 1, "--trace", "9:9"])])
        self.assertFalse((self.folder / "refused/step-00000001").exists())

    def test_the_command_line_wins_over_the_length_of_a_file_and_a_printed_run_is_the_same(self):
        file, _ = self.corpus_of(32)
        config = self.folder / "run.cfg"
        config.write_text("steps = 3\nlr = 1e-2\n")
        out = self.out("over a file")
        result = self.run_on(file, out, 2, "--config", config, "--epochs", 0.5)
        self.assertEqual(metrics(out)[-1][0], 4)
        self.assertIn("\nepochs = 0.5\n", result.stdout)
        self.assertNotIn("\nsteps = ", result.stdout)
        config.write_text("epochs = 0.5\n")
        again = self.out("of a file")
        self.run_on(file, again, 1, "--config", config)
        self.assertEqual(metrics(again), metrics(out))

    def test_a_plan_knows_tokens_and_reads_the_data_of_epochs_where_it_can(self):
        plan = train(1, "--plan", *FIXED, "--epochs", 2)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        unknown = "--epochs 2: --data, from which a plan knows the steps, is not given or not to be read here"
        self.assertIn(unknown, plan.stdout)
        elsewhere = train(1, "--plan", *FIXED, "--epochs", 2, "--data", self.folder / "not here.h5")
        self.assertEqual(elsewhere.returncode, 0, elsewhere.stderr)
        self.assertIn(unknown, elsewhere.stdout)
        file, _ = self.corpus_of(30)
        for ranks in (1, 3):
            here = train(ranks, "--plan", "--card", "h100", *FIXED, "--epochs", 2, "--data", file)
            self.assertEqual(here.returncode, 0, here.stderr)
            self.assertNotIn("--epochs 2: --data", here.stdout)
            self.assertIn(f"The run: 15 steps of {BATCH * SEQ} tokens", here.stdout)
        warned = train(1, "--plan", *FIXED, "--tokens", 1024, "--warmup", 9, "--eval-every", 0)
        self.assertIn("--warmup 9 continues after the 8 steps of --tokens 1024: the learning rate", warned.stdout)

    def test_tokenize_says_what_one_pass_is(self):
        file, tokens = self.corpus_of(30)
        text = file.with_suffix(".txt")
        shown = subprocess.run([BIN / "tokenize", "--tokenizer", "bytes", "--out", file, text], check=True,
                              capture_output=True, text=True).stdout
        self.assertIn(f"one pass over {file} is {tokens} tokens, of which {tokens - 1} are targets (train --epochs 1)\n", shown)


if __name__ == "__main__":
    unittest.main()
