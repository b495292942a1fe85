"""A Python of its own for a script that needs packages of PyPI's: one that is there, or one that is removed afterwards."""
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
PACKAGES = pathlib.Path(__file__).resolve().parent / "packages.txt"


def in_venv(script, arguments):
    """Runs `script` there without the word --venv; SKIPPED where the packages cannot be installed."""
    with tempfile.TemporaryDirectory() as folder:
        python = os.path.join(folder, "bin", "python")
        for command in ([sys.executable, "-m", "venv", folder], [python, "-m", "pip", "-q", "install", "-r", PACKAGES]):
            if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode != 0:
                print(f"skipped: PyPI's packages of {PACKAGES} cannot be installed here")
                return SKIPPED
        return subprocess.run([python, script, *[word for word in arguments if word != "--venv"]], check=False).returncode


def python_with_packages():
    """That of TESSERA_INTEROP_PYTHON, or the one that `ninja interop-venv` made; None: there is none but this one."""
    kept = os.environ.get("TESSERA_INTEROP_PYTHON") or os.environ.get("TESSERA_INTEROP_VENV", "nowhere") + "/bin/python"
    is_this = pathlib.Path(kept).parent.parent == pathlib.Path(sys.prefix)
    return kept if os.access(kept, os.X_OK) and not is_this else None


def leave_without_packages(error, script):
    """Where importing has failed: ends the program, by way of a Python that has them or, if it was asked for, an environment of its own."""
    if "--venv" in sys.argv:
        sys.exit(in_venv(script, sys.argv[1:]))
    other = python_with_packages()
    if other:
        sys.exit(subprocess.run([other, script, *sys.argv[1:]], check=False).returncode)
    print(f"skipped: {error}; `ninja interop-venv` makes an environment from PyPI for CTest (minutes), --venv one for this time, and "
          "TESSERA_INTEROP_PYTHON names one that is there")
    sys.exit(SKIPPED)


def require(condition, message):
    if not condition:
        print(f"FAILED: {message}")
        sys.exit(1)
