"""mpirun as tests start it: Open MPI's or MPICH's, whose ranks, exit codes and options differ."""
import os
import pathlib
import re
import signal
import subprocess
import time

MPIEXEC = os.environ.get("MPIEXEC", "mpirun")


def is_mpich():
    """True where the launcher is MPICH's (Hydra)."""
    reported = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, check=False)
    return "HYDRA" in reported.stdout + reported.stderr


def status_of_kill(number):
    """What the launcher ends with when a signal has killed a rank."""
    return number if is_mpich() else 128 + number


def statuses_of_kill(number):
    """The same, and what a peer may bring: MPICH over UCX aborts one that was sending to the dead rank."""
    return (status_of_kill(number), signal.SIGABRT) if is_mpich() else (status_of_kill(number),)


def is_gone(pid):
    """No such process, or a dead one that nobody has asked after yet."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def descendants(pid):
    """Process ids of the children of `pid`, and of theirs."""
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found[1:]


def pids_by_rank(launcher, program):
    """Process ids of the ranks of `program` that this launcher has started so far, by rank."""
    found = {}
    for pid in descendants(launcher):
        folder = pathlib.Path(f"/proc/{pid}")
        try:
            if (folder / "comm").read_text().strip() != program:
                continue
            rank = re.search(rb"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)", (folder / "environ").read_bytes())
        except OSError:
            continue
        if rank:
            found[int(rank.group(1))] = pid
    return found


def wait_for_ranks(launcher, program, count, seconds=30):
    """Their process ids in the order of ranks, as soon as all are there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = pids_by_rank(launcher, program)
        if len(found) == count:
            return [found[rank] for rank in range(count)]
        time.sleep(0.01)
    raise AssertionError(f"the launcher has not started {count} ranks of {program}")
