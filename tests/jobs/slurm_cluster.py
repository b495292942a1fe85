"""A Slurm of one node for tests, in a folder of its own: its own munge key and socket, its own ports, all
daemons on loopback. Nothing of the machine's own Slurm or munge is touched, and nothing is left."""
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
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
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
KillWait=10
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


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
    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-slurm-"))
        self.folder.chmod(0o755)  # munge wants everyone to reach its socket
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        config = self.folder / "slurm.conf"
        config.write_text(CONFIG.format(host=socket.gethostname(), user="root", folder=self.folder,
                                        ports=free_ports(2)))
        self.environment = dict(os.environ, SLURM_CONF=str(config))
        self.environment["PATH"] += ":/usr/sbin"
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.run("munged", f"--key-file={key}", f"--socket={self.folder}/munge.socket",
                 f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
                 f"--seed-file={self.folder}/munged.seed")
        self.run("slurmctld", "-f", str(config))
        self.run("slurmd", "-f", str(config), "-N", socket.gethostname())
        self.wait(lambda: "idle" in self.run("sinfo", "--noheader", "--format=%T").stdout, 30, "no node is idle")

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
        for name in ("slurmctld", "slurmd", "munged"):
            pid = int((self.folder / f"{name}.pid").read_text())
            os.kill(pid, signal.SIGTERM)
            self.wait(lambda gone=pid: is_gone(gone), 30, f"{name} does not end")
        shutil.rmtree(self.folder)
