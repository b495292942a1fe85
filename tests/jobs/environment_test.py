"""What lies outside the programs: who reads their output, signals, names, permissions, files of earlier runs."""
import json
import os
import resource
import signal
import subprocess
import time
import unittest

from train_test import (BIN, CANNOT_WRITE, MPIEXEC, RESTART, Case, environment, events, is_mpich, metrics,
                        with_small)


class EnvironmentCase(Case):
    """Most runs are of one rank without mpirun: what is tested is the process."""

    def command(self, out, *arguments):
        return [BIN / "train", "--data", self.corpus, "--out", out, *with_small(*arguments)]

    def start(self, out, *arguments, ranks=1, **more):
        launcher = [] if ranks == 1 else [MPIEXEC, "-np", str(ranks)]
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        process = subprocess.Popen([*launcher, *map(str, self.command(out, *arguments))], text=True,
                                   stdin=subprocess.DEVNULL, env=environment(), **more)
        self.addCleanup(process.kill)
        return process

    def until(self, process, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            self.assertIsNone(process.poll(), "the run ended by itself")
            self.assertLess(time.monotonic(), end, "it never came so far")
            time.sleep(0.02)

    @staticmethod
    def steps_done(out):
        return len(metrics(out)) if (out / "metrics.jsonl").exists() else 0


class Output(EnvironmentCase):
    """stdout that is closed, full, or a pipe that nobody reads any more."""

    TOOLS = (("inspect", "--help"), ("tokenize", "--help"), ("tokenize", "--version"), ("generate", "--help"),
             ("generate", "--version"), ("convert", "--help"), ("convert", "--version"), ("report", "--help"),
             ("report", "--version"), ("bench", "--help"), ("train", "--help"), ("train", "--version"),
             ("train", "--plan", "--model", "tiny"), ("train", "--plan", "--json", "--model", "tiny"))

    def run_without_reader(self, words, **more):
        """Of a process whose stdout is a pipe that nobody reads: status and stderr."""
        read, write = os.pipe()
        os.close(read)
        try:
            return subprocess.run([str(word) for word in words], stdout=write, stderr=subprocess.PIPE, text=True,
                                  check=False, env=environment(), stdin=subprocess.DEVNULL, timeout=100, **more)
        finally:
            os.close(write)

    def run_with_full_disk(self, words, **more):
        with open("/dev/full", "wb") as full:
            return subprocess.run([str(word) for word in words], stdout=full, stderr=subprocess.PIPE, text=True,
                                  check=False, env=environment(), stdin=subprocess.DEVNULL, timeout=100, **more)

    def run_closed(self, words, closing=">&-"):
        return subprocess.run(["bash", "-c", f'"$@" {closing}', "bash", *(str(word) for word in words)],
                              stderr=subprocess.PIPE, text=True, check=False, env=environment(),
                              stdin=subprocess.DEVNULL, timeout=100)

    def test_every_tool_ends_with_4_and_one_sentence_where_its_output_is_lost(self):
        out = self.out("looked at")
        self.assertEqual(self.start(out, "--steps", 2).wait(), 0)
        step = out / "step-00000002"
        tools = [(BIN / name, *words) for name, *words in self.TOOLS]
        tools += [(BIN / "inspect", out), (BIN / "inspect", step, "--json"), (BIN / "report", out),
                  (BIN / "tokenize", "--tokenizer", "bytes", "--out", self.folder / "again.h5",
                   self.folder / "text"),
                  (BIN / "generate", out, "--prompt", "the", "--max-tokens", "3"),
                  (BIN / "convert", "export", out, self.folder / "exported")]
        ways = {"it is closed": self.run_closed, "no space left on the device": self.run_with_full_disk,
                "Broken pipe": self.run_without_reader}
        for number, words in enumerate(tools):
            cause = list(ways)[number % len(ways)]
            result = ways[cause](words)
            with self.subTest(words=words[1:], program=words[0].name, cause=cause):
                self.assertEqual(result.returncode, CANNOT_WRITE, result.stderr)
                self.assertEqual(result.stderr.count(f"cannot write to standard output: {cause}"), 1, result.stderr)

    def test_training_goes_on_without_its_output(self):
        reference = self.out("with")
        self.assertEqual(self.start(reference, "--steps", 6).wait(), 0)
        ways = {"it is closed": self.run_closed, "no space left on the device": self.run_with_full_disk,
                "Broken pipe": self.run_without_reader}
        for cause, run in ways.items():
            out = self.out(f"without {cause}")
            result = run(self.command(out, "--steps", 6))
            with self.subTest(cause=cause):
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(result.stderr.count("cannot write to standard output"), 1, result.stderr)
                self.assertIn(f"cannot write to standard output: {cause}; the run continues without it",
                              result.stderr)
                self.assertEqual(metrics(out), metrics(reference))
                self.assertTrue((out / "step-00000006").is_dir())

    def test_no_file_of_a_run_takes_the_place_of_a_closed_stream(self):
        out = self.out("all closed")
        result = self.run_closed(self.command(out, "--steps", 4), "<&- >&- 2>&-")
        self.assertEqual(result.returncode, 0)
        for line in (out / "metrics.jsonl").read_text().splitlines():
            json.loads(line)  # nothing else is in it
        self.assertEqual(subprocess.run([BIN / "inspect", out, "--verify"], check=False,
                                        stdout=subprocess.DEVNULL).returncode, 0)

    @unittest.skipIf(is_mpich(), "how Open MPI's mpirun passes on its ranks' output")
    def test_ranks_under_mpirun_go_on_when_nobody_reads_it(self):
        out = self.out("head")
        steps = 200  # far more lines than mpirun tolerates failures
        result = self.run_without_reader([MPIEXEC, "-np", 2, *self.command(out, "--steps", steps)])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(metrics(out)[-1][0], steps)
        self.assertTrue((out / f"step-{steps:08}").is_dir())


class Signals(EnvironmentCase):
    ENDLESS = ("--steps", 100000)

    def stopped(self, process, out, reason):
        stdout, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, RESTART, stdout + stderr)
        last = metrics(out)[-1][0]
        self.assertIn(f"stopped at step {last} by {reason}: saved", stdout)
        self.assertTrue((out / f"step-{last:08}").is_dir())
        return stdout

    def test_hangup_and_usr2_save_and_stop(self):
        for number in (signal.SIGHUP, signal.SIGUSR2):
            out = self.out(f"told {number}")
            process = self.start(out, *self.ENDLESS)
            self.until(process, lambda: self.steps_done(out) > 2)
            process.send_signal(number)
            with self.subTest(number=number):
                self.stopped(process, out, f"signal {number.name[3:]}")

    def test_the_limit_of_cpu_time_saves_and_stops(self):
        out = self.out("cpu time")
        process = self.start(out, *self.ENDLESS,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (2, 60)))
        self.stopped(process, out, "signal XCPU")

    def test_a_hangup_that_is_ignored_stays_ignored(self):
        out = self.out("nohup")
        process = self.start(out, *self.ENDLESS,
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.until(process, lambda: self.steps_done(out) > 2)
        process.send_signal(signal.SIGHUP)
        then = self.steps_done(out)
        self.until(process, lambda: self.steps_done(out) > then + 5)
        process.send_signal(signal.SIGUSR1)
        self.stopped(process, out, "signal USR1")

    def drop(self, what, after, *arguments, ranks=2):
        """Tells one of the ranks to stop when the first steps are done, and something long goes on."""
        out = self.out(f"drop {what}")
        process = self.start(out, *self.ENDLESS, "--eval-data", self.held_out, *arguments, ranks=ranks)
        self.until(process, lambda: self.steps_done(out) >= after)
        time.sleep(0.3)
        self.assertEqual(self.steps_done(out), after, "it goes on for longer than that")
        process.send_signal(signal.SIGUSR1)
        at = time.monotonic()
        stdout = self.stopped(process, out, "signal USR1")
        self.assertLess(time.monotonic() - at, 5)
        self.assertIn(f"no {what} at step {after}: asked to stop by signal USR1", stdout)
        self.assertEqual(metrics(out)[-1][0], after)
        self.assertEqual(len(events(out, "dropped")), 1)
        return out

    def test_an_evaluation_is_dropped_for_a_save(self):
        # thousands of micro-batches of a model that is not tiny
        long = self.folder / "long.txt"
        long.write_text("the quick fox " * 40000)
        self.held_out = self.folder / "long.h5"
        subprocess.run([BIN / "tokenize", "--tokenizer", "bytes", "--out", self.held_out, long], check=True,
                       capture_output=True)
        out = self.drop("evaluation", 3, "--eval-every", 3, "--eval-windows", 0, "--micro-batch", 1)
        self.assertNotIn("eval_loss", (out / "metrics.jsonl").read_text())

    def test_a_sample_is_dropped_for_a_save(self):
        self.drop("sample", 4, "--sample-every", 4, "--sample-prompt", "the", "--sample-tokens", 20000)


if __name__ == "__main__":
    unittest.main()
