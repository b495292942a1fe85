"""The watchdog through mpirun: a rank that is stopped or stuck ends the run in time, and is named.

rank_probe's limit is 3 s."""

import os
import re
import signal
import time

from probe_runs import ProbeCase, ProbeRun, main

LIMIT_SECONDS = 3
END_SECONDS = 10  # from the hang until every process is gone
HEADLINE = (r"hang: rank \d has made no progress for 3\.\d s \(--timeout-seconds 3\); "
            r"all ranks end with exit status 8")
SECONDS = r"\d+\.\d s"


class Watchdog(ProbeCase):
    def stopped_rank(self, ranks, stopped):
        run = ProbeRun("steps", "100000", ranks=ranks)
        run.wait_for("under way")
        at = run.send(stopped, signal.SIGSTOP)
        run.finish(END_SECONDS)
        self.assertGreater(time.monotonic() - at, LIMIT_SECONDS - 1)
        lines = [HEADLINE, rf"rank {stopped} \(\S+\): no sign of life for {SECONDS}, last seen in "
                           r"step \d+, phase forward.*"]
        lines += [rf"rank {r} \(\S+\): step \d+, phase forward, in collective all_gather number \d+ "
                  rf"\({256 * ranks} bytes\), no progress for {SECONDS}"
                  for r in range(ranks) if r != stopped]
        self.check(run, 8, *lines)

    def test_a_stopped_rank_is_named_by_the_others(self):
        self.stopped_rank(2, 1)

    def test_rank_0_may_be_the_stopped_one(self):
        self.stopped_rank(3, 0)

    def test_a_rank_that_is_stuck_is_shown_with_its_phase(self):
        run = self.run_probe("stay")
        self.check(run, 8, HEADLINE,
                   rf"rank 0 \(\S+\): step 7, phase backward, in collective barrier number \d+ "
                   rf"\(0 bytes\), no progress for {SECONDS}",
                   rf"rank 1 \(\S+\): step 7, phase stuck, no progress for {SECONDS}")
        self.assertLess(run.seconds, END_SECONDS)

    def test_phases_that_are_entered_count_as_progress(self):
        self.check(self.run_probe("slow"), 0)

    def test_suspended_time_does_not_count(self):
        run = ProbeRun("steps", "60")
        run.wait_for("under way")
        pids = list(run.pids().values())
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(LIMIT_SECONDS + 1)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        run.finish()
        self.check(run, 0)
        self.assertEqual(run.output.count("finished"), 2, run.output)

    def test_failed_communication_ends_the_run(self):
        run = self.run_probe("lose-peer", ranks=1)
        self.check(run, 6, r"a peer is gone; all ranks end with exit status 6",
                   rf"rank 0 \(\S+\): step 0, phase start, no progress for {SECONDS}")
        self.assertIn("aborted", run.output)

    def test_an_abort_that_blocks_ends_the_process_all_the_same(self):
        run = self.run_probe("block-in-abort", ranks=1)
        self.assertEqual(run.status, 8, run.output)
        self.assertLess(run.seconds, END_SECONDS)
        self.assertEqual(run.left_over(), [])

    def test_a_thread_that_the_abort_wakes_stays_quiet(self):
        for mode in ("woken-to-fail", "woken-to-go-on"):
            with self.subTest(mode=mode):
                run = self.run_probe(mode, ranks=1)
                self.check(run, 8, HEADLINE, rf"rank 0 \(\S+\): step 0, phase start, no progress for {SECONDS}")
                self.assertNotIn("went on", run.output)

    def test_nothing_is_left_in_shared_memory(self):
        run = ProbeRun("steps", "100000")
        run.wait_for("under way")
        with open(f"/proc/{run.pid(0)}/maps", encoding="utf-8") as maps:
            boards = re.findall(r" (/dev/shm/tessera-.*)", maps.read())
        run.send(0, signal.SIGKILL)
        run.finish(END_SECONDS)
        self.assertTrue(boards)
        for board in boards:
            self.assertTrue(board.endswith(" (deleted)"), board)


if __name__ == "__main__":
    main()
