"""Saves on the nodes' own disks: three hosts on one machine (network namespaces at a bridge, each with a disk and a
name of its own), of which one is lost with its disk at random moments. What is left continues bit-identically to the
run that was never disturbed."""
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from imitated_hosts import ImitatedHosts, run
from train_test import BIN, BAD_OPTIONS, CANNOT_WRITE, MPIEXEC, Case, environment, events, metrics, state_hash, with_small

HOSTS = ("tessera-1", "tessera-2", "tessera-3")
ADDRESSES = {host: f"10.78.0.{i + 1}" for i, host in enumerate(HOSTS)}
BRIDGE = "tsbridge"
# How often a host is lost; acceptance is 20.
KILLS = int(os.environ.get("TESSERA_LOST_HOSTS", "3"))
AGENT = """#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare --uts --mount sh -c "hostname $host; mount --bind $DISKS/$host $DISK; exec sh -c \\"\\$0\\"" "$*"
"""


def connect():
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "link", "set", BRIDGE, "up")
    for i, host in enumerate(HOSTS):
        run("ip", "link", "add", f"tsl{i}", "type", "veth", "peer", "name", f"tsn{i}")
        run("ip", "link", "set", f"tsl{i}", "master", BRIDGE, "up")
        IMITATED.plug_in(host, f"tsn{i}")


def disconnect():
    subprocess.run(["ip", "link", "del", BRIDGE], check=False, capture_output=True)


IMITATED = ImitatedHosts(ADDRESSES, connect, disconnect)


