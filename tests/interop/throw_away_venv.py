"""A Python of its own for a script that needs packages of PyPI's, removed afterwards."""
import os
import subprocess
import sys
import tempfile

SKIPPED = 77


def in_venv(script, packages, arguments):
    """Runs `script` there without the word --venv; SKIPPED where the packages cannot be installed."""
    with tempfile.TemporaryDirectory() as folder:
        python = os.path.join(folder, "bin", "python")
        for command in ([sys.executable, "-m", "venv", folder], [python, "-m", "pip", "-q", "install", *packages]):
            if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode != 0:
                print(f"skipped: PyPI's {', '.join(packages)} cannot be installed here")
                return SKIPPED
        return subprocess.run([python, script, *[word for word in arguments if word != "--venv"]], check=False).returncode


def leave_without_packages(error, script, packages):
    """Where importing has failed: ends the program, by way of an environment of its own if it was asked for one."""
    if "--venv" in sys.argv:
        sys.exit(in_venv(script, packages, sys.argv[1:]))
    print(f"skipped: {error}; --venv makes an environment from PyPI")
    sys.exit(SKIPPED)


def require(condition, message):
    if not condition:
        print(f"FAILED: {message}")
        sys.exit(1)
