"""Files and folders that train makes have the modes that the user's umask leaves: a group can share a run, and
nobody sees one that is private."""
import os
import stat
import subprocess
import unittest

from train_test import BIN, MPIEXEC, Case, environment, with_small


class Umask(Case):
    def test_files_and_folders_of_a_run_follow_it(self):
        for umask in (0o002, 0o077):
            with self.subTest(umask=oct(umask)):
                out = self.out(f"umask {umask:o}") / "in a folder that is not there"
                result = subprocess.run(
                    [MPIEXEC, "-np", "2", BIN / "train", "--data", self.corpus, "--eval-data", self.held_out,
                     "--eval-every", "2", "--out", out,
                     *with_small("--steps", 4, "--save-every", 2, "--trace", "1:2")],
                    capture_output=True, text=True, env=environment(), check=False, umask=umask)
                self.assertEqual(result.returncode, 0, result.stderr)
                modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [out.parent, out, *out.rglob("*")]}
                wrong = {str(path.relative_to(out.parent)): oct(mode) for path, mode in modes.items()
                         if mode != (0o777 if path.is_dir() else 0o666) & ~umask}
                self.assertEqual(wrong, {})
                names = {path.name for path in modes}
                self.assertLessEqual({"metrics.jsonl", "trace.json", "step-00000004"}, names)


if __name__ == "__main__":
    os.umask(0o022)
    unittest.main()
