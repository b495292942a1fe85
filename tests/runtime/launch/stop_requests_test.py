"""Stop requests through mpirun: any one rank that gets one stops all after the same step."""

import os
import re
import signal
import tempfile

from probe_runs import ProbeCase, ProbeRun, is_mpich, main


class StopRequests(ProbeCase):
    def check_stop(self, run, reason, statuses=(85,)):
        run.finish(20)
        self.assertIn(run.status, statuses, run.output)
        stops = re.findall(r"rank \d stops after step (\d+): (.*)", run.output)
        self.assertEqual(len(stops), run.ranks, run.output)
        self.assertEqual({stop for stop in stops}, {(stops[0][0], reason)}, run.output)
        self.assertEqual(run.left_over(), [])

    def test_a_signal_to_any_one_rank_stops_all(self):
        for rank, number, reason in ((0, signal.SIGUSR1, "signal USR1"),
                                     (1, signal.SIGUSR1, "signal USR1"),
                                     (1, signal.SIGTERM, "signal TERM"),
                                     (2, signal.SIGINT, "signal INT")):
            with self.subTest(rank=rank, signal=number):
                run = ProbeRun("stop", ranks=3)
                run.wait_for("under way")
                run.send(rank, number)
                self.check_stop(run, reason)

    def test_usr1_to_mpirun_reaches_the_ranks(self):
        run = ProbeRun("stop")
        run.wait_for("under way")
        run.process.send_signal(signal.SIGUSR1)
        # MPICH's launcher sometimes forgets its ranks' status when it was signalled itself
        self.check_stop(run, "signal USR1", (85, 0) if is_mpich() else (85,))

    def test_a_stop_file_stops_all_and_is_taken_away(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "stop it")
            run = ProbeRun("stop", path)
            run.wait_for("under way")
            with open(path, "w", encoding="ascii"):
                pass
            self.check_stop(run, "the stop file")
            self.assertFalse(os.path.exists(path))


if __name__ == "__main__":
    main()
