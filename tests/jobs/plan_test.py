"""What train --plan answers: how long a run takes, what it takes on disk, which settings fit (--fit) and what more ranks give
(--scale). Without a GPU and without data."""
import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["TESSERA_BIN"])
BAD_OPTIONS, DOES_NOT_FIT = 2, 2


def plan(*words, status=0, ranks=None):
    start = [os.environ["MPIEXEC"], "-np", str(ranks)] if ranks else []
    run = subprocess.run([*start, BIN / "train", "--plan", *map(str, words)], capture_output=True, text=True, check=False,
                         stdin=subprocess.DEVNULL, timeout=150)
    if run.returncode != status:
        raise AssertionError(f"{run.returncode}: {run.stdout}{run.stderr}")
    return run.stdout + run.stderr


class Plan(unittest.TestCase):
    SMALL = ("--model", "qwen3-0.6b", "--seq", 1024, "--device", "cuda")
    FIT = ("--model", "qwen3-4b", "--ranks", 2, "--seq", 4096, "--global-batch", 8, "--host-memory", "256GB")

    def test_tokens_become_hours(self):
        shape = (*self.SMALL, "--ranks", 8, "--global-batch", 64)
        read = json.loads(plan(*shape, "--tokens", "10B", "--json"))
        steps = -(-10**10 // (64 * 1024))
        self.assertEqual((read["run"]["steps"], read["run"]["tokens"]), (steps, steps * 64 * 1024))
        self.assertAlmostEqual(read["run"]["seconds"] / (steps * read["estimate"]["step_seconds"]), 1, places=9)
        text = plan(*shape, "--tokens", "10B")
        shown = re.search(r"^The run: 152,588 steps of 65,536 tokens, 10,000,007,168 tokens in all, in ([0-9.]+) hours", text, re.M)
        self.assertAlmostEqual(float(shown.group(1)), read["run"]["seconds"] / 3600, delta=0.051)
        self.assertEqual(json.loads(plan(*shape, "--tokens", 10**10, "--json"))["run"], read["run"])
        for same, number in (("1.5M", 1500000), ("20K", 20000), ("2T", 2 * 10**12)):
            self.assertEqual(json.loads(plan(*shape, "--tokens", same, "--json"))["run"]["steps"], -(-number // 65536))
        for bad in ("B", "10G", "-1B", "1e30B", "0.0001K"):
            self.assertIn("--tokens", plan(*shape, f"--tokens={bad}", status=BAD_OPTIONS))
        for bad in ("1k", "1e9", "0"):
            self.assertRegex(plan(*shape, f"--tokens={bad}", status=BAD_OPTIONS),
                             rf"--tokens '{bad}' is not a number of tokens .*K, M, B or T")
        self.assertRegex(plan(*shape, "--tokens", 1), r"The run: 1 step of 65,536 tokens, .* in 0\.\d+ seconds,")

    def test_what_is_not_measured_is_named(self):
        text = plan(*self.SMALL, "--ranks", 2, "--card", "b200")
        self.assertRegex(text, r"The run: .* \(not measured: assumed rates\)")
        self.assertIn("assumed rates: no step was measured on this card", text)
        text = plan(*self.SMALL[:-2], "--ranks", 2, "--card", "b200")  # a card is what --device cuda has
        self.assertRegex(text, r"total +device ")
        self.assertRegex(text, r"mpirun -np 2 train .*--device cuda")
        self.assertNotIn("not measured", plan(*self.SMALL, "--ranks", 2, "--global-batch", 8))
        self.assertIn("not measured: nodes of more than 4 GPUs", plan(*self.SMALL, "--ranks", 8, "--global-batch", 32))
        self.assertIn("How long it takes on CPUs is not estimated: not measured.", plan("--model", "tiny", "--tokens", "1M"))

    def test_a_checkpoint_has_its_size(self):
        read = json.loads(plan(*self.SMALL, "--json"))
        self.assertAlmostEqual(read["checkpoint_bytes"] / (12 * read["parameters"]), 1, delta=0.001)
        sgd = json.loads(plan(*self.SMALL, "--optimizer", "sgd", "--json"))
        self.assertAlmostEqual(sgd["checkpoint_bytes"] / (8 * sgd["parameters"]), 1, delta=0.001)
        self.assertRegex(plan(*self.SMALL, "--save-every", 100),
                         r"(?m)^On disk: 7\.\d\d GB a checkpoint, 2[89]\.\d\d GB with --keep 3 while the next is written$")

    def test_a_checkpoint_of_a_run_has_about_that_size(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="tessera plan ")))
        (folder / "text.txt").write_text("the lazy dog sleeps under the quick fox\n" * 200)
        subprocess.run([BIN / "tokenize", "--tokenizer", "bytes", "--out", folder / "c.h5", folder / "text.txt"], check=True,
                       capture_output=True)
        subprocess.run([BIN / "train", "--data", folder / "c.h5", "--seq", "32", "--steps", "1", "--out", folder / "out"],
                       check=True, capture_output=True)
        on_disk = sum(file.stat().st_size for file in (folder / "out/step-00000001").iterdir())
        planned = json.loads(plan("--seq", 32, "--json"))["checkpoint_bytes"]
        self.assertAlmostEqual(planned / on_disk, 1, delta=0.05)

    def test_the_fastest_settings_that_fit_come_first_and_their_command_fits(self):
        text = plan("--fit", *self.FIT, "--device-memory", "40GB")
        rows = [line.split(maxsplit=4) for line in text.splitlines() if re.match(r" *\d+  +[\d.]+  ", line)]
        self.assertTrue(1 < len(rows) <= 10, text)
        speeds = [float(row[0]) for row in rows]
        self.assertEqual(speeds, sorted(speeds, reverse=True))
        for row in rows:
            self.assertLessEqual(float(row[1]), 40)
        command = text[text.index("The fastest:\n") + len("The fastest:\n"):].strip()
        words = shlex.split(command)
        self.assertEqual(words[:4], ["mpirun", "-np", "2", "train"])
        again = plan(*words[4:], "--ranks", 2)
        self.assertIn("It fits", again)
        self.assertIn(f"{rows[0][0]} tokens/s", again)
        read = json.loads(plan("--fit", "--json", *self.FIT, "--device-memory", "40GB"))
        self.assertEqual(read[0]["command"], command)
        self.assertTrue(read[0]["fits"])
        for i, one in enumerate(read):  # each gains something on all that are faster
            for faster in read[:i] if one["fits"] else ():
                self.assertTrue(one["device_bytes"] < faster["device_bytes"] or one["node_bytes"] < faster["node_bytes"])
        self.assertEqual([one["fits"] for one in read], sorted((one["fits"] for one in read), reverse=True))
        # on several ranks the first alone prints, and all return the same
        self.assertEqual(plan("--fit", *self.FIT, "--device-memory", "40GB", ranks=2), text)

    def test_what_is_given_stays(self):
        read = json.loads(plan("--fit", "--json", *self.FIT, "--micro-batch", 4, "--recompute", "none", "--device-memory", "80GB"))
        self.assertGreater(len(read), 0)
        for one in read:
            self.assertFalse([change for change in one["changes"] if change.startswith(("--micro-batch", "--recompute"))], one)
        for words in ("--micro-batch 4", "--global-batch 8", "--seq 4096"):  # given even where they are the default
            self.assertIn(words, read[0]["command"])

    def test_the_settings_that_fit_have_the_hours_that_are_asked_for(self):
        words = (*self.FIT, "--device-memory", "80GB")
        read = json.loads(plan("--fit", "--json", *words, "--tokens", "1B"))
        steps = -(-10**9 // (8 * 4096))
        for one in read:
            self.assertAlmostEqual(one["run_seconds"], steps * one["step_seconds"])
        text = plan("--fit", *words, "--tokens", "1B")
        self.assertRegex(text, rf"(?m)^ tokens/s +hours +GB card.*\n +\d+ +{read[0]['run_seconds'] / 3600:.4g} ")
        self.assertRegex(text, r"(?m)^The run: 30,518 steps of 32,768 tokens, .* in [\d.]+ hours")
        self.assertRegex(text, r"mpirun -np 2 train .*--global-batch 8 --tokens 1B .*--micro-batch \d+ ")
        self.assertIn("not measured: assumed rates", plan("--fit", *words, "--tokens", "1B", "--card", "b200"))
        self.assertNotIn("hours", plan("--fit", *words))
        self.assertEqual(json.loads(plan("--fit", "--json", *words))[0]["run_seconds"], None)

    def test_what_a_node_is_taken_to_have_is_said(self):
        for words, sentence in ((("--device", "cuda", "--ranks", 16), "Nodes of 8 ranks are assumed: --ranks-per-node says"),
                                (("--device", "cuda", "--ranks", 12), "Nodes of 8 ranks are assumed"),
                                (("--device", "cpu", "--ranks", 16), "16 ranks on one node are assumed")):
            words = (*words, "--host-memory", "4TB")
            self.assertIn(sentence, plan("--model", "qwen3-0.6b", "--global-batch", 64, *words))
            for other in ((*words, "--ranks-per-node", 4), (*words[:3], 8, *words[4:])):
                self.assertNotIn(" assumed: --ranks-per-node", plan("--model", "qwen3-0.6b", "--global-batch", 64, *other))
        shape = ("--model", "qwen3-0.6b", "--device", "cuda", "--global-batch", 64, "--ranks", 16)
        self.assertEqual(json.loads(plan(*shape, "--json")), json.loads(plan(*shape, "--json", "--ranks-per-node", 8)))
        self.assertIn("Nodes of 8 ranks are assumed", plan("--fit", *shape, "--device-memory", "80GB"))

    def test_where_nothing_fits_the_nearest_is_named(self):
        text = plan("--fit", *self.FIT, "--device-memory", "4GB", status=DOES_NOT_FIT)
        self.assertRegex(text, r"^Nothing fits, of \d+ settings: the nearest, --.* of 4\.00 GB of a device \(--device-memory\)")

    def test_more_ranks_are_a_table(self):
        shape = ("--model", "qwen3-1.7b", "--seq", 4096, "--micro-batch", 4, "--global-batch", 16)
        read = json.loads(plan("--scale", "--json", *shape))
        self.assertEqual([one["ranks"] for one in read if one["reduce_group"] == 1], [2**i for i in range(10)])
        self.assertEqual([one["ranks"] for one in read if one["reduce_group"] == 8], [16, 32, 64, 128, 256, 512])
        for one in read:
            self.assertEqual(one["global_batch"], 16 * one["ranks"])
            self.assertEqual(one["nodes"], max(1, one["ranks"] // 8))
            self.assertEqual(one["run_seconds"], None)
            alone = json.loads(plan("--json", "--device", "cuda", *shape[:-1], one["global_batch"], "--ranks", one["ranks"],
                                    "--ranks-per-node", min(8, one["ranks"]), "--reduce-group", one["reduce_group"],
                                    status=0 if one["fits"] else DOES_NOT_FIT)) if one["ranks"] in (1, 64) else None
            if alone:
                self.assertAlmostEqual(alone["estimate"]["step_seconds"], one["step_seconds"])
                self.assertEqual(alone["device_bytes"], one["device_bytes"])
        text = plan("--scale", *shape, "--tokens", "100B", "--ranks-per-node", 4)
        self.assertRegex(text, r"^The global batch grows with the ranks: each has 4 micro-batches of 4 x 4096\ntokens a step")
        self.assertIn("Nodes have 4 ranks (--ranks-per-node)", text)
        self.assertIn("Nodes have 8 ranks (assumed; --ranks-per-node)", plan("--scale", *shape))
        self.assertEqual([int(line.split()[3]) for line in text.splitlines() if re.match(r" +\d+ +\d+ +1 ", line)],
                         [16 * 2**i for i in range(10)])
        self.assertIn("Not measured: the network: 45.0 GB/s a rank are assumed (--network-bandwidth)", text)
        hours = [float(line.split()[-1]) for line in text.splitlines() if re.match(r" +\d+ +\d+ +1 ", line)]
        self.assertEqual(hours, sorted(hours, reverse=True))
        self.assertTrue(all(len(line) <= 80 for line in text.splitlines()[:20]), text)
        text = plan("--scale", *shape, "--tokens", "1M")
        self.assertEqual(len(re.findall(r"(?m)^ +\d+ .*[ !] +0\.\d*[1-9]\d*$", text)), 16, text)  # hours that are not 0

    def test_tables_that_make_no_sense_are_refused(self):
        for sentence, words in (("--fit and --scale print two tables: give one of them", ("--fit", "--scale")),
                                ("--fit needs --device cuda", ("--fit", "--device", "cpu")),
                                ("--scale needs --device cuda", ("--scale", "--device", "cpu"))):
            self.assertIn(sentence, plan(*words, status=BAD_OPTIONS))
        run = subprocess.run([BIN / "train", "--fit"], capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, BAD_OPTIONS)
        self.assertIn("--fit belongs to --plan", run.stderr)


if __name__ == "__main__":
    unittest.main()
