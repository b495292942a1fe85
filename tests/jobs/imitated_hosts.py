"""Hosts on one machine for tests: network namespaces with names of their own. How they are connected is the test's."""
import os
import pathlib
import shutil
import subprocess

from train_test import is_mpich


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
