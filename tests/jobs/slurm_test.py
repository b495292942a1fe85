"""The batch scripts under a real Slurm of one node: runs that are signalled before their time is up, go back
into the queue and end with the losses of a run that nobody disturbed; sweeps and chains."""
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import slurm_cluster
from train_test import BIN, Case, RESTART, is_mpich, metrics, state_hash, train, with_small

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "jobs" / "slurm"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


class Slurm(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.slurm = slurm_cluster.SlurmCluster()
        cls.slurm.environment["TRAIN"] = str(BIN / "train")

    @classmethod
    def tearDownClass(cls):
        folder = cls.slurm.folder
        cls.slurm.stop()
        assert not folder.exists()
        super().tearDownClass()

    def setUp(self):
        self.scripts = self.folder / "scripts in a folder"
        shutil.copytree(SCRIPTS, self.scripts, dirs_exist_ok=True)

    def tearDown(self):
        self.slurm.cancel_all()

    def submit(self, script, *arguments, options=()):
        result = self.slurm.run("sbatch", "--parsable", "--nodes=1", "--ntasks-per-node=2", "--ntasks=2", "--time=5",
                                *options,
                                f"--output={self.log(script)}", str(self.scripts / script), *map(str, arguments))
        return result.stdout.strip()

    def log(self, script):
        return self.slurm.folder / f"{script}.out"  # a % of the scratch folder would be a pattern here

    def reported(self, script):
        return self.log(script).read_text() if self.log(script).exists() else ""

    def wait_for_steps(self, out, count, job):
        def there():
            self.assertNotIn(self.slurm.job(job)["JobState"], ENDED)
            return (out / "metrics.jsonl").exists() and len(metrics(out)) >= count
        self.slurm.wait(there, 60, f"no {count} steps in {out}")

    def wait_for_end(self, job, script):
        self.slurm.wait(lambda: self.slurm.job(job)["JobState"] in ENDED, 120, f"job {job} has not ended")
        return self.slurm.job(job), self.reported(script)

    def undisturbed(self, name, *arguments):
        out = self.out(name)
        self.succeed(2, out, *arguments)
        return metrics(out), state_hash(out)

    def options_file(self, name, steps):
        """A file of options, so that the number of steps can change while a job waits in the queue."""
        file = self.folder / f"{name}.ini"
        file.write_text(f"data = {self.corpus}\nseq = 32\nmicro-batch = 2\nglobal-batch = 16\nlr = 1e-2\n"
                        f"schedule-steps = 5000\nsteps = {steps}\n")
        return file

    def finishes_in_the_next_start(self, script, job, out, name):
        """The job saved and is in the queue again: it does 5 more steps, and equals an undisturbed run."""
        def is_back_in_the_queue():
            fields = self.slurm.job(job)
            self.assertNotIn(fields["JobState"], ENDED, self.reported(script))
            return fields["Restarts"] == "1" and fields["JobState"] == "PENDING"
        self.slurm.wait(is_back_in_the_queue, 60, f"job {job} is not back in the queue")
        reached = len(metrics(out))
        config = self.options_file(name, reached + 5)
        # Slurm lets such a job wait for two minutes, which a test need not. But not at once: slurmd revokes what
        # it was informed of a requeued job by the second ("Job credential revoked").
        self.slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+3", "TimeLimit=5")
        end, reported = self.wait_for_end(job, script)
        self.assertEqual((end["JobState"], end["ExitCode"], end["Restarts"]), ("COMPLETED", "0:0", "1"),
                         reported + self.slurm.logs())
        for words in ("the batch system ends this job in", f"stopped at step {reached} by signal USR1: saved", "saved; back into the queue",
                      "start 2, on", f"continuing after step {reached}"):
            self.assertIn(words, reported)
        twin = self.out(f"twin of {name}")
        self.assertEqual(train(2, "--config", config, "--out", twin).returncode, 0)
        self.assertEqual(len(metrics(out)), reached + 5)
        self.assertEqual((metrics(out), state_hash(out)), (metrics(twin), state_hash(twin)))

    def test_srun_is_signalled_before_its_time_is_up_and_finishes_in_the_next(self):
        # Of the minute that Slurm gives at least, the signal comes 55 s before the end.
        out = self.out("srun run")
        job = self.submit("train.sbatch", "--config", self.options_file("srun", 100000), "--out", out,
                          options=("--time=1", "--signal=B:USR1@55"))
        self.finishes_in_the_next_start("train.sbatch", job, out, "srun")

    def test_mpirun_is_signalled_and_finishes_in_the_next(self):
        out = self.out("mpirun run")
        job = self.submit("train-mpirun.sbatch", "--config", self.options_file("mpirun", 100000), "--out", out)
        self.wait_for_steps(out, 3, job)
        self.slurm.run("scancel", "--batch", "--signal=USR1", job)
        self.finishes_in_the_next_start("train-mpirun.sbatch", job, out, "mpirun")

    def with_variables(self, **variables):
        """What a site's module would set, until the test's end."""
        self.slurm.environment.update(variables)
        for name in variables:
            self.addCleanup(self.slurm.environment.pop, name)

    def test_the_type_of_mpi_is_a_variable(self):
        self.with_variables(TESSERA_MPI="list")
        job = self.submit("train.sbatch")
        _, reported = self.wait_for_end(job, "train.sbatch")
        self.assertRegex(reported, r"(?m)^\s*pmix")

    def test_a_batch_job_that_gets_term_saves_and_ends(self):
        # and the options of a site reach srun and mpirun
        self.with_variables(TESSERA_SRUN="--label --quiet", TESSERA_MPIRUN="--tag-output --quiet", SLURM_GPUS_ON_NODE="4")
        prefix = {"train.sbatch": "0: ", "train-mpirun.sbatch": "[1,0]<stdout>:"}
        for script in ("train.sbatch", "train-mpirun.sbatch"):
            out = self.out(f"ended {script}")
            job = self.submit(script, "--data", self.corpus, "--out", out, *with_small("--steps", 100000))
            self.wait_for_steps(out, 3, job)
            self.slurm.run("scancel", "--batch", "--signal=TERM", job)
            end, reported = self.wait_for_end(job, script)
            self.assertEqual((end["JobState"], end["ExitCode"]), ("FAILED", f"{RESTART}:0"), reported)
            self.assertIn(f"\n{prefix[script]}step 1/", reported)
            self.assertIn(f"{script}: warning: the job has GPUs, and train computes on CPUs", reported)
            self.assertEqual([p.name for p in out.glob("step-*")], [f"step-{metrics(out)[-1][0]:08}"])

    def test_a_sweep_takes_its_lines_one_by_one(self):
        table = self.folder / "the jobs.txt"
        table.write_text("--lr 1e-3\n--lr 2e-3 --clip '0.5'\n")
        folder = self.out("array")
        common = ("--data", self.corpus, "--seq", 32, "--micro-batch", 2, "--global-batch", 16, "--steps", 3)
        job = self.submit("array.sbatch", table, folder, *common, options=("--array=1-2",))
        for number in (1, 2):
            end, reported = self.wait_for_end(f"{job}_{number}", "array.sbatch")
            self.assertEqual(end["ExitCode"], "0:0", reported)
        expected = self.undisturbed("second of the array", "--steps", 3, "--lr", "2e-3", "--clip", "0.5")
        self.assertEqual((metrics(folder / "2"), state_hash(folder / "2")), expected)
        self.assertNotEqual(metrics(folder / "1"), metrics(folder / "2"))

    def test_a_chain_goes_on_without_requeue(self):
        out = self.out("chain")
        result = self.slurm.run(
            "bash", str(self.scripts / "chain.sh"), "2", "--nodes=1", "--ntasks-per-node=2", "--ntasks=2", "--time=5",
            f"--output={self.log('chain')}", str(self.scripts / "train.sbatch"), "--data", str(self.corpus),
            "--out", str(out), *with_small("--steps", 100000, "--max-seconds", "2"))
        first, second = result.stdout.split()
        for job in (first, second):
            end, reported = self.wait_for_end(job, "chain")
            self.assertEqual(end["ExitCode"], f"{RESTART}:0", reported)
        self.assertIn("continuing after step", reported)


if __name__ == "__main__":
    reason = slurm_cluster.why_not()
    if is_mpich():
        reason = "the scripts start ranks with srun --mpi=pmix, and this build uses MPICH, which speaks PMI 2"
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main()
