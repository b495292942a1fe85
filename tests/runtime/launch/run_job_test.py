"""run_job and agree through mpirun: one clear line, one exit status, no rank left waiting."""

import os
import shutil
import signal
import tempfile
import unittest

from probe_runs import OVERHEAD_SECONDS, PROBE, ProbeCase, ProbeRun, is_mpich, main, status_of_kill

START_SECONDS = 6  # the limit of rank_probe
NOT_STARTED = (r"hang: rank {rank} \(\S+, pid {pid}\) has not started after \d\.\d s \(limit 6, see --timeout-seconds\): .*; "
               r"all ranks end with exit status 8")
DOING = r" \(in step 7, phase backward; all ranks end with exit status (\d)\)"


class RunJob(ProbeCase):
    def test_returns_what_the_body_returns(self):
        for status in (0, 85):
            self.check(self.run_probe("return", str(status)), status)

    def test_one_rank_that_fails_ends_all_with_its_status(self):
        run = self.run_probe("throw-alone", ranks=3)
        self.check(run, 3, r"x\.h5 is damaged" + DOING)
        self.assertRegex(run.output, r"\[\d\d:\d\d:\d\d rank 2 on \S+\] error: x\.h5")
        self.assertLess(run.seconds, OVERHEAD_SECONDS)

    def test_memory_that_runs_out_is_reported_in_a_sentence(self):
        self.check(self.run_probe("out-of-memory"), 5, r"host memory ran out: .*" + DOING)

    def test_an_unknown_exception_is_a_fault_of_ours(self):
        fault = r"an internal error in tessera, please report it: "
        self.check(self.run_probe("throw-unknown"), 9, fault + "a library's words" + DOING)
        self.check(self.run_probe("throw-no-exception"), 9,
                   fault + "an exception of unknown type" + DOING)

    def test_what_every_rank_meets_is_reported_once(self):
        for ranks in (1, 2, 4):
            run = self.run_probe("throw-everywhere", ranks=ranks)
            self.check(run, 7, "4 steps were not finite")
            self.assertNotIn("MPI_ABORT", run.output)

    def test_ranks_that_fail_in_their_own_ways_all_say_so(self):
        run = self.run_probe("throw-unlike")
        self.assertEqual(run.status, 3, run.output)
        self.assertIn("is damaged", run.error_lines()[0])
        self.assertEqual(run.left_over(), [])

    def test_an_agreed_failure_of_all_ranks_is_reported_once(self):
        for ranks in (1, 3):
            run = self.run_probe("agree-everywhere", ranks=ranks)
            self.check(run, 2, r"--lr -1 must be above 0")
            self.assertNotIn("MPI_ABORT", run.output)

    def test_an_agreed_failure_of_one_rank_names_it(self):
        run = self.run_probe("agree-alone", ranks=3)
        self.check(run, 4, r"rank 1 \(\S+\): the disk is full")
        self.assertNotIn("MPI_ABORT", run.output)

    def test_a_rank_that_is_killed_ends_all(self):
        run = ProbeRun("steps", "100000")
        run.wait_for("under way")
        run.send(1, signal.SIGKILL)
        run.finish(OVERHEAD_SECONDS)
        # MPICH's launcher leaves the others no time to say it
        lost = [] if is_mpich() else [r"rank 1 \(\S+\) is gone \(killed\?\), last seen in step \d+, phase forward.*"]
        self.check(run, status_of_kill(signal.SIGKILL), *lost)

    @unittest.skipIf(is_mpich(), "skipped: MPICH's launcher lets no loss pass, -disable-auto-cleanup or not")
    def test_a_loss_that_the_launcher_lets_pass_ends_all(self):
        # as under srun without -K; mpirun itself then ends with 0
        run = ProbeRun("patient-steps", "100000", ranks=3, launcher_options=["--enable-recovery"])
        run.wait_for("under way")
        run.send(1, signal.SIGKILL)
        run.finish(30)
        self.assertEqual(run.left_over(), [])
        self.assertRegex(run.error_lines()[0], r"rank 1 \(\S+\) is gone \(killed\?\), last seen in .*")
        self.assertRegex(run.error_lines()[1],
                         r"rank 1 is gone and the launcher has not ended the others in 10 s; all ranks "
                         r"end with exit status 6")

    def test_a_rank_that_is_stopped_before_mpi_ends_all(self):
        for stopped in (0, 1):
            run = ProbeRun("stop-before-mpi", str(stopped)).finish(START_SECONDS + OVERHEAD_SECONDS)
            other = 1 - stopped
            self.check(run, 8, NOT_STARTED.format(rank=other, pid=run.pid(other)))

    def test_a_rank_that_is_stopped_while_it_starts_is_not_waited_for(self):
        # After MPI_Init: one that is stopped while it connects to mpirun can make mpirun itself hang.
        run = ProbeRun("start-slowly")
        run.send(1, signal.SIGSTOP)
        run.finish(START_SECONDS + OVERHEAD_SECONDS)
        self.check(run, 8, NOT_STARTED.format(rank=0, pid=run.pid(0)))

    def test_a_start_without_end_is_reported_by_every_rank_that_can(self):
        run = self.run_probe("start-slowly")
        # MPICH's launcher may kill the second while it ends, and then has the status of that
        status = run.status if is_mpich() and run.status == status_of_kill(signal.SIGKILL) else 8
        self.check(run, status, *[NOT_STARTED.format(rank=r, pid=r"\d+") for r in (0, 1)])

    def test_a_launcher_of_another_mpi_is_refused(self):
        # Processes that srun started, and whose MPI knows nothing of it: no mpirun here.
        import subprocess
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PMI"))}
        environment["SLURM_STEP_NUM_TASKS"] = "2"
        done = subprocess.run([PROBE, "return", "0"], env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"error: the launcher started 2 tasks \(SLURM_STEP_NUM_TASKS\), "
                                      r"but MPI knows of 1 rank")


class StartupCheck(ProbeCase):
    def start(self, first, second, second_program=PROBE):
        return ProbeRun(programs=[(1, PROBE, ["options", first]),
                                  (1, second_program, ["options", second])]).finish()

    def test_ranks_with_the_same_options_start(self):
        run = self.start("lr=1e-3", "lr=1e-3")
        self.check(run, 0)
        self.assertEqual(run.output.count("all alike"), 2, run.output)

    def test_another_value_is_refused_by_name(self):
        run = self.start("lr=1e-3", "lr=1e-4")
        self.check(run, 2, r"rank 1 \(\S+\) has lr = 1e-4, rank 0 \(\S+\) has lr = 1e-3: start every "
                           r"rank with the same program, options and data")

    def test_an_option_that_one_rank_lacks_is_refused_by_name(self):
        self.check(self.start("lr=1e-3", "clip=1"), 2,
                   r"rank 1 \(\S+\) has no lr, rank 0 \(\S+\) has lr = 1e-3; clip differs too: .*")

    def test_another_build_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            other = shutil.copy(PROBE, os.path.join(folder, "rank_probe"))
            with open(other, "ab") as program:
                program.write(b"\0")
            self.check(self.start("lr=1e-3", "lr=1e-3", other), 2,
                       r"rank 1 \(\S+\) has build = tessera .*, program [0-9a-f]{16}, rank 0 .*")


if __name__ == "__main__":
    main()
