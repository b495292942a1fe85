"""Saves on the nodes' own disks: three hosts on one machine (network namespaces at a bridge, each with a disk and a
name of its own), of which one is lost with its disk at random moments. What is left continues bit-identically to the
run that was never disturbed."""
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import unittest

from failures_test import FailureCase
from imitated_hosts import HostsCase, bridged_hosts, pids_of, run
from train_test import BIN, BAD_OPTIONS, CANNOT_WRITE, Case, events, metrics, state_hash, train, with_small

HOSTS = ("tessera-1", "tessera-2", "tessera-3")
# How often a host is lost; lost_hosts_long.sh: 20.
KILLS = int(os.environ.get("TESSERA_KILLS", "4"))
IMITATED = bridged_hosts(HOSTS, "10.78.0", "d")


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

    def test_saves_to_out_come_from_local_ones_and_are_the_same_byte_for_byte(self):
        local, whole, out = self.folder / "local 3", self.out("not promoted"), self.out("promoted")
        common = ["--steps", 10, "--save-every", 4, "--keep", 9]
        self.succeed(2, whole, *common)
        result = self.succeed(2, out, *common, "--save-local", local, "--save-local-every", 3)
        self.assertIn(f", and every 4 steps one that is copied to {out} from there; ", result.stdout)
        self.assertEqual([(event["step"], event.get("promoted", False)) for event in events(out, "save")],
                         [(4, True), (8, True), (10, False)])  # the last one waits for no detour
        self.assertIn("step-00000004, from the local save\n", result.stdout)
        for step in (4, 8, 10):
            self.assertEqual(state_hash(out / f"step-{step:08d}"), state_hash(whole / f"step-{step:08d}"))
            subprocess.run([BIN / "inspect", out / f"step-{step:08d}", "--verify"], check=True, capture_output=True)
        (host,) = local.glob("tessera-*/*")
        for file in (out / "step-00000008").iterdir():
            self.assertEqual(file.read_bytes(), (host / "step-00000008" / file.name).read_bytes(), file.name)

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
        self.refused(1, BAD_OPTIONS, f"--save-local {file} is there and is not a folder: give another one", *common, "--save-local", file, "--save-local-every", 2)
        if os.geteuid() == 0:
            small = self.folder / "small"
            small.mkdir()
            run("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small)
            self.addCleanup(run, "umount", small)
            self.refused(1, BAD_OPTIONS, f"--save-local {small}: ", *common, "--save-local", small, "--save-local-every", 2)


class FailingDisks(FailureCase):
    def test_a_local_copy_that_cannot_be_read_is_replaced_by_a_save_without_it(self):
        local, out = self.folder / "unreadable", self.out("unreadable local")
        result = self.succeed(2, out, "--steps", 30, "--save-every", 6, "--save-at-end", "false", "--save-local", local,
                              "--save-local-every", 6, LD_PRELOAD=self.bad_disk, BAD_DISK_READ="/unreadable/tessera-",
                              BAD_DISK_READ_TIMES="1", BAD_DISK_READ_RANK="1")
        self.assertRegex(result.stderr, r"warning: the local save of step 6 failed: rank 1: .*/unreadable/tessera-.*; --out gets a "
                                        "later step instead, without a local save\n")
        saves = [(event["step"], event.get("promoted", False)) for event in events(out, "save")]
        self.assertFalse(saves[0][1])
        self.assertGreater(saves[0][0], 6)
        self.assertTrue(any(promoted for _, promoted in saves), saves)  # all is well again

    def test_a_full_out_costs_saves_there_alone_or_ends_the_run_as_asked(self):
        full = {"LD_PRELOAD": self.bad_disk, "BAD_DISK_FULL_RANK": "1", "BAD_DISK_FULL_PART": "/full out/"}
        common = ["--steps", 11, "--save-every", 4, "--save-at-end", "false", "--save-local", self.folder / "local",
                  "--save-local-every", 4]
        out = self.out("full out")
        result = train(2, "--data", self.corpus, "--out", out, *with_small(*common), **full)
        self.assertEqual(result.returncode, CANNOT_WRITE, result.stderr)  # as without local saves: the last one failed
        self.assertEqual(len(metrics(out)), 11)
        self.assertIn("warning: the save of step 4 failed: rank 1: ", result.stderr)
        self.assertEqual([event["step"] for event in events(out, "save failed")], [4, 8])
        self.assertEqual([event["step"] for event in events(out, "local save")], [4, 8])
        self.assertEqual(list(out.glob("*step-*")), [])
        shutil.rmtree(out)
        self.refused(2, CANNOT_WRITE, "the save of step 4 failed: rank 1: ", "--data", self.corpus, "--out", out,
                     *with_small(*common, "--on-save-failure", "stop"), **full)


class LostHosts(HostsCase):
    NETWORK = "10.78.0"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.steps = 40
        cls.whole = cls.folder / "undisturbed"
        case = cls()
        case.succeed(1, cls.whole, "--steps", cls.steps, "--global-batch", 6)
        cls.expected = metrics(cls.whole), state_hash(cls.whole)

    def runTest(self):
        """Makes a case without a test for setUpClass."""

    def setUp(self):
        for host in HOSTS:
            shutil.rmtree(self.disk_of(host), ignore_errors=True)
            self.disk_of(host).mkdir()

    def begin(self, hosts, ranks, out, *arguments):
        return self.start(hosts, ranks, out, "--save-local", self.disk / "saves", "--save-local-every", 2, "--steps", self.steps,
                          "--global-batch", 6, *arguments)

    @staticmethod
    def steps_done(out):
        try:
            return len(metrics(out))
        except (OSError, ValueError):
            return 0

    def lose(self, process, host, keep_disk=False):
        """Ends a host at once, and what the others then do by themselves."""
        for pid in pids_of(host):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.communicate(timeout=60)
        end = time.monotonic() + 40
        while time.monotonic() < end and any(pids_of(each) for each in HOSTS):
            time.sleep(0.1)
        if not keep_disk:
            shutil.rmtree(self.disk_of(host))
            self.disk_of(host).mkdir()

    def announced(self, out):
        return max([event["step"] for name in ("local save", "save") for event in events(out, name)], default=0)

    def continued(self, stdout):
        return int(stdout.split("continuing after step ", 1)[1].split()[0]) if "continuing after" in stdout else 0

    MOMENTS = ("promotion", "partner copy", "local save", "step")

    def is_under_way(self, what, out):
        if what == "promotion":
            return any(out.glob(".tmp-step-*"))
        for number, host in enumerate(HOSTS):  # rank i is on host i, and its copy on the next
            for folder in self.disk_of(host).glob("saves/tessera-*/*/.tmp-step-*"):
                if what == "local save" or any(folder.glob(f"shard-{(number - 1) % len(HOSTS):05d}-*")):
                    return True
        return False

    def left_halves(self, out):
        """What the loss of a host has cut."""
        return [what for what in self.MOMENTS[:-1] if self.is_under_way(what, out)]

    def lose_while(self, moment, moments, out, lost):
        """Starts a run and ends `lost` at a random time of this kind of moment; returns the step that was done before it.
        A run that passed all its moments between two looks is started once more."""
        for _ in range(3):
            self.setUp()
            shutil.rmtree(out, ignore_errors=True)
            process = self.begin(HOSTS, 3, out, "--save-every", 5)
            at = self.wait_for(moment, moments, process, out)
            if process.poll() is None:
                self.lose(process, lost)
                return at
            process.communicate()
        self.fail(f"three runs ended before a {moment} was seen")

    def wait_for(self, moment, moments, process, out):
        at = moments.randrange(3, self.steps - 12)
        while self.steps_done(out) < at and process.poll() is None:
            time.sleep(0.01)
        if moment == "step":
            time.sleep(moments.random() * 0.2)
        else:
            while not self.is_under_way(moment, out) and process.poll() is None:
                pass
            time.sleep(moments.random() * 0.02)
        return at

    def test_a_host_that_is_lost_at_any_moment_costs_nothing_that_was_announced(self):
        moments = random.Random(29)
        cut = set()
        for number in range(KILLS):
            out = self.out(f"lost {number}")
            moment, lost = self.MOMENTS[number % len(self.MOMENTS)], moments.choice(HOSTS)
            at = self.lose_while(moment, moments, out, lost)
            halves = self.left_halves(out)
            cut.update(halves)
            announced, in_out = self.announced(out), self.newest_in(out)
            left = [host for host in HOSTS if host != lost]
            again = self.begin(left, 2 + moments.randrange(3), out, "--save-every", 5)
            twice = moments.random() < 0.5
            if twice:  # and once more, while the step is put together or soon after
                time.sleep(1 + 2 * moments.random())
                if again.poll() is None:
                    self.lose(again, left[1], keep_disk=True)
                    again = self.begin(left, 2, out, "--save-every", 5)
            stdout, stderr = self.finish(again)
            step = self.continued(stdout)
            print(f"{number}: {lost} lost near step {at} ({moment}; cut: {', '.join(halves) or 'nothing'}), {announced} announced, "
                  f"continued after {step}", flush=True)
            self.assertGreaterEqual(step, announced)
            if announced > in_out and not twice:
                self.assertIn(f"step {step} is put together in ", stderr)
            self.assertEqual((metrics(out), state_hash(out)), self.expected)
            self.assertEqual(list(out.glob(".tmp-*")), [])
        if KILLS >= 20:  # where fewer are lost, chance alone says what is cut
            self.assertEqual(cut, set(self.MOMENTS[:-1]))

    @staticmethod
    def newest_in(out):
        return max((int(folder.name[5:]) for folder in out.glob("step-*")), default=0)

    def run_to(self, out, step):
        """Starts a run; returns it once `step` is done, and a local save is newer than the step that --out has."""
        every = 10
        process = self.begin(HOSTS, 3, out, "--save-every", every)
        while process.poll() is None:
            announced = self.announced(out) if self.steps_done(out) >= step else 0
            if announced % every and announced > self.newest_in(out) > 0:
                break
            time.sleep(0.01)
        self.assertIsNone(process.poll(), "the run ended by itself")
        return process

    def test_a_disk_alone_is_lost_or_a_host_and_its_partner(self):
        out = self.out("disk")
        self.lose(self.run_to(out, 17), HOSTS[1])  # whose shard is on the third
        announced = self.announced(out)
        self.assertGreater(announced, self.newest_in(out))
        kept = shutil.copytree(out, self.folder / "kept", symlinks=True)
        disks = {host: shutil.copytree(self.disk_of(host), self.plain / f"kept {host}") for host in HOSTS}
        stdout, stderr = self.finish(self.begin(HOSTS, 3, out))  # all three, one with an empty disk
        self.assertGreaterEqual(self.continued(stdout), announced)
        self.assertIn(f"step {self.continued(stdout)} is put together in ", stderr)
        self.assertEqual((metrics(out), state_hash(out)), self.expected)
        # its partner's disk is gone too
        shutil.rmtree(out)
        shutil.copytree(kept, out)
        for host in HOSTS:
            shutil.rmtree(self.disk_of(host))
            self.disk_of(host).mkdir()
        shutil.copytree(disks[HOSTS[0]], self.disk_of(HOSTS[0]), dirs_exist_ok=True)
        in_out = self.newest_in(out)
        stdout, _ = self.finish(self.begin(HOSTS[:1], 2, out))
        self.assertEqual(self.continued(stdout), in_out)
        self.assertEqual((metrics(out), state_hash(out)), self.expected)

    def test_a_local_disk_that_is_full_costs_local_saves_alone(self):
        full = self.disk_of(HOSTS[2])
        run("mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", full)
        self.addCleanup(run, "umount", full)
        out = self.out("full")
        process = self.begin(HOSTS, 3, out, "--save-every", 8)
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
        # What was to become a step of --out is saved there directly.
        while not events(out, "local save failed") or all(event.get("promoted") for event in events(out, "save")):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        filler.unlink()
        failed = events(out, "local save failed")[0]["step"]
        _, stderr = self.finish(process)
        self.assertIn(f"the local save of step {failed} failed: rank ", stderr)
        self.assertIn("no space left on the device", stderr)
        self.assertIn("; --out gets a later step instead, without a local save", stderr)
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
