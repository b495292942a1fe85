"""train --export as a user runs it: the files of `convert export`, byte for byte, on any number of ranks; runs that
continue, die, or find no room; and folders that are not theirs."""
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time
import unittest

from failures_test import FailureCase
from train_test import (BAD_OPTIONS, BIN, CANNOT_WRITE, MPIEXEC, Case, environment, events, train, wait_for_ranks,
                        with_small)

MARK = ".tessera-export"


def contents(folder):
    """Hashes of what a model's folder holds, by name, but for the mark of the run."""
    return {file.name: hash_of(file) for file in folder.iterdir() if file.name != MARK}


def hash_of(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def mark(folder):
    return json.loads((folder / MARK).read_text())


class ExportCase(Case):
    def converted(self, run, name):
        """What `convert export` makes of a run or a step."""
        out = self.out(name)
        subprocess.run([BIN / "convert", "export", run, out], check=True, capture_output=True)
        return contents(out)


class Bits(ExportCase):
    def test_any_number_of_ranks_writes_what_convert_writes(self):
        paged = ["--resident-bytes", "none", "--page-bytes", "64KiB"]
        packed = ["--precision", "bf16-params", "--master-weights", "packed"]
        for precision, settings in (("f32", [(1, []), (2, paged), (3, []), (5, paged)]),
                                    ("bf16-params", [(1, packed), (2, packed + paged), (3, ["--precision", "bf16-params"]),
                                                     (5, packed + paged)])):
            expected = None
            for ranks, extra in settings:
                with self.subTest(precision=precision, ranks=ranks, extra=extra):
                    out, model = self.out(f"{precision} {ranks}"), self.out(f"{precision} {ranks} model")
                    self.succeed(ranks, out, "--steps", 3, "--export", model, *extra)
                    got = contents(model)
                    self.assertEqual(set(got), {"config.json", "generation_config.json", "model.safetensors"})
                    self.assertEqual(got, self.converted(out, "converted"))
                    expected = expected or got
                    self.assertEqual(got, expected)

    def test_an_export_on_the_way_is_that_of_its_step(self):
        """Steps continue while it is written: what is in it is what was there when it began."""
        out, model = self.out("way"), self.out("way model")
        kept = {}
        with subprocess.Popen([MPIEXEC, "-np", "2", BIN / "train", "--data", self.corpus, "--out", out, "--export", model,
                               *with_small("--steps", 90, "--save-every", 3, "--export-every", 3, "--keep", 100)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()) as process:
            while process.poll() is None:
                step, files = whole_export(model)
                if step:
                    kept[step] = files
                time.sleep(0.01)
            output = process.stdout.read()
        self.assertEqual(process.returncode, 0, output)
        kept[90] = contents(model)
        self.assertGreater(len(kept), 2, output)
        for step, files in kept.items():
            self.assertEqual(files, self.converted(out / f"step-{step:08}", "of a step"), f"step {step}")
        self.assertEqual({row["step"] for row in events(out, "export")}, set(range(3, 91, 3)))


def whole_export(model):
    """The step and the contents of an export that has its config.json, as a reader gets them: no file was replaced
    between the look at the first and at the last. (None, None) where one was."""
    try:
        before = versions(model)
        step, files = mark(model)["step"], contents(model)
        still = before == versions(model) and "config.json" in files and not any(name.startswith(".") for name in files)
        return (step, files) if still else (None, None)
    except (OSError, ValueError):  # a folder inside, or a file that has been replaced
        return None, None


def versions(folder):
    """What tells each file of a folder from one that takes its place."""
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in folder.iterdir()}


class Reruns(ExportCase):
    def test_the_same_run_replaces_its_export_and_what_is_missing_is_written_again(self):
        out, model = self.out("run"), self.out("run model")
        self.succeed(2, out, "--steps", 4, "--export", model)
        (model / "README.md").write_text("mine")
        first = contents(model)
        again = self.succeed(3, out, "--steps", 4, "--export", model)
        self.assertNotIn("exported", again.stdout)
        (model / "config.json").unlink()
        (model / ".partial-00000004.12345678").mkdir()
        (model / ".partial-00000004.12345678/model.safetensors").write_text("half of it")
        self.assertIn("exported step 4 in ", self.succeed(3, out, "--steps", 4, "--export", model).stdout)
        self.assertEqual(contents(model), first)
        self.succeed(1, out, "--steps", 6, "--export", model)
        self.assertEqual(mark(model)["step"], 6)
        self.assertEqual((model / "README.md").read_text(), "mine")
        self.assertEqual({**self.converted(out, "six"), "README.md": hash_of(model / "README.md")}, contents(model))

    def test_an_export_needs_no_checkpoint_and_goes_where_the_run_is(self):
        out = self.out("alone")
        model = out / "model"
        self.succeed(2, out, "--steps", 3, "--export", model, "--save-at-end", "false")
        self.assertEqual(list(out.glob("step-*")), [])
        self.assertIn("model.safetensors", contents(model))
        reader = subprocess.run([MPIEXEC, "-np", "2", BIN / "train", "--init", model, "--data", self.corpus, "--out",
                                 self.out("reader"), *with_small("--steps", 1)], capture_output=True, text=True, check=False)
        self.assertEqual(reader.returncode, 0, reader.stderr)
        # the run that follows is another one, which must not take its place
        self.refused(2, BAD_OPTIONS, f"--export {model} holds an export of another run", "--data", self.corpus, "--out", out,
                     *with_small("--steps", 3, "--export", model))
        # nor may a run that begins where this one ended
        self.refused(1, BAD_OPTIONS, f"--export {model} is not empty and does not hold an export of this run",
                     "--data", self.corpus, "--out", self.out("other"),
                     *with_small("--steps", 3, "--export", self.without_mark(model)))

    @staticmethod
    def without_mark(model):
        (model / MARK).unlink()
        return model

    def test_a_branch_does_not_replace_the_export_of_the_run_that_it_left(self):
        out, model = self.out("trunk"), self.out("trunk model")
        self.succeed(1, out, "--steps", 2, "--export", model)
        self.refused(1, BAD_OPTIONS, f"holds an export of another run (of {out})", "--data", self.corpus, "--out",
                     self.out("branch"), *with_small("--steps", 4, "--resume", out, "--export", model))
        self.assertEqual(mark(model)["step"], 2)


class Refusals(ExportCase):
    def test_a_folder_that_is_not_an_export_of_this_run_is_refused(self):
        out = self.out("out")
        theirs, file = self.out("theirs"), self.out("a file")
        theirs.mkdir()
        (theirs / "config.json").write_text("{}")
        file.write_text("mine")
        (self.folder / "step-00000007").mkdir(exist_ok=True)
        outs = (self.out(f"out {number}") for number in range(10))

        def case(sentence, *arguments, out=None):
            return sentence, ["--data", self.corpus, "--out", out or next(outs), *with_small("--steps", 2, *arguments)]

        self.all_refused(2, BAD_OPTIONS, [
            case(f"--export {theirs} is not empty and does not hold an export of this run: give a new folder", "--export", theirs),
            case(f"--export {out} is --out too: give a folder for the model alone", "--export", out, out=out),
            case("step-00000007 is the name of a step", "--export", self.folder / "step-00000007/model"),
            case("--export-every needs --export", "--save-every", 1, "--export-every", 1),
            case("--export-every 3 is not a multiple of --save-every 2: an export goes with the save of its step",
                 "--export", self.folder / "x", "--save-every", 2, "--export-every", 3),
            case("--export-every 3 is not a multiple of --save-every 0",
                 "--export", self.folder / "x", "--export-every", 3)])
        self.all_refused(2, BAD_OPTIONS, [
            case(f"--export {file} is there and is not a folder: give another one", "--export", file),
            case(f"{file} is not a folder: give another one", "--export", file / "model")])
        self.assertEqual((theirs / "config.json").read_text(), "{}")
        self.assertEqual(file.read_text(), "mine")
        self.assertFalse((self.folder / "x").exists())
        self.assertEqual(list(out.glob("step-*")), [])

    def test_a_folder_that_cannot_be_made_ends_the_start(self):
        out = self.out("start")
        self.refused(2, CANNOT_WRITE, "/proc/tessera", "--data", self.corpus, "--out", out,
                     *with_small("--steps", 2, "--export", "/proc/tessera"))
        self.assertFalse((out / "metrics.jsonl").exists())

    def test_what_does_nothing_is_reported_and_a_plan_takes_the_options(self):
        out, model = self.out("beyond"), self.out("beyond model")
        result = self.succeed(1, out, "--steps", 2, "--save-every", 4, "--export", model, "--export-every", 4)
        self.assertIn("--export-every 4 is beyond --steps 2: one export, after the last step", result.stdout)
        self.assertIn(f"{model} will have no tokenizer", result.stdout)
        plan = train(1, "--plan", "--model", "tiny", "--export", model, "--steps", 2)
        self.assertEqual(plan.returncode, 0, plan.stderr)


class Failures(FailureCase, ExportCase):
    def full(self, rank, out, *arguments):
        """A run where files of exports find no room on one rank."""
        return train(2, "--data", self.corpus, "--out", out, *with_small(*arguments), LD_PRELOAD=self.bad_disk,
                     BAD_DISK_FULL_RANK=str(rank), BAD_DISK_FULL_PART="model.safetensors")

    def test_no_room_costs_the_export_and_not_the_checkpoint(self):
        for rank in 0, 1:  # which lays out the files; which has no room for its part of them
            out, model = self.out(f"full {rank}"), self.out(f"full model {rank}")
            arguments = ["--steps", 4, "--save-every", 2, "--export", model, "--export-every", 2]
            result = self.full(rank, out, *arguments)
            self.assertEqual(result.returncode, CANNOT_WRITE, result.stdout + result.stderr)
            for step in 2, 4:
                self.assertEqual(result.stderr.count(f"the export of step {step} failed: rank {rank}: cannot write {model}"),
                                 1, result.stderr)
            self.assertIn("no space left on the device", result.stderr)
            self.assertEqual(sorted(folder.name for folder in out.glob("step-*")), ["step-00000002", "step-00000004"])
            self.assertEqual({file.name for file in model.iterdir()}, {MARK})
            self.assertEqual([row["step"] for row in events(out, "export failed")], [2, 4])
            # there is room again: the same command writes what is missing
            self.succeed(2, out, *arguments)
            self.assertEqual(contents(model), self.converted(out, "full converted"))

    def test_an_earlier_export_stays_where_the_next_one_fails_and_the_run_stops_if_it_shall(self):
        out, model = self.out("stays"), self.out("stays model")
        self.succeed(2, out, "--steps", 2, "--export", model)
        before = contents(model)
        result = self.full(1, out, "--steps", 6, "--save-every", 2, "--export", model, "--export-every", 2,
                           "--on-save-failure", "stop")
        self.assertEqual(result.returncode, CANNOT_WRITE, result.stderr)
        self.assertEqual(result.stderr.count("the export of step 4 failed"), 1, result.stderr)
        self.assertNotIn("step 6 failed", result.stderr)
        self.assertEqual(contents(model), before)
        self.assertEqual(mark(model)["step"], 2)

    def test_a_checkpoint_that_fails_does_not_cost_the_export(self):
        out, model = self.out("shard"), self.out("shard model")
        result = train(2, "--data", self.corpus, "--out", out, *with_small("--steps", 2, "--export", model),
                       LD_PRELOAD=self.bad_disk, BAD_DISK_FULL_RANK="1")
        self.assertEqual(result.returncode, CANNOT_WRITE, result.stderr)
        self.assertIn("the save of step 2 failed: rank 1: cannot write ", result.stderr)
        self.assertIn("exported step 2 in", result.stdout)
        self.assertIn("model.safetensors", contents(model))
        self.assertEqual(list(out.glob("step-*")) + list(out.glob(".tmp-*")), [])

    def test_who_is_killed_leaves_a_whole_export_or_none(self):
        out, model = self.out("killed"), self.out("killed model")
        moments, whole = random.Random(5), 0
        arguments = ["--steps", 100000, "--save-every", 1, "--export", model, "--export-every", 1, "--keep", 1000]
        for attempt in range(6):
            with subprocess.Popen([MPIEXEC, "-np", "2", BIN / "train", "--data", self.corpus, "--out", out,
                                   *map(str, with_small(*arguments))], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                  text=True, env=environment()) as process:
                pids = wait_for_ranks(process.pid, "train", 2)
                before = mark(model)["step"] if (model / MARK).exists() else None
                end = time.monotonic() + 60
                while (not (model / MARK).exists() or mark(model)["step"] == before) and time.monotonic() < end:
                    self.assertIsNone(process.poll(), "the run ended by itself")
                    time.sleep(0.01)
                time.sleep(moments.random() * 0.3)
                os.kill(pids[attempt % 2], signal.SIGKILL)
                output = process.communicate(timeout=60)[1]
            other = [line for line in output.splitlines() if "to continue, with your launcher's options" not in line]
            self.assertNotIn("--export", "\n".join(other))
            if (model / "config.json").exists():
                whole += 1
                step = out / f"step-{mark(model)['step']:08}"
                got = {name: hash_of(model / name) for name in mark(model)["files"]}
                # of a step that was saved before it was exported
                self.assertEqual(got, self.converted(step, "of the killed"))
        self.assertGreater(whole, 0)


if __name__ == "__main__":
    unittest.main()
