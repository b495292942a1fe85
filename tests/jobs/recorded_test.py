"""Training losses, norms and weights against values recorded at commit 839538f (those of SGD and Muon when they came): a
change of structure leaves every bit of them as it was, in every mode and at every number of ranks.

    python3 recorded_test.py                 compares
    python3 recorded_test.py --record FILE   writes what this build gives, for review

The bits of a CPU run depend on oneDNN's kernels and on libm. The kernels are pinned to AVX2, which every
machine of ours has; with another version of oneDNN or glibc than the recorded one the test is skipped."""
import ctypes
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from launcher import MPIEXEC  # noqa: E402

BIN = pathlib.Path(os.environ["TESSERA_BIN"])
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
RECORD = GOLDEN / "recorded.json"
CHECKPOINT = GOLDEN / "checkpoint-v1"  # written by 839538f: the run `stored` below, on 2 ranks, after step 3
STEPS = 6
BASE = {"--model": "tiny", "--seq": 32, "--micro-batch": 2, "--global-batch": 16, "--lr": "1e-2", "--steps": STEPS,
        "--eval-every": 3}
SGD = ["--optimizer", "sgd", "--lr", "0.1", "--momentum", "0.8", "--weight-decay", "1e-2"]
MUON = ["--optimizer", "muon", "--muon-lr", "2e-2"]
PAGED = ["--page-bytes", "64KiB", "--resident-bytes", "none"]
# name: (the recorded values it must have, ranks, options)
CASES = {
    "1 rank": ("ordered", 1, []),
    "2 ranks, paged": ("ordered", 2, PAGED),
    "3 ranks, blocks recomputed": ("ordered", 3, ["--recompute", "block"]),
    "4 ranks, block inputs on the host": ("ordered", 4, ["--recompute", "block", "--offload-activations"]),
    "5 ranks, mlp recomputed, a part of the state resident": (
        "ordered", 5, ["--recompute", "mlp", "--page-bytes", "64KiB", "--resident-bytes", "1MiB"]),
    "8 ranks, forward passes batched, sums on the host, paged": (
        "ordered", 8, ["--batched-forward", 2, "--grad-offload", "--recompute", "block", *PAGED]),
    "2 ranks, blocks recomputed in one layer, mlp in another": ("ordered", 2, ["--recompute", "block:1,mlp:1"]),
    "3 ranks, mlp recomputed in two layers, a part of the state resident": (
        "ordered", 3, ["--recompute", "mlp:2", "--page-bytes", "64KiB", "--resident-bytes", "1MiB"]),
    "2 ranks, attention recomputed, sums on the host": (
        "ordered", 2, ["--recompute", "attention", "--grad-offload"]),
    "groups of 4, 1 rank": ("groups of 4", 1, ["--reduce-group", 4]),
    "groups of 4, 3 ranks": ("groups of 4", 3, ["--reduce-group", 4]),
    "groups of 4, 4 ranks, sums on the host": ("groups of 4", 4, ["--reduce-group", 4, "--grad-offload"]),
    "groups of 4, 8 ranks on 2 nodes": ("groups of 4", 8, ["--reduce-group", 4, "--ranks-per-node", 4]),
    "zero 1, 1 rank": ("zero 1 on 1", 1, ["--zero", 1]),
    "zero 1, 3 ranks, paged": ("zero 1 on 3", 3, ["--zero", 1, *PAGED]),
    "native, 2 ranks": ("native on 2", 2, ["--reduce", "native"]),
    "2 threads": ("2 threads", 1, ["--threads", 2]),
    "sgd, 1 rank": ("sgd", 1, SGD),
    "sgd, 3 ranks, paged": ("sgd", 3, [*SGD, *PAGED]),
    "sgd, 8 ranks, a part of the state resident, sums on the host": (
        "sgd", 8, [*SGD, "--page-bytes", "32KiB", "--resident-bytes", "512KiB", "--grad-offload"]),
    "muon, 1 rank": ("muon", 1, MUON),
    "muon, 3 ranks, paged": ("muon", 3, [*MUON, *PAGED]),
    "muon, 8 ranks, a part of the state resident, sums on the host": (
        "muon", 8, [*MUON, "--page-bytes", "32KiB", "--resident-bytes", "512KiB", "--grad-offload"]),
}


def versions():
    """Of the libraries whose arithmetic is in the recorded bits."""
    class Dnnl(ctypes.Structure):
        _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int)]

    ldd = subprocess.run(["ldd", BIN / "train"], capture_output=True, text=True, check=True).stdout
    library = ctypes.CDLL(next(line.split()[2] for line in ldd.splitlines() if "libdnnl" in line))
    library.dnnl_version.restype = ctypes.POINTER(Dnnl)
    dnnl = library.dnnl_version().contents
    libc = ctypes.CDLL(None)
    libc.gnu_get_libc_version.restype = ctypes.c_char_p
    return {"onednn": f"{dnnl.major}.{dnnl.minor}.{dnnl.patch}", "glibc": libc.gnu_get_libc_version().decode()}


