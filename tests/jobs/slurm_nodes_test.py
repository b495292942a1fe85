"""The batch scripts under a Slurm of three nodes (network namespaces) of which one is lost: the run starts again on what is
left of its job or on the spare node, and ends with the losses of a run that nobody disturbed."""
import os
import pathlib
import signal
import time

import slurm_cluster
from imitated_hosts import bridged_hosts, pids_of, run_tests
from train_test import BIN, Case, events, metrics, state_hash, with_small

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "jobs" / "slurm"
HOSTS = ("tessera-n1", "tessera-n2", "tessera-n3")
CONTROLLER = "10.79.0.254"
IMITATED = bridged_hosts(HOSTS, "10.79.0", "s", CONTROLLER)


class LostNodes(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.slurm = slurm_cluster.SlurmCluster(IMITATED, CONTROLLER)
        cls.addClassCleanup(cls.slurm.stop)
        network = {f"OMPI_MCA_{part}_tcp_if_include": "10.79.0.0/24" for part in ("btl", "oob")}
        cls.slurm.environment.update(network, TRAIN=str(BIN / "train"), OMPI_MCA_mpi_yield_when_idle="1")
        cls.steps = 60
        cls.options = ["--data", cls.corpus, "--timeout-seconds", 6,
                       *with_small("--steps", cls.steps, "--global-batch", 6, "--save-every", 10)]
        case = cls()
        whole = cls.folder / "undisturbed"
        case.succeed(1, whole, "--steps", cls.steps, "--global-batch", 6)
        cls.expected = metrics(whole), state_hash(whole)

    def runTest(self):
        """Makes a case without a test for setUpClass."""

    def setUp(self):
        self.slurm.wait_until_idle()

    def lose(self, host):
        """Ends a node at once; it comes back, empty, at the test's end."""
        for pid in pids_of(host):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

        def bring_back():
            self.slurm.cancel_all()
            self.slurm.start_node(host)
        self.addCleanup(bring_back)

    def lost_while_training(self, script, out, nodes, **variables):
        """Loses the second node of a job; returns how the job ended, and its log."""
        log = self.slurm.folder / f"{out.name.replace(' ', '-')}.out"
        exported = ",".join(["ALL", *(f"{name}={value}" for name, value in variables.items())])
        job = self.slurm.run("sbatch", "--parsable", f"--nodes={nodes}", "--ntasks-per-node=1", "--time=5", f"--export={exported}",
                             f"--output={log}", str(SCRIPTS / script), *map(str, self.options), "--out", str(out)).stdout.strip()
        reported = lambda: log.read_text() if log.exists() else ""
        self.slurm.wait(lambda: (out / "metrics.jsonl").exists() and len(metrics(out)) > 12, 60, f"no steps: {reported()}")
        begin = time.monotonic()
        self.lose(HOSTS[1])
        self.slurm.wait(lambda: self.slurm.job(job)["JobState"] not in ("RUNNING", "COMPLETING"), 150, f"no end: {reported()}")
        print(f"{self.id().rsplit('.', 1)[1]}: {time.monotonic() - begin:.0f} s from the loss to the end", flush=True)
        return self.slurm.job(job), reported()

    def ends_as_if_nothing_had_happened(self, script, out, job, reported, *left):
        self.assertEqual((job["JobState"], job["ExitCode"], job["Restarts"]), ("COMPLETED", "0:0", "0"), reported)
        self.assertRegex(reported, rf"\n{script}: exit code [0-9]+, lost {HOSTS[1]}; starting again on {' '.join(left)} "
                                   r"\(1 of at most 5\)\n")
        self.assertIn(f"warning: this start is without what did not answer: {HOSTS[1]}\n", reported)
        self.assertEqual([event["hosts"] for event in events(out, "lost hosts")], [HOSTS[1]])
        self.assertIn(", written by ", events(out, "resume")[0]["text"])
        self.assertEqual((metrics(out), state_hash(out)), self.expected)

    def test_srun_starts_again_on_the_nodes_that_are_left(self):
        out = self.out("left")
        job, reported = self.lost_while_training("train.sbatch", out, 3)
        self.ends_as_if_nothing_had_happened("train.sbatch", out, job, reported, HOSTS[0], HOSTS[2])

    def test_mpirun_takes_the_spare_node(self):
        out = self.out("spare")
        job, reported = self.lost_while_training("train-mpirun.sbatch", out, 3, TESSERA_NODES=2)
        self.ends_as_if_nothing_had_happened("train-mpirun.sbatch", out, job, reported, HOSTS[0], HOSTS[2])

    def test_a_job_with_too_few_nodes_left_goes_back_into_the_queue(self):
        job, reported = self.lost_while_training("train.sbatch", self.out("few"), 2, TESSERA_MIN_NODES=2)
        self.assertEqual((job["JobState"], job["Restarts"]), ("PENDING", "1"), reported)
        self.assertRegex(reported, rf"train.sbatch: exit code [0-9]+, lost {HOSTS[1]}; 1 nodes answer, .*\n"
                                   "train.sbatch: not all nodes are left; back into the queue\n")


if __name__ == "__main__":
    run_tests(IMITATED, slurm_cluster.why_not)
