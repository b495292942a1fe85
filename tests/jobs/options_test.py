"""Numbers, switches and names of options as users give them to every program: refused in one sentence with exit code 2,
or taken; never a crash. What train's own table takes is in tests/runtime/options_test.cpp."""
import os
import pathlib
import re
import resource
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["TESSERA_BIN"])
BAD_OPTIONS, BAD_FILE = 2, 3
TOO_LARGE = ("2147483648", "4294967297", str(2**62), str(2**63 - 1), str(2**64), "1e400", "inf", "nan")
HOSTILE = ("0", "-1", "", *TOO_LARGE)
NUMBERS = {"N", "STEP", "SIZE", "TFLOPS", "T", "P", "ID", "SHARE"}


def run(program, *arguments, **more):
    return subprocess.run([BIN / program, *map(str, arguments)], capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, timeout=100, **more)


def number_options(program):
    """Names of the options that help shows with a number."""
    text = run(program, "--help").stdout
    return [name for name, shown in re.findall(r"^\s+--([\w-]+) (\w+)", text, re.M) if shown in NUMBERS]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="tessera options #")
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.text = cls.folder / "text.txt"
        cls.text.write_text("the lazy dog sleeps under the quick fox\n" * 200)
        cls.corpus = cls.folder / "corpus.h5"
        subprocess.run([BIN / "tokenize", "--tokenizer", "bytes", "--out", cls.corpus, cls.text], check=True,
                       capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def ends_well(self, result, codes):
        self.assertIn(result.returncode, codes, result.stdout + result.stderr)
        self.assertNotIn("terminate called", result.stderr)
        if result.returncode != 0:
            self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)

    def refused(self, sentence, program, *arguments):
        result = run(program, *arguments)
        self.ends_well(result, (BAD_OPTIONS,))
        self.assertIn(sentence, result.stderr)


