"""Two hosts on one machine: network namespaces with a cable between them, host names of their own, and
`ip netns exec` in ssh's place. Bit-identical to one host, checkpoints that change hosts, and hosts that
are lost."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

from imitated_hosts import AgentCase, ImitatedHosts, run, run_tests
from train_test import BIN, BAD_OPTIONS, MPIEXEC, environment, events, is_gone, metrics, state_hash, with_small

HOSTS = ("tessera-a", "tessera-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
# In a mount namespace of its own a host may also have a disk of its own.
AGENT = """#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare --uts --mount sh -c "hostname $host; $BEFORE exec sh -c \\"\\$0\\"" "$*"
"""


def connect():
    run("ip", "link", "add", "tsA", "type", "veth", "peer", "name", "tsB")
    for host, cable in zip(HOSTS, ("tsA", "tsB")):
        IMITATED.plug_in(host, cable)


IMITATED = ImitatedHosts(dict(zip(HOSTS, ADDRESSES)), connect)


class TwoHosts(AgentCase):
    AGENT = AGENT

    def start(self, ranks_per_host, out, *arguments, before="", mpirun=(), map_by="node"):
        hosts = self.plain / "hosts"
        hosts.write_text("".join(f"{host} slots={ranks_per_host}\n" for host in HOSTS))
        network = "10.77.0.0/24"
        command = [MPIEXEC, "--hostfile", hosts, "-np", 2 * ranks_per_host, "--map-by", map_by, *mpirun,
                   "--mca", "plm_rsh_agent", self.agent, "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
                   "--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network,
                   BIN / "train", "--data", self.corpus, "--out", out, *with_small(*arguments)]
        process = subprocess.Popen(
            ["ip", "netns", "exec", HOSTS[0], "unshare", "--uts", "sh", "-c", f"hostname {HOSTS[0]}; exec \"$@\"",
             "sh", *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(BEFORE=before))
        self.addCleanup(process.kill)
        return process

    def finish(self, *arguments, code=0, **options):
        process = self.start(*arguments, **options)
        stdout, stderr = process.communicate(timeout=120)
        self.assertEqual(process.returncode, code, stdout + stderr)
        return stdout, stderr

    def test_two_hosts_give_the_bits_of_one_and_checkpoints_change_hosts(self):
        two, one = self.out("two hosts"), self.out("one host")
        _, stderr = self.finish(2, two, "--steps", 4, "--verbose")
        for rank, host in enumerate(HOSTS * 2):
            self.assertIn(f"rank {rank}  host {host}", stderr)
        self.assertIn(f"network tsA {ADDRESSES[0]}", stderr)
        self.succeed(4, one, "--steps", 4)
        self.assertEqual((metrics(two), state_hash(two)), (metrics(one), state_hash(one)))
        self.succeed(4, two, "--steps", 6)  # written by 2 x 2 ranks, read by 1 x 4
        self.succeed(4, one, "--steps", 6)
        self.assertEqual((metrics(two), state_hash(two)), (metrics(one), state_hash(one)))

    def test_groups_are_added_on_each_host_where_their_ranks_follow_one_another(self):
        options = ["--steps", 3, "--reduce-group", 2, "--save-at-end", "false"]
        one = self.out("alone")
        self.succeed(1, one, *options)
        for map_by, reported in (("slot", "groups of 2 ranks add their gradients in their node"),
                             ("node", "gradients go to other nodes one by one")):
            out = self.out(f"by {map_by}")
            stdout, _ = self.finish(2, out, *options, map_by=map_by)
            self.assertIn(reported, stdout)
            self.assertEqual(metrics(out), metrics(one))

    def test_the_network_is_measured_and_a_slow_link_is_named(self):
        def rate_of(text):
            number, unit = re.search(r"into a host ([0-9.]+) (.)B/s", text).groups()
            return float(number) * {"k": 1e3, "M": 1e6, "G": 1e9}[unit]

        options = ["--steps", 1, "--save-at-end", "false", "--require-fast-network"]
        out = self.out("measured")
        stdout, stderr = self.finish(2, out, *options, map_by="slot")
        (line,) = [line for line in stdout.splitlines() if line.startswith("network: ")]
        self.assertRegex(line, r"^network: 2 hosts, MPI through sockets on tsA \(Ethernet, 10 Gb/s\) \(1 host\); sockets on "
                               r"tsB \(Ethernet, 10 Gb/s\) \(1 host\), with btl tcp, .*pml ob1; into a host [0-9.]+ .B/s in an all-gather, "
                               r"[0-9.]+ .B/s in an all-to-all$")
        (event,) = events(out, "network")
        self.assertEqual([(host["host"], host["ranks"], [used["port"] for used in host["used"]])
                          for host in event["hosts"]], [(HOSTS[0], 2, ["tsA"]), (HOSTS[1], 2, ["tsB"])])
        self.assertEqual([pair["hosts"] for pair in event["pairs"]], [list(HOSTS)])
        self.assertAlmostEqual(event["all_gather_bytes_per_second"] / rate_of(line), 1, delta=0.01)
        if shutil.which("tc") is None:
            self.skipTest("no program tc here (package iproute2): no link can be slowed")
        rate = 20e6
        run("ip", "netns", "exec", HOSTS[0], "tc", "qdisc", "add", "dev", "tsA", "root", "tbf", "rate", f"{rate:.0f}bps",
            "burst", "64kb", "latency", "500ms")
        try:
            out = self.out("slow")
            _, stderr = self.finish(2, out, *options, map_by="slot")
        finally:
            run("ip", "netns", "exec", HOSTS[0], "tc", "qdisc", "del", "dev", "tsA", "root")
        self.assertRegex(stderr, rf"warning: between {HOSTS[0]} and {HOSTS[1]} only [0-9.]+ .B/s arrive, less than a third "
                                 r"of the 1.25 GB/s that their link has: ")
        (event,) = events(out, "network")
        for measured in (event["all_gather_bytes_per_second"], event["all_to_all_bytes_per_second"],
                         event["pairs"][0]["bytes_per_second"]):
            self.assertLess(measured, 2 * rate)  # into the slower of two hosts, or the mean of both
            self.assertGreater(measured, rate / 12)  # an all-gather waits for messages one after the other
        alone = self.succeed(2, self.out("one host"), *options)
        self.assertNotIn("network: ", alone.stdout)

    def test_a_fabric_beside_the_sockets_is_named_and_a_run_without_it_refused_where_that_is_asked(self):
        fake = self.plain / "class"  # of /sys, on the second host: its own interfaces, and a port that it does not have
        port = fake / "infiniband" / "mlx5_0" / "ports" / "1"
        port.mkdir(parents=True)
        (fake / "net").mkdir()
        for name, text in (("state", "4: ACTIVE"), ("rate", "200 Gb/sec (4X HDR)"), ("link_layer", "InfiniBand")):
            (port / name).write_text(f"{text}\n")
        before = f"mount --bind /sys/class/net {fake}/net && mount --rbind {fake} /sys/class &&"
        sentence = (f"ranks on {HOSTS[1]} talk through sockets on tsB (Ethernet, 10 Gb/s), and it has mlx5_0/1 (InfiniBand, 200 Gb/s): "
                    "use an MPI with UCX (mpirun --mca pml ucx -x UCX_NET_DEVICES=mlx5_0:1)")
        _, stderr = self.finish(1, self.out("fabric"), "--steps", 1, before=before)
        self.assertIn(f"warning: {sentence}", stderr)
        _, stderr = self.finish(1, self.out("slow fabric"), "--steps", 1, "--require-fast-network", code=BAD_OPTIONS, before=before)
        self.assertIn(f"--require-fast-network: {sentence}", stderr)

    def test_an_output_folder_that_is_another_one_on_a_host_is_refused(self):
        disk = self.plain / "disk"
        disk.mkdir()
        _, stderr = self.finish(1, disk / "run", "--steps", 1, code=BAD_OPTIONS,
                                before=f"mount -t tmpfs tmpfs {disk} && mkdir {disk}/run;")
        self.assertIn(f"on host {HOSTS[1]} is not the folder that rank 0 has", stderr)

    def under_way(self, name, timeout=4, mpirun=()):
        out = self.out(name)
        process = self.start(1, out, "--steps", 100000, "--save-every", 5, "--timeout-seconds", timeout, mpirun=mpirun)
        end = time.monotonic() + 60
        while not ((out / "metrics.jsonl").exists() and len(metrics(out)) > 8):
            self.assertIsNone(process.poll(), "the run ended by itself")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        return out, process

    def lost(self, out, process, codes, *words):
        begin = time.monotonic()
        _, stderr = process.communicate(timeout=60)
        took = time.monotonic() - begin
        print(f"{self.id().rsplit('.', 1)[1]}: code {process.returncode} after {took:.1f} s", flush=True)
        self.assertIn(process.returncode, codes, stderr)
        for word in words:
            self.assertIn(word, stderr)
        steps = sorted(out.glob("step-*"))
        subprocess.run([BIN / "inspect", steps[-1], "--verify"], check=True, capture_output=True)
        end = time.monotonic() + 20
        while self.processes("train", out) and time.monotonic() < end:
            time.sleep(0.1)
        self.assertEqual(self.processes("train", out), [])

    @staticmethod
    def processes(name, argument):
        """Process ids by program and part of the command line."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(name.encode()) and any(str(argument).encode() in word for word in words):
                if not is_gone(int(folder.name)):
                    found.append(int(folder.name))
        return found

    def test_a_cable_that_is_cut_ends_both_hosts(self):
        # As in train-mpirun.sbatch, but sooner: without it mpirun waits for the other daemon for 15 minutes.
        alive = [word for name, value in (("time", 3), ("intvl", 1), ("probes", 2))
                 for word in ("--mca", f"oob_tcp_keepalive_{name}", value)]
        out, process = self.under_way("cut", 30, alive)
        run("ip", "-n", HOSTS[1], "link", "set", "tsB", "down")
        try:
            self.lost(out, process, (205, 6), HOSTS[1])
        finally:
            run("ip", "-n", HOSTS[1], "link", "set", "tsB", "up")

    @unittest.skipUnless("TESSERA_LONG_TESTS" in os.environ, "set TESSERA_LONG_TESTS")
    def test_a_daemon_that_is_killed_ends_the_run(self):
        out, process = self.under_way("daemon")
        daemons = self.processes("orted", "")
        self.assertEqual(len(daemons), 1)
        os.kill(daemons[0], signal.SIGKILL)
        self.lost(out, process, (205, 6))

    @unittest.skipUnless("TESSERA_LONG_TESTS" in os.environ, "set TESSERA_LONG_TESTS")
    def test_a_rank_that_is_killed_on_the_other_host_ends_the_run(self):
        out, process = self.under_way("killed")
        there = [pid for pid in self.processes("train", out) if self.host_of(pid) == HOSTS[1]]
        self.assertEqual(len(there), 1)
        os.kill(there[0], signal.SIGKILL)
        self.lost(out, process, (137,), "signal 9", HOSTS[1])

    @staticmethod
    def host_of(pid):
        return subprocess.run(["nsenter", "--uts", "--target", str(pid), "hostname"], check=True, capture_output=True,
                              text=True).stdout.strip()


if __name__ == "__main__":
    run_tests(IMITATED)