class OneHost(Case):
    def test_what_one_host_saved_locally_continues_on_another_number_of_ranks(self):
        local = self.folder / "local"
        options = ["--steps", 14, "--save-local", local, "--save-local-every", 1]
        whole, out = self.out("undisturbed"), self.out("one host")
        self.succeed(2, whole, "--steps", 14)
        result = self.succeed(2, out, *options, "--save-at-end", "false")
        self.assertIn("this run has one host, so that no other has a copy\n", result.stdout)
        saved = [event["step"] for event in events(out, "local save")]
        self.assertEqual(result.stdout.count("saved locally step "), 1)  # of the first, and metrics.jsonl of all
        self.assertGreater(len(saved), 1)
        self.assertEqual(list(out.glob("step-*")), [])
        (host,) = local.glob("tessera-*/*")
        self.assertEqual(len(list(host.iterdir())), 2)  # the newest two, and nothing half done
        result = self.succeed(3, out, *options)
        self.assertIn(f"continuing after step {saved[-1]} from ", result.stdout)
        self.assertIn(f"step {saved[-1]} is put together in ", result.stderr)
        self.assertEqual((metrics(out), state_hash(out)), (metrics(whole), state_hash(whole)))

    def test_damage_and_a_branch_that_was_left(self):
        local, out = self.folder / "local 2", self.out("damaged")
        options = ["--save-local", local, "--save-local-every", 1]
        self.succeed(2, out, "--steps", 9, *options, "--save-at-end", "false", "--save-every", 3, "--keep", 9)
        newest, before = [event["step"] for event in events(out, "local save")][:-3:-1]
        (host,) = local.glob("tessera-*/*")
        (shard,) = (host / f"step-{newest:08d}").glob("shard-00001*")
        with shard.open("r+b") as file:
            file.seek(shard.stat().st_size // 2)
            file.write(b"\xff\x00\xff\x00")
        # Of the newest step a byte is wrong: the one before is taken, or what --out has.
        in_out = [int(folder.name[5:]) for folder in out.glob("step-*")]
        result = self.succeed(1, out, "--steps", 9, *options, "--save-at-end", "false")
        self.assertIn(f"continuing after step {max(before, *in_out)} from ", result.stdout)
        if newest > max(in_out):
            self.assertIn("passing over a copy: ", result.stderr)
        # An explicit older step begins a branch, which no local save of the old one continues.
        first = sorted(out.glob("step-*"))[0]
        self.succeed(2, out, "--steps", 5, "--resume", first, *options, "--save-at-end", "false", "--lr", "2e-2")
        self.assertEqual(len(list(local.glob("tessera-*/*"))), 1)
        # And a run without local saves leaves those that there are.
        self.succeed(2, out, "--steps", 6, "--save-at-end", "false")
        self.assertFalse((out / "local-saves.json").exists())

    def test_what_makes_no_local_saves_is_refused_by_name(self):
        out = self.out("refused")
        common = ["--data", self.corpus, "--out", out, *with_small("--steps", 1)]
        file = self.folder / "a file"
        file.write_text("")
        link = self.folder / "link to out"
        link.symlink_to(out)
        out.mkdir()
        self.all_refused(1, BAD_OPTIONS, [
            (sentence, [*common, *map(str, more)]) for sentence, more in (
                ("--save-local-every needs --save-local", ["--save-local-every", 2]),
                (f"--save-local {file} needs --save-local-every", ["--save-local", file]),
                ("--save-local-every '0' is not a whole number from 1", ["--save-local", file, "--save-local-every", 0]),
                ("--save-local-every '-1' is not a whole number from 1", ["--save-local", file, "--save-local-every", -1]),
                ("are one folder, or one is inside the other", ["--save-local", out, "--save-local-every", 2]),
                ("are one folder, or one is inside the other", ["--save-local", link / "x", "--save-local-every", 2]),
                ("are one folder, or one is inside the other", ["--save-local", self.folder, "--save-local-every", 2]),
                ("is the name of a step", ["--save-local", self.folder / "step-00000001", "--save-local-every", 2]))])
        self.refused(1, CANNOT_WRITE, f"--save-local {file}: ", *common, "--save-local", file, "--save-local-every", 2)
        if os.geteuid() == 0:
            small = self.folder / "small"
            small.mkdir()
            run("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small)
            self.addCleanup(run, "umount", small)
            self.refused(1, BAD_OPTIONS, f"--save-local {small}: ", *common, "--save-local", small, "--save-local-every", 2)


class LostHosts(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Open MPI passes the launch agent's path through a shell: no spaces here.
        cls.plain = pathlib.Path(tempfile.mkdtemp(prefix="tessera-disks-"))
        cls.agent = cls.plain / "agent"
        cls.agent.write_text(AGENT)
        cls.agent.chmod(0o755)
        cls.disk = cls.plain / "disk"  # every host has its own under this name
        cls.disk.mkdir()
        cls.steps = 40
        cls.whole = cls.folder / "undisturbed"
        case = cls()
        case.succeed(1, cls.whole, "--steps", cls.steps, "--global-batch", 6)
        cls.expected = metrics(cls.whole), state_hash(cls.whole)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.plain)
        super().tearDownClass()

    def runTest(self):
        """Makes a case without a test for setUpClass."""

    def disk_of(self, host):
        return self.plain / host

    def setUp(self):
        for host in HOSTS:
            shutil.rmtree(self.disk_of(host), ignore_errors=True)
            self.disk_of(host).mkdir()

    def start(self, hosts, ranks, out, *arguments):
        file = self.plain / "hosts"
        file.write_text("".join(f"{host} slots=4\n" for host in hosts))
        network = "10.78.0.0/24"
        command = [MPIEXEC, "--hostfile", file, "-np", ranks, "--map-by", "node",
                   "--mca", "plm_rsh_agent", self.agent, "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
                   "--mca", "mpi_yield_when_idle", 1,  # it does not know that these hosts share cores
                   "--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network,
                   "--mca", "oob_tcp_keepalive_time", 3, "--mca", "oob_tcp_keepalive_intvl", 1,
                   "--mca", "oob_tcp_keepalive_probes", 2,
                   BIN / "train", "--data", self.corpus, "--out", out, "--save-local", self.disk / "saves",
                   "--save-local-every", 2, "--timeout-seconds", 20, *with_small("--steps", self.steps, "--global-batch", 6, *arguments)]
        process = subprocess.Popen(
            ["ip", "netns", "exec", hosts[0], "unshare", "--uts", "--mount", "sh", "-c",
             f"hostname {hosts[0]}; mount --bind {self.disk_of(hosts[0])} {self.disk}; exec \"$@\"",
             "sh", *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(DISKS=str(self.plain), DISK=str(self.disk)))
        self.addCleanup(process.kill)
        return process

    def finish(self, process, code=0):
        stdout, stderr = process.communicate(timeout=200)
        self.assertEqual(process.returncode, code, stdout + stderr)
        return stdout, stderr

    @staticmethod
    def steps_done(out):
        try:
            return len(metrics(out))
        except (OSError, ValueError):
            return 0

    def lose(self, process, host, keep_disk=False):
        """Ends a host at once, and what the others then do by themselves."""
        pids = subprocess.run(["ip", "netns", "pids", host], check=True, capture_output=True, text=True).stdout.split()
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.communicate(timeout=60)
        end = time.monotonic() + 40
        while time.monotonic() < end and any(
                subprocess.run(["ip", "netns", "pids", each], check=True, capture_output=True, text=True).stdout.split()
                for each in HOSTS):
            time.sleep(0.1)
        if not keep_disk:
            shutil.rmtree(self.disk_of(host))
            self.disk_of(host).mkdir()

    def announced(self, out):
        return max([event["step"] for name in ("local save", "save") for event in events(out, name)], default=0)

    def continued(self, stdout):
        return int(stdout.split("continuing after step ", 1)[1].split()[0]) if "continuing after" in stdout else 0

    def test_a_host_that_is_lost_at_any_moment_costs_nothing_that_was_announced(self):
        moments = random.Random(29)
        from_local = 0
        for number in range(KILLS):
            self.setUp()
            out = self.out(f"lost {number}")
            process = self.start(HOSTS, 3, out, "--save-every", 15)
            at = moments.randrange(3, self.steps - 4)
            while self.steps_done(out) < at and process.poll() is None:
                time.sleep(0.01)
            time.sleep(moments.random() * 0.2)
            lost = moments.choice(HOSTS)
            self.assertIsNone(process.poll(), "the run ended by itself")
            self.lose(process, lost)
            announced = self.announced(out)
            left = [host for host in HOSTS if host != lost]
            again = self.start(left, 2 + moments.randrange(3), out, "--save-every", 15)
            if moments.random() < 0.5:  # and once more, while the step is put together or soon after
                time.sleep(1 + 2 * moments.random())
                if again.poll() is None:
                    self.lose(again, left[1], keep_disk=True)
                    again = self.start(left, 2, out, "--save-every", 15)
            stdout, stderr = self.finish(again)
            step = self.continued(stdout)
            print(f"{number}: {lost} lost near step {at}, {announced} announced, continued after {step}", flush=True)
            self.assertGreaterEqual(step, announced)
            from_local += "put together" in stderr or step % 15 != 0
            self.assertEqual((metrics(out), state_hash(out)), self.expected)
        self.assertGreater(from_local, 0)

    def run_to(self, out, step):
        process = self.start(HOSTS, 3, out, "--save-every", 10)
        while self.steps_done(out) < step and process.poll() is None:
            time.sleep(0.01)
        return process

    def test_a_disk_alone_is_lost_or_a_host_and_its_partner(self):
        out = self.out("disk")
        self.lose(self.run_to(out, 17), HOSTS[1])  # whose shard is on the third
        announced = self.announced(out)
        kept = shutil.copytree(out, self.folder / "kept", symlinks=True)
        disks = {host: shutil.copytree(self.disk_of(host), self.plain / f"kept {host}") for host in HOSTS}
        stdout, _ = self.finish(self.start(HOSTS, 3, out))  # all three, one with an empty disk
        self.assertGreaterEqual(self.continued(stdout), announced)
        self.assertEqual((metrics(out), state_hash(out)), self.expected)
        # its partner's disk is gone too
        shutil.rmtree(out)
        shutil.copytree(kept, out)
        for host in HOSTS:
            shutil.rmtree(self.disk_of(host))
            self.disk_of(host).mkdir()
        shutil.copytree(disks[HOSTS[0]], self.disk_of(HOSTS[0]), dirs_exist_ok=True)
        in_out = max(int(folder.name[5:]) for folder in out.glob("step-*"))
        stdout, _ = self.finish(self.start(HOSTS[:1], 2, out))
        self.assertEqual(self.continued(stdout), in_out)
        self.assertEqual((metrics(out), state_hash(out)), self.expected)

    def test_a_local_disk_that_is_full_costs_local_saves_alone(self):
        full = self.disk_of(HOSTS[2])
        run("mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", full)
        self.addCleanup(run, "umount", full)
        out = self.out("full")
        process = self.start(HOSTS, 3, out)
        while not (out / "metrics.jsonl").exists() or not events(out, "local save"):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        filler = full / "filler"
        try:
            with filler.open("wb") as file:
                while True:
                    file.write(b"\0" * 65536)
        except OSError:
            pass
        while not events(out, "local save failed"):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        filler.unlink()
        failed = events(out, "local save failed")[-1]["step"]
        _, stderr = self.finish(process)
        self.assertIn(f"the local save of step {failed} failed: rank ", stderr)
        self.assertIn("no space left on the device", stderr)
        self.assertGreater(events(out, "local save")[-1]["step"], failed)
        self.assertEqual((metrics(out), state_hash(out)), self.expected)
        self.assertEqual([path.name for path in full.glob("saves/tessera-*/*/.*")], [])


if __name__ == "__main__":
    reason = IMITATED.why_not()
    if reason:
        print(f"hosts are left out: {reason}")
        del LostHosts
    try:
        unittest.main(exit=False, argv=sys.argv).result.wasSuccessful() or sys.exit(1)
    finally:
        if not reason:
            IMITATED.take_down()