class Programs(Case):
    def test_no_number_crashes_a_program(self):
        words = {"generate": ("/nowhere", "--prompt", "a"), "report": ("/nowhere",),
                 "convert": ("export", "/nowhere", self.folder / "exported"),
                 "tokenize": ("--out", self.folder / "again.h5", self.text)}
        walked = 0
        for program, needed in words.items():
            options = number_options(program)
            self.assertGreater(len(options), 0, program)
            for name in options:
                for value in HOSTILE:
                    with self.subTest(program=program, option=name, value=value):
                        result = run(program, *needed, f"--{name}={value}")
                        self.ends_well(result, (0, BAD_OPTIONS, BAD_FILE))
                        if value in (str(2**64), "1e400", "nan", ""):
                            self.assertEqual(result.returncode, BAD_OPTIONS, result.stderr)
                        walked += 1
        self.assertGreater(walked, 100)

    def test_no_number_crashes_a_benchmark(self):
        local = {"attention": ("repetitions", "threads"), "kernels": ("repetitions", "megabytes"),
                 "gemm": ("repetitions", "square", "sustained", "tokens"),
                 "flce": ("rounds", "tokens", "vocab", "hidden")}
        for name, options in local.items():
            for option in options:
                for value in ("-1", *TOO_LARGE, ""):
                    with self.subTest(benchmark=name, option=option, value=value):
                        self.ends_well(run("bench", name, f"--{option}={value}"), (BAD_OPTIONS,))
        # sizes, which may well be large, and benchmarks that start MPI
        ranks = {"attention": ("slice-bytes",), "step": ("measured-steps", "warm-up", "breakdown", "vocab"), "checkpoint": ("repetitions", "bytes"),
                 "collectives": ("repetitions", "max-mb", "mb"), "paging": ("repetitions", "buffers", "page-bytes")}
        for name, options in ranks.items():
            for option in options:
                with self.subTest(benchmark=name, option=option):
                    self.ends_well(run("bench", name, f"--{option}={2**64}"), (BAD_OPTIONS,))

    def test_no_number_crashes_a_search_for_what_fits(self):
        common = {"--model": "d12", "--seq": "64", "--global-batch": "1"}
        for option in ("--seq", "--global-batch", "--ranks"):
            for value in ("-1", "1e400", str(2**64), "", "9" * 5000):
                with self.subTest(option=option, value=value[:30]):
                    words = [word for pair in {**common, option: value}.items() for word in pair]
                    self.ends_well(run("train", "--plan", "--fit", *words), (BAD_OPTIONS,))

    def test_near_names_are_suggested_by_every_program(self):
        for program, given, wanted in (
                ("train", "--batch-size", "--micro-batch or --global-batch?"), ("train", "--learning-rate", "--lr?"),
                ("generate", "--max-new-tokens", "--max-tokens?"), ("generate", "--temprature", "--temperature?"),
                ("tokenize", "--vocab-size", "--vocab?"), ("tokenize", "--output", "--out?"),
                ("convert", "--max-shard-size", "--max-shard-bytes?"), ("inspect", "--verfy", "--verify?"),
                ("report", "--output-dir", "--out?"), ("report", "--tensorbord", "--tensorboard?")):
            with self.subTest(program=program, given=given):
                self.refused(f"there is no option {given}; did you mean {wanted}", program, given, "4")
        result = run("bench", "gemm", "--repetition", "--squre", "4")
        self.assertEqual(result.returncode, BAD_OPTIONS)

    def test_switches_take_true_and_false_in_every_program(self):
        for program, switch in (("inspect", "--verify"), ("inspect", "--json"), ("tokenize", "--check")):
            for words, code in (((switch, "true"), 3), ((f"{switch}=true",), 3), ((switch, "false"), None),
                                ((f"{switch}=maybe",), BAD_OPTIONS)):
                with self.subTest(program=program, words=words):
                    result = run(program, *words, self.text if program == "tokenize" else self.folder)
                    if code is not None:
                        self.assertEqual(result.returncode, code, result.stderr)
                    self.assertNotIn("stands on the command line", result.stderr)
        self.refused("--check 'maybe': give true or false", "tokenize", "--check=maybe", self.text)

    def test_folders_that_are_no_runs_are_named_for_what_they_are(self):
        theirs = self.folder / "theirs"
        theirs.mkdir()
        (theirs / "config.json").write_text("{}")
        result = run("inspect", theirs)
        self.assertEqual(result.returncode, BAD_FILE)
        self.assertEqual(result.stdout, "")
        self.assertIn(f"{theirs} is a Hugging Face folder, not a run: convert import {theirs} OUT", result.stderr)
        self.refused(f"--model {theirs} is a folder: train --init {theirs} starts from the weights in it; --model "
                     f"{theirs}/config.json makes a new model", "train", "--plan", "--model", theirs)


