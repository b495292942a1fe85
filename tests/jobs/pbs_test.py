"""The PBS script under imitations of qsub and qstat: jobs run one by one, as PBS runs them (a copy of the script, a
bare environment, another folder). A run whose time is up is submitted again as it was, and ends as if undisturbed."""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

from train_test import BAD_OPTIONS, BIN, Case, RESTART, is_mpich, metrics, state_hash, train

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "jobs" / "pbs" / "train.pbs"
# qsub [options] SCRIPT: a folder of the queue with a copy of the script, its options a line each, and where it was started.
QSUB = """#!/usr/bin/env bash
number=$(ls "$PBS_IMITATION" | grep -c job)
job=$PBS_IMITATION/job$number
mkdir "$job" || exit 1
cp -- "${@: -1}" "$job/script"
printf '%s\\n' "${@:1:$#-1}" > "$job/options"
pwd > "$job/folder"
echo "$number.imitation"
"""
QSTAT = """#!/usr/bin/env bash
[ "$1" = -f ] && cat "$PBS_IMITATION/job${2%%.*}/attributes"
"""


class Pbs(Case):
    def setUp(self):
        self.queue = self.folder / "queue"
        shutil.rmtree(self.queue, ignore_errors=True)
        self.programs = self.folder / "pbs programs"
        for folder in (self.queue, self.programs):
            folder.mkdir(exist_ok=True)
        for name, text in (("qsub", QSUB), ("qstat", QSTAT)):
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)
        self.config = self.folder / "run.ini"
        self.environment = dict(os.environ, PBS_IMITATION=str(self.queue),
                                PATH=f"{self.programs}:{os.environ['PATH']}")

    def options_file(self, steps, out):
        self.config.write_text(f'data = "{self.corpus}"\nout = "{out}"\nseq = 32\nmicro-batch = 2\nglobal-batch = 16\n'
                               f"lr = 1e-2\nschedule-steps = 5000\nsteps = {steps}\n")

    def jobs(self):
        return sorted(path.name for path in self.queue.iterdir())

    def submit(self, *options, script=SCRIPT):
        subprocess.run(["qsub", *options, "-v", f"CONFIG={self.config},TRAIN={BIN / 'train'}", script], check=True,
                       env=self.environment, cwd=self.folder, stdout=subprocess.DEVNULL)
        return self.jobs()[-1]

    def start(self, name, variables=()):
        """The job as a process: two places on this host."""
        job = self.queue / name
        words = (job / "options").read_text().splitlines()
        given = {flag: [words[i + 1] for i, word in enumerate(words) if word == flag] for flag in ("-l", "-v", "-A", "-q")}
        resources = dict(resource.split("=", 1) for resource in given["-l"])
        lines = [f"    Resource_List.{key} = {value}" for key, value in resources.items()]
        lines += [f"    Account_Name = {account}" for account in given["-A"]]
        # qstat cuts long lines
        cut = [f"{line[:70]}\n\t{line[70:]}" if len(line) > 70 else line for line in lines]
        (job / "attributes").write_text("Job Id: 0.imitation\n    Job_Name = tessera\n" + "\n".join(cut) + "\n")
        (job / "nodes").write_text(f"{socket.gethostname()}\n" * 2)
        environment = {"PATH": self.environment["PATH"], "HOME": os.environ.get("HOME", "/"), "PBS_IMITATION": str(self.queue),
                       "PBS_O_WORKDIR": (job / "folder").read_text().strip(), "PBS_NODEFILE": str(job / "nodes"),
                       "PBS_JOBID": f"{name.removeprefix('job')}.imitation", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                       **{"PBS_O_QUEUE": queue for queue in given["-q"]}, **dict(variables),
                       **dict(pair.split("=", 1) for pair in given["-v"][0].split(","))}
        process = subprocess.Popen(["bash", job / "script"], env=environment, cwd=self.queue, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.kill)
        return process

    def run_through(self, name, **more):
        process = self.start(name, **more)
        reported, _ = process.communicate(timeout=120)
        return process.returncode, reported

    def test_a_job_whose_time_is_up_is_submitted_again_as_it_was_and_finishes(self):
        out = self.out("pbs run")
        self.options_file(100000, out)
        select = "select=1:ncpus=2:mpiprocs=2:model=a_name_so_long_that_qstat_cuts_the_line_that_tells_it"
        asked = ["-l", select, "-l", "walltime=00:02:06", "-A", "project", "-q", "short"]
        script = self.folder / "jobs" / "pbs" / "train.pbs"
        script.parent.mkdir(parents=True)
        shutil.copy(SCRIPT, script)
        status, reported = self.run_through(self.submit(*asked, script=script))
        self.assertEqual(status, RESTART, reported)
        self.assertIn("train.pbs: saved; submitting the job again", reported)
        self.assertEqual(self.jobs(), ["job0", "job1"])
        again = (self.queue / "job1" / "options").read_text().splitlines()
        self.assertEqual(again[:8], asked)
        reached = metrics(out)[-1][0]
        self.options_file(reached + 3, out)
        # which would end again before long
        status, reported = self.run_through("job1", variables={"WALLTIME": "3600"})
        self.assertEqual(status, 0, reported)
        self.assertIn(f"continuing after step {reached}", reported)
        self.assertEqual(self.jobs(), ["job0", "job1"])
        twin = self.out("twin")
        self.options_file(reached + 3, twin)
        self.assertEqual(train(2, "--config", self.config).returncode, 0)
        self.assertEqual((metrics(out), state_hash(out)), (metrics(twin), state_hash(twin)))

    def test_a_job_that_is_deleted_saves_and_ends(self):
        out = self.out("deleted")
        self.options_file(100000, out)
        process = self.start(self.submit("-l", "walltime=1:00:00"))
        end = time.monotonic() + 60
        while not ((out / "metrics.jsonl").exists() and len(metrics(out)) > 2) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        reported, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, RESTART, reported)
        self.assertEqual([path.name for path in out.glob("step-*")], [f"step-{metrics(out)[-1][0]:08}"])
        self.assertEqual(self.jobs(), ["job0"])

    def test_what_cannot_run_is_refused(self):
        self.options_file(1, self.out("refused"))
        for asked, variables, sentence in (
                (("-l", "walltime=00:02:00"), {}, "a walltime of 120 s leaves no time to train"),
                ((), {}, "qstat does not tell the walltime of job 1.imitation; give it: qsub -v WALLTIME=SECONDS"),
                ((), {"WALLTIME": "7"}, "a walltime of 7 s leaves no time to train")):
            with self.subTest(sentence=sentence):
                status, reported = self.run_through(self.submit(*asked), variables=variables)
                self.assertEqual(status, BAD_OPTIONS, reported)
                self.assertIn(sentence, reported)


if __name__ == "__main__":
    if is_mpich():
        print("skipped: the script starts ranks by Open MPI's mpirun")
        sys.exit(77)
    unittest.main()
