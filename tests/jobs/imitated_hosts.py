"""Hosts on one machine for tests: network namespaces with names of their own. How they are connected is the test's."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from train_test import BIN, MPIEXEC, Case, environment, is_mpich, with_small


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


class ImitatedHosts:
    """`addresses`: of each host, by its name. connect() makes the links between the namespaces, which are there;
    disconnect() removes what they leave outside of them."""

    def __init__(self, addresses, connect, disconnect=lambda: None):
        self.addresses = addresses
        self.connect = connect
        self.disconnect = disconnect

    def set_up(self):
        for host in self.addresses:
            run("ip", "netns", "add", host)
            run("ip", "-n", host, "link", "set", "lo", "up")
            folder = pathlib.Path("/etc/netns") / host
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{a} {h}\n" for h, a in self.addresses.items()))
        self.connect()

    def plug_in(self, host, cable):
        """Gives a host this end of a cable, with its address."""
        run("ip", "link", "set", cable, "netns", host)
        run("ip", "-n", host, "addr", "add", f"{self.addresses[host]}/24", "dev", cable)
        run("ip", "-n", host, "link", "set", cable, "up")

    def take_down(self):
        for host in self.addresses:
            subprocess.run(["ip", "netns", "del", host], check=False, capture_output=True)
            shutil.rmtree(f"/etc/netns/{host}", ignore_errors=True)
        self.disconnect()

    def why_not(self):
        """Why there cannot be hosts here, or None. They are there afterwards, if there can."""
        if is_mpich():
            return "hosts are named to Open MPI's mpirun here, and this build uses MPICH"
        if os.geteuid() != 0:
            return "network namespaces need root"
        if shutil.which("ip") is None:
            return "no program ip here (package iproute2)"
        self.take_down()  # of a test that was killed
        try:
            self.set_up()
        except (subprocess.CalledProcessError, OSError) as error:
            self.take_down()
            return f"this machine gives no network namespaces: {getattr(error, 'stderr', error)}".strip()
        return None


def bridged_hosts(names, network, letter, address=None):
    """Hosts at one bridge: NETWORK.1, NETWORK.2 and so on, their cables tsXn0, tsXn1. `address`: the machine's own there."""
    bridge = f"ts{letter}b"

    def connect():
        run("ip", "link", "add", bridge, "type", "bridge")
        if address:
            run("ip", "addr", "add", f"{address}/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        for i, name in enumerate(names):
            run("ip", "link", "add", f"ts{letter}l{i}", "type", "veth", "peer", "name", f"ts{letter}n{i}")
            run("ip", "link", "set", f"ts{letter}l{i}", "master", bridge, "up")
            hosts.plug_in(name, f"ts{letter}n{i}")

    def disconnect():
        subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)

    hosts = ImitatedHosts({name: f"{network}.{i + 1}" for i, name in enumerate(names)}, connect, disconnect)
    return hosts


def run_tests(imitated, why_not=lambda: None):
    """The tests of the main module over these hosts; skipped where they, or what `why_not` asks for, cannot be had."""
    reason = why_not() or imitated.why_not()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    try:
        unittest.main(exit=False, argv=sys.argv).result.wasSuccessful() or sys.exit(1)
    finally:
        imitated.take_down()


def pids_of(host):
    return [int(pid) for pid in subprocess.run(["ip", "netns", "pids", host], check=True, capture_output=True,
                                               text=True).stdout.split()]


AGENT = """#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare --uts --mount sh -c "hostname $host; mount --bind $DISKS/$host $DISK; exec sh -c \\"\\$0\\"" "$*"
"""


class AgentCase(Case):
    """With a folder `plain` and in it the script `agent`, of AGENT, which mpirun starts its daemons by."""
    AGENT = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Open MPI passes the launch agent's path through a shell: no spaces here.
        cls.plain = pathlib.Path(tempfile.mkdtemp(prefix="tessera-hosts-"))
        cls.agent = cls.plain / "agent"
        cls.agent.write_text(cls.AGENT)
        cls.agent.chmod(0o755)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.plain)
        super().tearDownClass()


class HostsCase(AgentCase):
    """Runs over hosts of NETWORK.0/24, each of which has a disk of its own under one name."""
    AGENT = AGENT
    NETWORK = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.disk = cls.plain / "disk"
        cls.disk.mkdir()

    def disk_of(self, host):
        return self.plain / host

    def start(self, hosts, ranks, out, *arguments, **more):
        file = self.plain / "hosts"
        file.write_text("".join(f"{host} slots=4\n" for host in hosts))
        network = f"{self.NETWORK}.0/24"
        command = [MPIEXEC, "--hostfile", file, "-np", ranks, "--map-by", "node",
                   "--mca", "plm_rsh_agent", self.agent, "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
                   "--mca", "mpi_yield_when_idle", 1,  # it does not know that these hosts share cores
                   "--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network,
                   "--mca", "oob_tcp_keepalive_time", 3, "--mca", "oob_tcp_keepalive_intvl", 1,
                   "--mca", "oob_tcp_keepalive_probes", 2,
                   BIN / "train", "--data", self.corpus, "--out", out, "--timeout-seconds", 20, *with_small(*arguments)]
        process = subprocess.Popen(
            ["ip", "netns", "exec", hosts[0], "unshare", "--uts", "--mount", "sh", "-c",
             f"hostname {hosts[0]}; mount --bind {self.disk_of(hosts[0])} {self.disk}; exec \"$@\"",
             "sh", *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(DISKS=str(self.plain), DISK=str(self.disk), **more))
        self.addCleanup(process.kill)
        return process

    def finish(self, process, code=0):
        stdout, stderr = process.communicate(timeout=200)
        self.assertEqual(process.returncode, code, stdout + stderr)
        return stdout, stderr
