"""Checkpoints that are damaged, or cannot be read now, as the programs meet them: no run begins anew, and
nothing is renamed or deleted, because a step could not be read."""
import errno
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from train_test import BAD_FILE, BIN, Case, metrics, train, with_small

SAID_BY_RUNS = {".lock", "warnings.jsonl"}  # what a refused run may write: who it was, and that it was refused


def content(out):
    """Every file of a run with its hash, but for what a refused run may write."""
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(out.rglob("*")) if path.is_file() and path.name not in SAID_BY_RUNS}


def flip(path, place):
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0] ^ 4
        file.seek(place)
        file.write(bytes([byte]))


def first_array(step):
    """Shard 0 of a step, and where its weights, first and second moments begin."""
    line = next(line for line in (step / "CHECKSUMS").read_text().splitlines() if line.startswith("shard-00000"))
    places = re.search(r"arrays (\d+)\+\d+ (\d+)\+\d+ (\d+)\+", line)
    return step / line.split()[0], [int(place) for place in places.groups()]


class Unreadable(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory(prefix="tessera-bad-disk-")
        cls.addClassCleanup(folder.cleanup)
        library = pathlib.Path(folder.name) / "disk.so"  # LD_PRELOAD is cut at spaces and colons
        os.symlink(os.environ["BAD_DISK"], library)
        first = os.environ.get("PRELOAD_FIRST", "")
        if first:
            os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        cls.preload = ":".join(filter(None, (first, str(library))))
        cls.saved = cls.folder / "saved"
        result = train(2, "--data", cls.corpus, "--out", cls.saved, *with_small("--steps", 6, "--save-every", 2))
        assert result.returncode == 0, result.stderr

    def copy(self, name):
        out = self.out(name)
        shutil.copytree(self.saved, out)
        return out

    def bad_disk(self, part, **more):
        return {"LD_PRELOAD": self.preload, "BAD_DISK_READ": part, "BAD_DISK_HASTY": "1", **more}

    def refuse(self, out, *arguments, **more):
        """A run that ends with 3 and leaves everything in its folder as it was."""
        before = content(out)
        result = train(2, "--data", self.corpus, "--out", out, *with_small("--steps", 8, *arguments), **more)
        self.assertEqual(result.returncode, BAD_FILE, result.stdout + result.stderr)
        self.assertEqual(content(out), before)
        return result.stderr

    def test_steps_that_are_all_damaged_are_neither_restarted_nor_renamed_nor_deleted(self):
        middle = {"CHECKSUMS": 200, "manifest.h5": 3000}
        # every byte of every file: tests/runtime/checkpoint/damage_test.cpp
        for region in ("CHECKSUMS", "manifest.h5", "header", "exp_avg_sq"):
            out = self.copy(f"all {region}")
            for step in sorted(out.glob("step-*")):
                shard, arrays = first_array(step)
                if region in middle:
                    flip(step / region, middle[region])
                elif region == "header":
                    flip(shard, 8)
                else:
                    flip(shard, arrays[("master", "exp_avg", "exp_avg_sq").index(region)] + 40)
            with self.subTest(region=region):
                reported = self.refuse(out, "--keep", 1)
                self.assertIn("holds 3 steps, but none that can be loaded", reported)
                for step in ("step-00000006", "step-00000004", "step-00000002"):
                    self.assertRegex(reported, step + " is damaged")
                self.assertRegex(reported, "give another --out, with --resume none to start anew")

    def test_a_step_that_cannot_be_read_is_not_passed_over(self):
        out = self.copy("errors")
        for part, code in (("step-00000006/shard-00001", errno.EIO), ("step-00000006/manifest", errno.ESTALE),
                           ("step-00000006/CHECKSUMS", errno.EACCES)):
            with self.subTest(part=part):
                reported = self.refuse(out, "--keep", 1, **self.bad_disk(part, BAD_DISK_READ_ERRNO=str(code)))
                self.assertRegex(reported, r"step-00000006 is unreadable: cannot read .*" + re.escape(part) + ".*"
                                 + os.strerror(code) + r" \(tried for 30 s\)")
                self.assertNotIn("passing over", reported)
        # in the middle of the data, and for one rank alone
        reported = self.refuse(out, **self.bad_disk("step-00000006/shard-00001", BAD_DISK_READ_RANK="1"))
        self.assertRegex(reported, r"rank 1 .*cannot read .*shard-00001.*Input/output error \(tried for 30 s\)")

    def test_a_description_of_tokens_that_cannot_be_read_is_not_called_foreign(self):
        reported = self.refuse(self.copy("description"), **self.bad_disk("/tokens.json"))
        self.assertRegex(reported, r"cannot read .*/tokens.json: Input/output error")

    def test_a_read_that_recovers_goes_on(self):
        out = self.copy("recovers")
        result = self.succeed(2, out, "--steps", 8, **self.bad_disk("step-00000006/", BAD_DISK_READ_TIMES="5"))
        self.assertIn("trying again for up to 30 s", result.stderr)
        self.assertIn("continuing after step 6", result.stdout)

    def test_retention_leaves_what_it_cannot_read(self):
        out = self.copy("retention")
        self.succeed(2, out, "--steps", 8, "--keep", 1, **self.bad_disk("step-00000002/"))
        self.assertEqual(sorted(path.name for path in out.glob("step-*")), ["step-00000002", "step-00000008"])

    def test_retention_does_not_count_damaged_data(self):
        out = self.copy("rot")
        shard, arrays = first_array(out / "step-00000004")
        flip(shard, arrays[2] + 8)
        result = self.succeed(2, out, "--steps", 8, "--keep", 2)
        self.assertIn("step-00000004 is damaged", result.stderr)
        self.assertIn("it stays, and does not count for --keep", result.stderr)
        self.assertEqual(sorted(path.name for path in out.glob("step-*")),
                         ["step-00000004", "step-00000006", "step-00000008"])

    def test_damaged_data_and_damaged_headers_have_the_same_answer(self):
        for region in ("header", "data"):
            out = self.copy(f"newest {region}")
            shard, arrays = first_array(out / "step-00000006")
            flip(shard, 8 if region == "header" else arrays[0])
            with self.subTest(region=region):
                # by its own folder it is refused; by the run's folder the one before is taken
                self.assertIn("is damaged", self.refuse(out, "--resume", out / "step-00000006"))
                for source in ("--init", "--resume") if region == "data" else ():
                    result = self.succeed(2, self.out("elsewhere"), "--steps", 7, source, out)
                    self.assertRegex(result.stderr, r"passing over .*step-00000006: damaged")
                result = self.succeed(2, out, "--steps", 7)
                self.assertRegex(result.stderr, r"passing over .*step-00000006: damaged")
                self.assertIn("continuing after step 4", result.stdout)
                # damage of the data shows once the lines of the start are out: they come again
                self.assertEqual("not from step-00000006, which is damaged" in result.stdout, region == "data", result.stdout)
                lines = re.sub(r"\n {8}", " ", result.stdout).splitlines()
                models = [re.search(r"step-0+(\d)", line)[1] for line in lines if line.startswith("model")]
                self.assertEqual(models, ["6", "4"] if region == "data" else ["4"], result.stdout)
                self.assertIn("steps   5 to 7, ", [line for line in lines if line.startswith("steps ")][-1])
                start = (out / "start.txt").read_text()
                self.assertRegex(start, r"continued from .*step-00000004\n")
                self.assertRegex(start, r"# steps +5 to 7, ")
                self.assertEqual(len(list(out.glob(".superseded-step-00000006*"))), 1)
                self.assertEqual([row[0] for row in metrics(out)], list(range(1, 8)))

    def test_locks_of_others_and_the_variable_of_hdf5_do_not_matter(self):
        out = self.copy("locked")
        files = [open(path, "rb") for path in [self.corpus, *out.glob("step-*/*")]]
        for file in files:
            self.addCleanup(file.close)
            fcntl.flock(file, fcntl.LOCK_EX)
        result = self.succeed(2, out, "--steps", 7, HDF5_USE_FILE_LOCKING="TRUE")
        self.assertIn("continuing after step 6", result.stdout)
        for value in ("TRUE", "BEST_EFFORT"):
            subprocess.run([BIN / "inspect", out / "step-00000006", "--verify"], check=True, capture_output=True,
                           env=dict(os.environ, HDF5_USE_FILE_LOCKING=value))

    def test_tools_neither_pass_over_what_they_cannot_read(self):
        out = self.copy("tools")
        for arguments in (["convert", "export", out, self.folder / "exported"], ["inspect", out],
                          ["generate", out, "--prompt", "a"], ["inspect", out / "step-00000004", "--diff", out]):
            with self.subTest(tool=arguments[0]):
                result = subprocess.run([BIN / arguments[0], *arguments[1:]], capture_output=True, text=True,
                                        check=False, env=dict(os.environ, **self.bad_disk("step-00000006/shard")))
                self.assertEqual(result.returncode, BAD_FILE, result.stdout + result.stderr)
                self.assertRegex(result.stderr, r"step-00000006 is unreadable: cannot read .*Input/output error")
        self.assertFalse((self.folder / "exported").exists())
        # damaged data is found while reading, and the step before is read instead
        shard, arrays = first_array(out / "step-00000006")
        flip(shard, arrays[0])
        for arguments in (["convert", "export", out, self.folder / "exported"], ["generate", out, "--prompt", "a"]):
            result = subprocess.run([BIN / arguments[0], *arguments[1:]], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stderr, r"passing over .*step-00000006, which is damaged")


if __name__ == "__main__":
    unittest.main()
