"""A run under MPICH has the bits of one under the MPI of the build."""
import os
import subprocess
import unittest

from train_test import BIN, Case, environment, metrics, state_hash, with_small

MPICH = os.environ["MPICH_EXECUTABLE"]


class SecondMpi(Case):
    def test_five_steps_have_the_bits_of_the_first_mpi(self):
        first = self.out("first")
        self.succeed(2, first, "--steps", 5)
        for ranks in (1, 2, 3):
            second = self.out(f"second {ranks}")
            self.under_mpich(ranks, second, "--steps", 5)
            self.assertEqual(metrics(second), metrics(first), f"{ranks} ranks")
            self.assertEqual(state_hash(second), state_hash(first), f"{ranks} ranks")

    def under_mpich(self, ranks, out, *arguments):
        result = subprocess.run([MPICH, "-n", str(ranks), BIN.parent / "mpich" / "train", "--data", self.corpus, "--out",
                                 out, *map(str, with_small(*arguments))], capture_output=True, text=True,
                                env=environment(), check=False, stdin=subprocess.DEVNULL, timeout=100)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
