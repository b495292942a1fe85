"""Runs that lose a rank, that hang, whose disk fails, and runs that are asked to stop, at every moment of
their life. With TESSERA_LONG_TESTS the number of moments is that of the table in jobs/README.md, which
`python3 failures_test.py --table` prints."""
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from train_test import (BIN, CANNOT_WRITE, HANG, MPIEXEC, RESTART, Case, environment, events, is_gone, is_mpich,
                        metrics, statuses_of_kill, train, wait_for_ranks, with_small)

LONG = "TESSERA_LONG_TESTS" in os.environ
TABLE = []


def verified(out):
    """The newest checkpoint's step; its shards are as they were written. 0: there is none."""
    steps = sorted(out.glob("step-*"))
    if steps:
        subprocess.run([BIN / "inspect", steps[-1], "--verify"], check=True, capture_output=True)
    return int(steps[-1].name[5:]) if steps else 0


class FailureCase(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # LD_PRELOAD is cut at spaces and colons, and a build's path may have them: a link in a plain folder
        folder = tempfile.TemporaryDirectory(prefix="tessera-bad-disk-")
        cls.addClassCleanup(folder.cleanup)
        assert not re.search("[ :]", folder.name), f"LD_PRELOAD cannot name {folder.name}: set TMPDIR to a plain path"
        links = [pathlib.Path(folder.name) / name for name in ("disk.so", "rank.so")]
        os.symlink(os.environ["BAD_DISK"], links[0])
        os.symlink(os.environ["STOPPED_RANK_LIBRARY"], links[1])
        first = os.environ.get("PRELOAD_FIRST", "")  # a sanitizer's runtime must be
        if first:  # mpirun is preloaded too, and leaks
            os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        cls.bad_disk, cls.stopped_rank = [":".join(filter(None, (first, str(link)))) for link in links]

    def start(self, out, *arguments, **more):
        process = subprocess.Popen([MPIEXEC, "-np", "2", BIN / "train", "--data", self.corpus, "--out", out,
                                    *with_small(*arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env=environment(**more))
        self.addCleanup(process.kill)
        return process

    @staticmethod
    def ranks_of(process):
        """Process ids of the ranks, in the order of ranks."""
        return wait_for_ranks(process.pid, "train", 2)

    def until(self, process, condition):
        while not condition():
            self.assertIsNone(process.poll(), "the run ended by itself")
            time.sleep(0.02)

    def steps_done(self, out):
        return len(metrics(out)) if (out / "metrics.jsonl").exists() else 0

    def ended(self, process, pids, seconds):
        stdout, stderr = process.communicate(timeout=seconds)
        end = time.monotonic() + 10  # mpirun kills what is left when it exits
        while not all(map(is_gone, pids)) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertTrue(all(map(is_gone, pids)), "a rank is left")
        return stdout, stderr


class Lost(FailureCase):
    """A rank is killed or stopped in a phase of the run."""
    PHASES = {
        "load": ([], {}, lambda case, out: True),
        "step": (["--steps", 100000, "--save-every", 20], {}, lambda case, out: case.steps_done(out) > 25),
        "evaluation": (["--steps", 100000, "--save-every", 2, "--eval-every", 2, "--eval-sequences", 0,
                        "--micro-batch", 1], {}, lambda case, out: case.steps_done(out) > 4),
        "save": (["--steps", 100000, "--save-every", 4], {"BAD_DISK_SYNC_SECONDS": "1"},
                 lambda case, out: case.steps_done(out) > 10 and list(out.glob(".tmp-*")))}

    def lose(self, phase, number, codes, seconds):
        arguments, disk, reached = self.PHASES[phase]
        out = self.out(f"{phase} {number}")
        if "--eval-every" in arguments:
            arguments = [*arguments, "--eval-data", self.held_out]
        process = self.start(out, *arguments, "--timeout-seconds", 3, LD_PRELOAD=self.bad_disk, **disk)
        pids = self.ranks_of(process)
        self.until(process, lambda: reached(self, out))
        if phase == "load":
            time.sleep(0.3)
        os.kill(pids[1], number)
        at = time.monotonic()
        _, stderr = self.ended(process, pids, 60)
        took = time.monotonic() - at
        name = signal.Signals(number).name
        seen = re.search(r"rank 1 .*last seen in (step \d+, phase [a-z -]+)", stderr)
        TABLE.append(f"| {name} of rank 1 in {phase} | {seen.group(1) if seen else ''} | {process.returncode} | "
                     f"{took:.1f} s | {verified(out) or 'none yet'} |")
        self.assertIn(process.returncode, codes, stderr)
        self.assertLess(took, seconds)
        if number != signal.SIGKILL or not is_mpich():  # whose launcher leaves the others no time to say it
            self.assertIn("rank 1", stderr)

    def test_a_killed_rank_ends_the_run_in_every_phase(self):
        for phase in list(self.PHASES) if LONG else ("save",):  # steps are killed in train_test
            with self.subTest(phase=phase):
                self.lose(phase, signal.SIGKILL, statuses_of_kill(signal.SIGKILL), 15)

    def test_a_stopped_rank_ends_the_run_in_every_phase(self):
        for phase in list(self.PHASES) if LONG else ("save",):  # a stopped step is in train_test
            with self.subTest(phase=phase):
                self.lose(phase, signal.SIGSTOP, (HANG,), 20)

    def test_a_rank_that_is_stopped_before_mpi_ends_the_run(self):
        process = self.start(self.out("start"), "--timeout-seconds", 3, LD_PRELOAD=self.stopped_rank, STOPPED_RANK="1")
        at = time.monotonic()
        _, stderr = self.ended(process, self.ranks_of(process), 60)
        took = time.monotonic() - at
        TABLE.append(f"| SIGSTOP of rank 1 before MPI_Init | | {process.returncode} | {took:.1f} s | none yet |")
        self.assertEqual(process.returncode, HANG, stderr)
        self.assertLess(took, 25)
        self.assertRegex(stderr, r"hang: rank 0 \(.*\) has not started after 1\d")


class Stopped(FailureCase):
    """One rank alone is asked to stop."""

    def test_one_rank_signalled_at_random_moments_makes_all_save_and_stop(self):
        chance = random.Random(8)
        for attempt in range(20 if LONG else 3):
            number = (signal.SIGUSR1, signal.SIGTERM)[attempt % 2]
            out = self.out(f"stopped {attempt}")
            process = self.start(out, "--steps", 100000, "--eval-data", self.held_out, "--eval-every", 3,
                                 "--save-every", 4, LD_PRELOAD=self.bad_disk, BAD_DISK_SYNC_SECONDS="0")
            pids = self.ranks_of(process)
            # from the moment that rank is there and listens: before it, the signal ends a process as any
            listening = pathlib.Path(f"/proc/{pids[attempt % 2]}/status")
            self.until(process, lambda file=listening: self.listens(file))
            time.sleep(4 * chance.random() if LONG else chance.random())
            os.kill(pids[attempt % 2], number)
            stdout, stderr = self.ended(process, pids, 60)
            with self.subTest(attempt=attempt):
                self.assertEqual(process.returncode, RESTART, stdout + stderr)
                last = metrics(out)[-1][0]
                self.assertIn(f"stopped at step {last} by signal", stdout)
                self.assertEqual(verified(out), last)
                self.assertEqual(list(out.glob(".tmp-*")), [])

    @staticmethod
    def listens(status):
        caught = int(re.search(r"^SigCgt:\s*(\S+)", status.read_text(), re.MULTILINE).group(1), 16)
        return caught >> (signal.SIGUSR1 - 1) & 1


class Disk(FailureCase):
    def test_a_disk_that_is_full_for_one_rank_fails_the_save_by_name(self):
        out = self.out("full for one")
        self.succeed(2, out, "--steps", 2)
        result = train(2, "--data", self.corpus, "--out", out, *with_small("--steps", 4), "--on-save-failure", "stop",
                       LD_PRELOAD=self.bad_disk, BAD_DISK_FULL_RANK="1")
        self.assertEqual(result.returncode, CANNOT_WRITE, result.stderr)
        self.assertIn("the save of step 4 failed: rank 1", result.stderr)
        self.assertEqual(verified(out), 2)
        finished = train(2, "--data", self.corpus, "--out", out, *with_small("--steps", 4),
                         LD_PRELOAD=self.bad_disk, BAD_DISK_FULL_RANK="1")
        self.assertEqual(finished.returncode, CANNOT_WRITE, "a finished run whose result is not saved")

    def limited(self, seconds, sync_seconds, *arguments, **more):
        out = self.out(f"limited {seconds}")
        begin = time.monotonic()
        result = train(2, "--data", self.corpus, "--out", out, *with_small("--steps", 100000, *arguments),
                       LD_PRELOAD=self.bad_disk, BAD_DISK_SYNC_SECONDS=str(sync_seconds), **more)
        took = time.monotonic() - begin
        self.assertEqual(result.returncode, RESTART, result.stdout + result.stderr)
        self.assertLess(took, seconds)
        self.assertEqual(verified(out), metrics(out)[-1][0])
        slowest = max(float(re.search(r" in ([\d.]+) s", row["text"]).group(1)) for row in events(out, "save"))
        TABLE.append(f"| time limit of {seconds:.0f} s, saves of {slowest:.1f} s | | {result.returncode} | {took:.1f} s "
                     f"| {verified(out)} |")
        return result, slowest

    @unittest.skipUnless(LONG, "takes 20 s: set TESSERA_LONG_TESTS")
    def test_a_time_limit_counts_the_save(self):
        # the limit is of train; starting and stopping ranks is not in it
        _, slowest = self.limited(20, 1, "--max-seconds", 19)
        self.assertGreater(slowest, 4)

    def test_the_end_of_the_job_counts_as_a_limit(self):
        result, _ = self.limited(30, 0, SLURM_JOB_END_TIME=str(int(time.time()) + 30))
        self.assertIn("by the end of the job: saved", result.stdout)


if __name__ == "__main__":
    table = "--table" in sys.argv
    unittest.main(argv=[a for a in sys.argv if a != "--table"], exit=not table)
    print("\n".join(TABLE))
