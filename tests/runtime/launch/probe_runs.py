"""Starts rank_probe through mpirun for the tests beside this file. Standard library only."""

import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from launcher import MPIEXEC, is_gone, is_mpich, status_of_kill  # noqa: E402,F401

PROBE = os.path.join(os.environ["TESSERA_BIN"], "rank_probe")
# What mpirun may take by itself to start and to end ranks.
OVERHEAD_SECONDS = 10


class ProbeRun:
    """One mpirun of rank_probe, under way. `status`, `output`, `seconds` once `finish` was called."""

    def __init__(self, *arguments, ranks=2, programs=None, launcher_options=()):
        programs = programs or [(ranks, PROBE, arguments)]
        command = [MPIEXEC, *launcher_options]
        for count, program, its_arguments in programs:
            command += [":"] if "-np" in command else []
            command += ["-np", str(count), program, *its_arguments]
        self.file = tempfile.TemporaryFile("w+")
        self.start = time.monotonic()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.file,
                                        stderr=subprocess.STDOUT)
        self.ranks = sum(count for count, _, _ in programs)
        self.status = None
        self.seconds = None
        self.final_output = None

    @property
    def output(self):
        if self.final_output is not None:
            return self.final_output
        # pread, because the ranks write through the same file position
        size = os.fstat(self.file.fileno()).st_size
        return os.pread(self.file.fileno(), size, 0).decode("utf-8", "replace")

    def wait_for(self, text, seconds=20):
        end = time.monotonic() + seconds
        while text not in self.output:
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"no '{text}' in:\n{self.output}")
            time.sleep(0.02)

    def pids(self):
        """Process id by rank."""
        return {int(r): int(p) for r, p in re.findall(r"pid (\d+) (\d+)", self.output)}

    def pid(self, rank):
        self.wait_for(f"pid {rank} ")
        return self.pids()[rank]

    def send(self, rank, number):
        os.kill(self.pid(rank), number)
        return time.monotonic()

    def finish(self, seconds=60):
        try:
            self.status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            for pid in self.pids().values():
                if not is_gone(pid):
                    os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"not finished after {seconds} s:\n{self.output}") from None
        self.seconds = time.monotonic() - self.start
        self.final_output = self.output
        self.file.close()
        return self

    def error_lines(self):
        """What the program wrote as errors, without time, rank and host before it."""
        return re.findall(r"^\[[^\]]*\] error: (.*)$", self.output, re.MULTILINE)

    def left_over(self, timeout=3):
        """Ranks still there after mpirun has ended; killed now."""
        end = time.monotonic() + timeout
        left = [pid for pid in self.pids().values() if not is_gone(pid)]
        while left and time.monotonic() < end:
            time.sleep(0.05)
            left = [pid for pid in left if not is_gone(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left


class Together(unittest.TestSuite):
    """Runs a few tests at a time: most of theirs is waiting. No class or module fixtures."""
    AT_ONCE = 3

    def cases(self):
        for test in self:
            if isinstance(test, Together):
                yield from test.cases()
            else:
                yield test

    def run(self, result, debug=False):
        with concurrent.futures.ThreadPoolExecutor(self.AT_ONCE) as pool:
            for _ in pool.map(lambda case: case.run(result), list(self.cases())):
                pass
        return result


def main():
    loader = unittest.TestLoader()
    loader.suiteClass = Together
    unittest.main(testLoader=loader)


class ProbeCase(unittest.TestCase):
    maxDiff = None

    def run_probe(self, *arguments, **options):
        return ProbeRun(*arguments, **options).finish()

    def check(self, run, status, *lines):
        """Exit status, and exactly these error lines (regular expressions, each for a whole line), in
        any order; and no process left."""
        self.assertEqual(run.status, status, run.output)
        errors = run.error_lines()
        self.assertEqual(len(errors), len(lines), run.output)
        for line in lines:
            self.assertTrue(any(re.fullmatch(line, error) for error in errors),
                            f"no line is '{line}' in:\n{run.output}")
        self.assertEqual(run.left_over(), [], run.output)