class Runs(Case):
    def train(self, *arguments, name="out", **more):
        given = [word.split("=")[0] for word in map(str, arguments)]
        small = {"--seq": "32", "--steps": "1", "--micro-batch": "1", "--global-batch": "2"}
        return run("train", "--data", self.corpus, "--out", self.folder / name,
                   *[f"{option}={value}" for option, value in small.items() if option not in given], *arguments, **more)

    def test_large_numbers_train_or_are_refused(self):
        for words in (("--threads=100000",), ("--threads=4294967297",), (f"--global-batch={2**62}",),
                      (f"--micro-batch={2**57}",), (f"--batched-forward={2**40}",), ("--ranks=2147483648",),
                      ("--sample-every=1", "--sample-prompt=a", f"--sample-tokens={2**63 - 1}"),
                      ("--sample-every=1", "--sample-prompt=a", f"--sample-tokens={2**31 - 1}"),
                      (f"--reduce-group={2**62}",), (f"--timeout-seconds={10**300}",)):
            with self.subTest(words=words):
                result = self.train(*words)
                self.assertEqual(result.returncode, BAD_OPTIONS, result.stdout + result.stderr)
                self.assertIn(words[-1].split("=")[0], result.stderr)
                self.assertNotIn("more than once", result.stderr)
        for words in (("--batched-forward=4096",), ("--reduce-group=2147483647",), ("--timeout-seconds=1e9", "--keep=1000000"),
                      (f"--seed={2**63 - 1}", "--max-seconds=1e9")):
            with self.subTest(words=words):
                result = self.train(*words, "--save-at-end", "false", name="unsaved")
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_several_files_in_one_word_are_refused_with_how_to_give_them(self):
        both = f"{self.corpus},{self.corpus}"
        result = run("train", "--data", both, "--out", self.folder / "both", "--steps", "1")
        self.assertEqual(result.returncode, BAD_OPTIONS, result.stderr)
        self.assertIn(f"--data {both}: No such file or directory; give token files (tokenize makes them), with spaces "
                      "between several", result.stderr)

    @unittest.skipIf("TESSERA_SANITIZED" in os.environ, "a sanitizer takes memory of its own")
    def test_a_run_that_cannot_fit_is_refused_before_it_takes_memory_for_batches(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        result = self.train("--micro-batch", "2097152", "--global-batch", "33554432", preexec_fn=limit)
        self.assertEqual(result.returncode, BAD_OPTIONS, result.stderr)
        self.assertIn("the run needs", result.stderr)

    def test_a_config_json_beside_weights_says_that_its_weights_are_random(self):
        theirs = self.folder / "model"
        trained = self.train("--save-at-end", "true", name="trained")
        self.assertEqual(trained.returncode, 0, trained.stderr)
        exported = run("convert", "export", self.folder / "trained", theirs)
        self.assertEqual(exported.returncode, 0, exported.stderr)
        common = ("--data", self.corpus, "--seq", "32", "--steps", "1", "--micro-batch", "1", "--global-batch", "2")
        fresh = run("train", *common, "--out", self.folder / "fresh", "--model", theirs / "config.json")
        self.assertEqual(fresh.returncode, 0, fresh.stderr)
        self.assertIn(f"the weights are random (--seed 0), in the shape of {theirs}/config.json; to start from the weights "
                      f"beside it: --init {theirs}", fresh.stdout)
        started = run("train", *common, "--out", self.folder / "started", "--init", theirs)
        self.assertEqual(started.returncode, 0, started.stderr)
        self.assertNotIn("random", started.stdout)

    def test_the_configuration_that_a_run_prints_makes_the_same_run(self):
        odd = self.folder / 'odd "name" #2.h5'
        odd.write_bytes(self.corpus.read_bytes())
        first = run("train", "--data", odd, "--out", self.folder / "printed", "--seq", "32", "--steps", "1",
                    "--micro-batch", "1", "--global-batch", "2", "--lr", "1e-3", "--verbose")
        self.assertEqual(first.returncode, 0, first.stderr)
        lines = [line for line in first.stdout.splitlines() if re.match(r"^[\w-]+ = ", line)]
        self.assertGreater(len(lines), 15)
        config = self.folder / "printed.cfg"
        config.write_text("\n".join(lines) + "\n")
        self.assertEqual([line for line in lines if line.startswith("out = ")],
                         [f'out = "{self.folder}/printed"' if "#" in str(self.folder) else f"out = {self.folder}/printed"])
        second = run("train", "--config", config, "--out", self.folder / "again")
        self.assertEqual(second.returncode, 0, second.stderr)
        self.assertEqual([line.replace("/again", "/printed") for line in second.stdout.splitlines()
                          if re.match(r"^[\w-]+ = ", line)], lines)
        self.assertEqual(second.stdout.rsplit("parameters ", 1)[1], first.stdout.rsplit("parameters ", 1)[1])


if __name__ == "__main__":
    unittest.main()
