"""`bench step`: the budget of a step agrees with counts from the model's sizes, and its times fit into the step; what
metrics and timeline cost is measured and leaves nothing behind."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(os.environ["TESSERA_BIN"])
MPIEXEC = os.environ.get("MPIEXEC", "mpirun")
SOURCE = pathlib.Path(__file__).resolve().parents[2]

LAYERS, WIDTH, FEED, HEADS, KV_HEADS, HEAD, VOCAB = 3, 48, 80, 4, 2, 16, 300
SEQ, MICRO, GLOBAL = 32, 2, 8
QKV = (HEADS + 2 * KV_HEADS) * HEAD
BLOCK_WEIGHTS = WIDTH * QKV + HEADS * HEAD * WIDTH + 3 * WIDTH * FEED
# Qwen2: a bias on q, k and v, so that column_sum has work; embedding and head are two tensors.
MODEL = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": VOCAB, "hidden_size": WIDTH,
         "intermediate_size": FEED, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
         "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "hidden_act": "silu", "rms_norm_eps": 1e-6,
         "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": False,
         "initializer_range": 0.02}
TABLE_ENTRIES = set(re.findall(r"^  \w+Fn\* (\w+);$", (SOURCE / "kernels/kernel_table.h").read_text(), re.M))


class Case(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="tessera bench ")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()
        (self.folder / "config.json").write_text(json.dumps(MODEL))

    def bench(self, *words, ranks=1, options=(), status=0, model=None, shape=(SEQ, MICRO, GLOBAL)):
        seq, micro_batch, global_batch = shape
        run = subprocess.run(
            [MPIEXEC, "-np", str(ranks), BIN / "bench", "step", "--model", model or self.folder / "config.json",
             "--measured-steps", "3", "--warm-up", "1", *words, "--options", f"seq={seq}",
             f"micro-batch={micro_batch}", f"global-batch={global_batch}", *options],
            env=dict(os.environ, TMPDIR=str(self.temporary)), capture_output=True, text=True, timeout=150)
        self.assertEqual(run.returncode, status, run.stdout + run.stderr)
        return run.stdout + run.stderr

    def budget(self, ranks=1, options=()):
        file = self.folder / "budget.json"
        text = self.bench("--breakdown", "2", "--json", file, ranks=ranks, options=options)
        self.assertIn("share of floor", text)
        budget = json.loads(file.read_text())
        for row in budget["rows"]:
            self.assertIn(row["name"], text)
        return budget


def sums(budget, kernel, part):
    return sum(row[part] for row in budget["rows"] if row["kernel"] == kernel)


class Budget(Case):
    def check(self, ranks, again=0, levels="block", layers=LAYERS - 1):
        """`again`: matrix weights of a block whose products are computed a second time, in `layers` of them: the last
        one has them still."""
        layers = layers if again else 0
        budget = self.budget(ranks, [f"recompute={levels}"] if again else [])
        rounds = GLOBAL // MICRO // ranks
        tokens = rounds * MICRO * SEQ  # of rank 0
        products = 6 * (LAYERS * BLOCK_WEIGHTS + WIDTH * VOCAB) + 2 * layers * again
        self.assertEqual(sums(budget, "gemm", "flops"), products * tokens)
        attention = HEADS * HEAD * SEQ * tokens  # of a layer
        self.assertEqual(sums(budget, "attention_forward", "flops"), 2 * (LAYERS + layers) * attention)
        self.assertEqual(sums(budget, "attention_backward", "flops"), 5 * LAYERS * attention)

        calls = budget["kernel_calls"]
        self.assertEqual(set(calls), TABLE_ENTRIES)
        blocks = rounds * LAYERS
        more = rounds * layers
        expected = {"gemm": 12 * blocks + 3 * rounds + 3 * more, "attention_forward": blocks + more,
                    "attention_backward": blocks, "attention_cached": 0, "column_sum": blocks,
                    "rms_norm_forward": 2 * (blocks + more) + rounds, "rms_norm_backward": 2 * blocks + rounds,
                    "rotary_forward": blocks + more, "rotary_backward": blocks, "swiglu_forward": blocks,
                    "swiglu_backward": blocks, "embedding_forward": rounds, "embedding_backward": rounds,
                    "softmax_cross_entropy": rounds, "loss_sum": rounds, "sum_of_squares": LAYERS + 2}
        self.assertEqual({name: calls[name] for name in expected}, expected)
        for name in ("accumulate", "adamw"):
            self.assertGreater(calls[name], 0, name)
        parameters = LAYERS * (BLOCK_WEIGHTS + QKV + 2 * WIDTH) + 2 * VOCAB * WIDTH + WIDTH
        updated = sums(budget, "adamw", "bytes") / 32 * ranks  # six arrays, the gradient and the parameter, f32
        self.assertGreaterEqual(updated * 1.0001, parameters)
        self.assertLessEqual(updated, parameters + (LAYERS + 2) * 1024 * ranks)

        names = {row["name"] for row in budget["rows"]}
        for layer in ("qkv", "attention output", "gate/up", "down", "head"):
            for which in ("forward", "input gradient", "weight gradient"):
                self.assertIn(f"{layer} {which}", names)
        self.assertEqual("gate/up forward, again" in names, bool(again))

        self.assertEqual(len(budget["rank_kernel_seconds"]), ranks)

        # On the CPU one thing runs after the other, whatever its stream.
        kernels = sum(row["seconds"] for row in budget["rows"] if row["kernel"])
        self.assertGreater(kernels, 0)
        self.assertLessEqual(kernels, budget["recorded_step_seconds"])
        stream = sum(row["seconds"] for row in budget["rows"] if row["stream"] == "compute")
        stream += sum(wait["seconds"] for wait in budget["waits"])
        self.assertLessEqual(stream, budget["compute_stream_seconds"])
        self.assertLessEqual(stream + budget["gaps"]["seconds"], budget["compute_stream_seconds"])
        for row in budget["rows"]:
            self.assertEqual(row["floor_seconds"] > 0, bool(row["kernel"]), row)
        self.assertAlmostEqual(budget["floor_seconds"], sum(row["floor_seconds"] for row in budget["rows"]))
        self.assertEqual(len(budget["rank_floor_seconds"]), ranks)
        self.assertAlmostEqual(budget["rank_floor_seconds"][0], budget["floor_seconds"])
        self.assertAlmostEqual(budget["share_of_floor"], max(budget["rank_floor_seconds"]) / budget["step_seconds"])
        return budget

    def test_one_rank(self):
        budget = self.check(1)
        self.assertFalse([row for row in budget["rows"] if row["name"] in ("exchange", "all-gather")])

    def test_two_ranks(self):
        budget = self.check(2)
        moved = {row["name"]: row for row in budget["rows"] if row["stream"] == "communication"}
        for name in ("exchange", "all-gather"):
            self.assertGreater(moved[name]["bytes"], 0)
            self.assertGreater(moved[name]["calls"], 0)

    def test_recomputation_is_counted_apart(self):
        again = BLOCK_WEIGHTS - WIDTH * FEED  # all but the down projection
        self.check(1, again)
        self.check(1, again, "block:1", 1)

    def test_paged_state_shows_what_is_moved(self):
        budget = self.budget(options=["resident-bytes=none", "page-bytes=64KiB"])
        moved = {row["name"]: row["bytes"] for row in budget["rows"]}
        self.assertGreater(moved["page in"], 0)
        self.assertEqual(moved["page in"], moved["page out"])

    def test_a_file_without_a_budget_is_refused(self):
        self.assertIn("--breakdown", self.bench("--json", self.folder / "x.json", status=2))
        self.assertFalse((self.folder / "x.json").exists())


class Memory(Case):
    def check(self, ranks, *options):
        """What the plan says of a rank, and what its process took at most, within 5%."""
        text = self.bench(ranks=ranks, options=options, model="small", shape=(256, 1, ranks))
        taken, planned = map(int, re.search(r"^resident .*\((\d+) bytes\).*\((\d+) bytes\)", text, re.M).groups())
        self.assertLess(abs(taken - planned), 0.05 * planned, text)

    def test_resident_memory_is_as_planned(self):
        self.check(1)
        self.check(2, "recompute=block")


class Loss(unittest.TestCase):
    def flce(self, *words, status=0):
        run = subprocess.run([BIN / "bench", "flce", "--dtype", "f32", "--rounds", "1", "--floor", "off", *words],
                             capture_output=True, text=True, timeout=150)
        self.assertEqual(run.returncode, status, run.stdout + run.stderr)
        return run.stdout + run.stderr

    def test_bias_cap_and_weights_agree_with_f64(self):
        for tokens, vocab, hidden, chunks in ((64, 300, 32, "64"), (200, 1031, 64, "64,200"), (96, 5003, 128, "32")):
            for terms in ("none", "all"):
                text = self.flce("--tokens", str(tokens), "--vocab", str(vocab), "--hidden", str(hidden), "--chunk",
                                 chunks, "--terms", terms)
                self.assertIn(f"terms {terms}\n", text)
                rows = [line.split() for line in text.splitlines() if re.match(r" *\d+ +\d+\.", line)]
                self.assertEqual([row[0] for row in rows], chunks.split(","), text)
                for row in rows:
                    errors = [float(error) for error in row[7:]]
                    self.assertEqual(len(errors), 7 if terms == "all" else 5, text)
                    self.assertLess(max(errors), 1e-5, text)
                    self.assertGreater(min(errors[1:]), 0, text)

    def test_other_terms_are_refused(self):
        self.assertIn("--terms 'biass': choose none, all, or some of bias, soft-cap, weights",
                      self.flce("--terms", "biass", status=2))


class Refusals(Case):
    def test_no_repetitions_are_refused(self):
        for name in ("attention", "gemm", "kernels"):
            run = subprocess.run([BIN / "bench", name, "--repetitions", "0"], capture_output=True, text=True, timeout=60)
            self.assertEqual(run.returncode, 2, run.stdout + run.stderr)
            self.assertEqual(run.stderr,
                             f"bench {name}: --repetitions '0' is not a whole number from 1 to 1000000\n")

    def test_a_step_that_exceeds_the_memory_that_it_is_given_is_refused_on_any_ranks(self):
        for ranks in (1, 2):
            shown = self.bench(ranks=ranks, options=["host-memory=2MiB"], status=2)
            self.assertRegex(shown, r"a node has 2\.10 MB")

    def test_documents_are_refused_where_there_are_none(self):
        self.assertIn("documents=separate: a step is measured on random tokens",
                      self.bench(options=["documents=separate"], status=2))


class Tokenizing(Case):
    """bench tokenize"""

    def rate_of(self, *words, status=0):
        run = subprocess.run([BIN / "bench", "tokenize", *words], capture_output=True, text=True, timeout=100)
        self.assertEqual(run.returncode, status, run.stdout + run.stderr)
        return run.stdout + run.stderr

    def test_all_bytes_of_the_text_are_encoded_on_every_number_of_threads(self):
        texts = self.folder / "texts"
        texts.mkdir()
        for i, content in enumerate((b"one", "zw\u00f6lf".encode(), b"", b"\xff not text")):
            (texts / f"{i}.txt").write_bytes(content)
        shown = self.rate_of("--tokenizer", "bytes", "--corpus", texts, "--threads", "3", "--repetitions", "1")
        self.assertIn("2 documents, 0.00 MB (2 files skipped: not UTF-8, or empty)", shown)
        self.assertEqual(re.findall(r"(\d) threads?: [\d.]+ MB/s, median [\d.]+ MB/s, (\d+) tokens", shown),
                         [("1", "9"), ("3", "9")])

    def test_what_measures_nothing_is_refused(self):
        self.assertIn("give --tokenizer PATH and --corpus PATH", self.rate_of("--tokenizer", "bytes", status=2))
        (self.folder / "binary").write_bytes(b"\xff")
        self.assertIn("--corpus holds no UTF-8 text", self.rate_of(
            "--tokenizer", "bytes", "--corpus", self.folder / "binary", status=2))


class Watching(Case):
    def test_metrics_and_timeline_are_measured_beside_steps_without(self):
        text = self.bench("--variants", "metrics=on", "trace=on", "metrics=on,trace=on", ranks=2)
        self.assertEqual(len(re.findall(r"^costs +[+-]\d+\.\d\d% of a step$", text, re.M)), 3, text)
        self.assertEqual(len(re.findall(r"^metrics +\d+\.\d us a line$", text, re.M)), 2, text)
        self.assertEqual(list(self.temporary.glob("tessera*")), [])

    def test_an_unknown_variant_is_refused(self):
        self.assertIn("metrics=on", self.bench("--variants", "metrics=off", status=2))


if __name__ == "__main__":
    unittest.main()