class Runs:
    """A corpus made from a fixed seed, and runs on it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        text = self.folder / "text"
        text.mkdir()
        words = random.Random(20261129)
        for i in range(40):
            lines = [" ".join(words.choice("the a fox dog runs sleeps over under lazy quick".split())
                              for _ in range(12)) for _ in range(4)]
            (text / f"file {i:02}.txt").write_text("\n".join(lines))
        self.corpus = self.folder / "corpus.h5"
        self.held_out = self.folder / "corpus.held-out.h5"
        subprocess.run([BIN / "tokenize", "--tokenizer", "bytes", "--held-out", "0.1", "--out", self.corpus, text],
                       check=True, capture_output=True)

    def train(self, ranks, out, *arguments):
        environment = dict(os.environ, ONEDNN_MAX_CPU_ISA="AVX2", DNNL_MAX_CPU_ISA="AVX2")
        command = [MPIEXEC, "-np", ranks, BIN / "train", "--data", self.corpus, "--eval-data", self.held_out,
                   "--out", out, *(word for pair in BASE.items() if pair[0] not in arguments for word in pair),
                   *arguments]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment,
                              check=False, stdin=subprocess.DEVNULL, timeout=250)
        if done.returncode != 0:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return self.values(out)

    @staticmethod
    def values(out):
        """Losses and norms of the steps, evaluation losses and the state's hash, as they are printed."""
        rows = [json.loads(line, parse_float=str) for line in (out / "metrics.jsonl").read_text().splitlines()]
        steps = [[row["step"], row["loss"], row["grad_norm"]] for row in rows if "grad_norm" in row]
        evaluations = [[row["step"], row["eval_loss"]] for row in rows if "eval_loss" in row]
        inspected = subprocess.run([BIN / "inspect", out, "--hash"], capture_output=True, text=True, check=True)
        return {"steps": steps, "evaluations": evaluations, "state": inspected.stdout.splitlines()[-1]}

    def stored(self):
        """The options of the run whose third step is in CHECKPOINT: a model so small that it may be kept in git."""
        config = self.folder / "config.json"
        config.write_text(json.dumps({
            "model_type": "qwen3", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
            "max_position_embeddings": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True}))
        return ["--model", config, "--seed", 7]


class Recorded(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.record = json.loads(RECORD.read_text())
        if versions() != cls.record["libraries"]:
            raise unittest.SkipTest(f"skipped: recorded with {cls.record['libraries']}, here are {versions()}")
        cls.scratch = tempfile.TemporaryDirectory()
        cls.runs = Runs(cls.scratch.name)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def test_every_mode_has_the_recorded_bits(self):
        for name, (values, ranks, options) in CASES.items():
            with self.subTest(name):
                got = self.runs.train(ranks, self.runs.folder / name, *options)
                self.assertEqual(got, self.record["values"][values])

    def test_a_run_that_goes_on_with_other_ranks_has_them_too(self):
        out = self.runs.folder / "resumed"
        self.runs.train(2, out, "--steps", 3, "--schedule-steps", STEPS, "--warmup", 0)
        got = self.runs.train(5, out, "--schedule-steps", STEPS, "--warmup", 0)
        self.assertEqual(got, self.record["values"]["resumed"])

    def test_a_run_with_sgd_goes_on_too_and_not_with_another_optimizer(self):
        out = self.runs.folder / "resumed sgd"
        schedule = ["--schedule-steps", STEPS, "--warmup", 0]
        self.runs.train(2, out, *SGD, "--steps", 3, *schedule)
        with self.assertRaisesRegex(AssertionError, "(?s)ended with 2:.*holds the state of optimizer sgd, and this run's is "
                                    "adamw: give --optimizer sgd to continue it"):
            self.runs.train(2, out, *schedule)
        got = self.runs.train(5, out, *SGD, *schedule, *PAGED)
        self.assertEqual(got, self.record["values"]["sgd"])

    def test_a_checkpoint_of_839538f_goes_on_to_the_recorded_bits(self):
        for ranks in (1, 3):
            with self.subTest(ranks):
                out = self.runs.folder / f"stored {ranks}"
                shutil.copytree(CHECKPOINT, out)
                got = self.runs.train(ranks, out, *self.runs.stored(), "--warmup", 0)
                self.assertEqual(got["steps"], self.record["values"]["stored"]["steps"][3:])
                self.assertEqual(got["state"], self.record["values"]["stored"]["state"])


def record(file):
    with tempfile.TemporaryDirectory() as scratch:
        runs = Runs(scratch)
        values = {}
        for name, (key, ranks, options) in CASES.items():
            if key not in values:  # the others of this key are compared by the test
                values[key] = runs.train(ranks, runs.folder / name, *options)
                print(name, values[key]["state"], flush=True)
        schedule = ["--schedule-steps", STEPS, "--warmup", 0]
        values["resumed"] = runs.train(1, runs.folder / "whole", *schedule)
        values["stored"] = runs.train(1, runs.folder / "stored", *runs.stored(), "--warmup", 0)
        if not CHECKPOINT.exists():
            out = runs.folder / "stored for good"
            runs.train(2, out, *runs.stored(), "--steps", 3, *schedule)
            CHECKPOINT.mkdir()
            shutil.copytree(out / "step-00000003", CHECKPOINT / "step-00000003")
        pathlib.Path(file).write_text(json.dumps({"libraries": versions(), "values": values}, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--record":
        record(sys.argv[2])
    else:
        unittest.main(verbosity=2)
