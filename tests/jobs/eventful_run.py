"""A small run in which everything happens that a report shows: evaluations, three saves and more, a resume on
another number of ranks, and one step that is not finite.

    TESSERA_BIN=build/bin TESSERA_GOLDEN=tests/golden python3 tests/jobs/eventful_run.py FOLDER [NAME [train options]]

The one bad step comes from a token that the data has once and whose row of the embedding is NaN."""
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys

BIN = pathlib.Path(os.environ["TESSERA_BIN"])
GOLDEN = pathlib.Path(os.environ["TESSERA_GOLDEN"]) / "untied"
MPIEXEC = os.environ.get("MPIEXEC", "mpirun")
VOCABULARY, BAD_TOKEN, SEQ, BATCH, STEPS = 128, 127, 32, 8, 24


def make_model(folder):
    """The golden model with NaN for the embedding of BAD_TOKEN."""
    folder.mkdir(parents=True)
    shutil.copy(GOLDEN / "config.json", folder)
    content = bytearray((GOLDEN / "model.safetensors").read_bytes())
    length = struct.unpack("<Q", content[:8])[0]
    entry = json.loads(content[8:8 + length])["model.embed_tokens.weight"]
    width = entry["shape"][1]
    row = 8 + length + entry["data_offsets"][0] + 4 * width * BAD_TOKEN
    content[row:row + 4 * width] = struct.pack(f"<{width}f", *[math.nan] * width)
    (folder / "model.safetensors").write_bytes(content)


def make_data(folder, name, sequences, bad_at):
    """Ids of a text that can be learnt; BAD_TOKEN at one place, or nowhere."""
    text = "".join(f"{i} and {i + 1} make {2 * i + 1}.\n" for i in range(4000)).encode()[:sequences * SEQ + 1]
    ids = bytearray(text)
    if bad_at is not None:
        ids[bad_at] = BAD_TOKEN
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({len(ids)},), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    (folder / f"{name}.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                                        bytes(ids))
    subprocess.run([BIN / "tokenize", "--vocab", str(VOCABULARY), "--out", folder / f"{name}.h5",
                    folder / f"{name}.npy"], check=True, capture_output=True)


def train(folder, out, ranks, *options):
    given = {"--init": folder / "model", "--data": folder / "data.h5", "--eval-data": folder / "held-out.h5",
             "--seq": SEQ, "--micro-batch": 2, "--global-batch": BATCH, "--lr": "3e-3", "--schedule-steps": STEPS,
             "--warmup": 3, "--save-every": 4, "--eval-every": 4, "--keep": 9, "--resident-bytes": "none",
             "--page-bytes": "64KiB", "--out": out, **dict(zip(options[::2], options[1::2]))}
    words = [MPIEXEC, "-np", str(ranks), BIN / "train", *(str(word) for pair in given.items() for word in pair)]
    return subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=250)


def make_inputs(folder):
    make_model(folder / "model")
    make_data(folder, "data", STEPS * BATCH, STEPS * BATCH * SEQ // 2)
    make_data(folder, "held-out", 16, None)


def make_run(folder, name="run", *options):
    """Returns OUT: 14 steps on 2 ranks, then 10 more on 1. Inputs are made where they are missing."""
    folder = pathlib.Path(folder)
    if not (folder / "model").exists():
        make_inputs(folder)
    out = folder / name
    for ranks, steps in ((2, 14), (1, STEPS)):
        result = train(folder, out, ranks, "--steps", steps, *options)
        if result.returncode != 0:
            raise RuntimeError(f"train ended with {result.returncode}:\n{result.stdout}{result.stderr}")
    return out


if __name__ == "__main__":
    print(make_run(*sys.argv[1:]))
