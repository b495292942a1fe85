"""A Slurm for tests, in a folder of its own: of one node, with all daemons on loopback, or of hosts that the test
imitates. Its own munge key and socket, its own ports. Nothing of the machine's own Slurm or munge is touched, and nothing is left."""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")

CONFIG = """
ClusterName=tessera
SlurmctldHost={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=1,bf_interval=1
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait={kill_wait}
SlurmdTimeout=10
SlurmdParameters=config_overrides
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = ("NodeName={host} NodeAddr={address} CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=1000 "
        "State=UNKNOWN\n")


def why_not():
    """Why Slurm cannot be started here, or None."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    missing = [name for name in PROGRAMS if program(name) is None]
    return f"no {', '.join(missing)} here (packages slurm-wlm and munge)" if missing else None


def program(name):
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def is_gone(pid):
    """No such process, or a dead one that nobody has asked after yet."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


class SlurmCluster:
    def __init__(self, hosts=None, controller=None):
        """`hosts`: ImitatedHosts that are there, one node each; `controller`: this machine's address among them."""
        self.hosts = hosts.addresses if hosts else {socket.gethostname(): "127.0.0.1"}
        self.imitated = hosts is not None
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-slurm-"))
        self.folder.chmod(0o755)  # munge wants everyone to reach its socket
        for name in ["state", "pmix", *(f"{kind}-{host}" for kind in ("spool", "pmix") for host in self.hosts)]:
            (self.folder / name).mkdir()
        name = "tessera-slurm" if self.imitated else socket.gethostname()
        config = self.folder / "slurm.conf"
        config.write_text(CONFIG.format(controller=f"{name}({controller or '127.0.0.1'})", user="root", folder=self.folder,
                                        ports=free_ports(2), kill_wait=2 if self.imitated else 10) +
                          "".join(NODE.format(host=host, address=address) for host, address in self.hosts.items()))
        self.environment = dict(os.environ, SLURM_CONF=str(config))
        self.environment["PATH"] += ":/usr/sbin"
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.run("munged", f"--key-file={key}", f"--socket={self.folder}/munge.socket",
                 f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
                 f"--seed-file={self.folder}/munged.seed")
        if self.imitated:
            # It listens on the address of its own name.
            (self.folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={self.folder}/pmix\n")
            (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{controller} {name}\n")
            self.run("unshare", "--uts", "--mount", "sh", "-c",
                     f"hostname {name}; mount --bind {self.folder}/hosts /etc/hosts; exec slurmctld -f {config}")
        else:
            self.run("slurmctld", "-f", str(config))
        for host in self.hosts:
            self.start_node(host)
        self.wait_until_idle()

    def start_node(self, host):
        daemon = f"slurmd -f {self.folder}/slurm.conf -N {host}"
        if self.imitated:  # not by `ip netns exec`, which gives it another /sys
            self.run("nsenter", f"--net=/run/netns/{host}", "unshare", "--uts", "--mount", "sh", "-c",
                     f"hostname {host}; mount --bind /etc/netns/{host}/hosts /etc/hosts; "
                     f"mount --bind {self.folder}/pmix-{host} {self.folder}/pmix; exec {daemon}")
        else:
            self.run(*daemon.split())

    def wait_until_idle(self):
        self.wait(lambda: self.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split() == ["idle"] * len(self.hosts), 60,
                  "not all nodes are idle")

    def run(self, *command, **options):
        result = subprocess.run(command, capture_output=True, text=True, env=self.environment, check=False,
                                stdin=subprocess.DEVNULL, timeout=60, **options)
        if result.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {result.stdout}{result.stderr}{self.logs()}")
        return result

    def logs(self):
        return "".join(f"\n{path.name}:\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))

    def wait(self, condition, seconds, complaint):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"{complaint} after {seconds} s{self.logs()}")
            time.sleep(0.2)

    def job(self, number):
        """The fields of `scontrol show job`."""
        text = self.run("scontrol", "--oneliner", "show", "job", str(number)).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def cancel_all(self):
        """Ends every job, waiting or running."""
        subprocess.run(["scancel", "--user=root"], env=self.environment, check=False, capture_output=True, timeout=60)
        self.wait(lambda: not self.run("squeue", "--noheader").stdout.strip(), 60, "jobs are left")

    def stop(self):
        """Ends the jobs, then the daemons by their pid files, and removes the folder."""
        self.cancel_all()
        for name in ["slurmctld", *(f"slurmd-{host}" for host in self.hosts), "munged"]:
            pid = int((self.folder / f"{name}.pid").read_text())
            if is_gone(pid):
                continue
            os.kill(pid, signal.SIGTERM)
            self.wait(lambda gone=pid: is_gone(gone), 30, f"{name} does not end")
        shutil.rmtree(self.folder)
