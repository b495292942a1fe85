"""Several evaluation sets by name, and the checkpoint with the lowest loss of one of them, on any number of ranks and in runs
that continue."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from data_test import Case, evaluations  # noqa: E402
from train_test import BAD_OPTIONS, BIN, MPIEXEC, environment, events, state_hash, with_small  # noqa: E402


def inspected(out):
    return json.loads(subprocess.run([BIN / "inspect", out, "--json"], capture_output=True, text=True, check=True).stdout)


def steps_of(out):
    return [int(path.name[5:]) for path in sorted(out.glob("step-*"))]


class Sets(Case):
    def test_each_set_is_evaluated_by_name_as_if_it_were_alone_on_any_number_of_ranks(self):
        code = self.counting("code", count=700)
        for ranks in (1, 3):
            out = self.out(f"two sets on {ranks}")
            result = self.succeed(ranks, out, "--steps", 4, "--eval-every", 2, "--eval-data", f"chat={self.held_out}",
                                  f"code-2.x={code}", "--eval-sequences", 5)
            found = evaluations(out)
            self.assertEqual([(line["step"], line["eval_name"]) for line in found],
                             [(2, "chat"), (2, "code-2.x"), (4, "chat"), (4, "code-2.x")])
            for name, file in (("chat", self.held_out), ("code-2.x", code)):
                self.assertTrue([row for row in events(out, "evaluation") if f"evaluations of {name} take 5 of" in row["text"]])
                self.assertEqual(len(re.findall(rf"^evaluation {re.escape(name)} at step [24]: loss", result.stdout, re.M)), 2)
                alone = self.out(f"{name} alone")
                plain = self.succeed(2, alone, "--steps", 4, "--eval-every", 2, "--eval-data", file, "--eval-sequences", 5)
                self.assertIn("\nevaluation at step 2: loss", plain.stdout)
                named = [{key: value for key, value in line.items() if key != "eval_name"}
                         for line in found if line["eval_name"] == name]
                self.assertEqual(evaluations(alone), named)
            sets = events(out, "configuration")[0]["eval_sets"]
            self.assertEqual([(one["name"], one["file"], one["sequences"]) for one in sets],
                             [("chat", str(self.held_out), 5), ("code-2.x", str(code), 5)])
        curves = self.folder / "curves"
        subprocess.run([BIN / "report", out, "--tensorboard", curves], check=True, capture_output=True)
        written = b"".join(path.read_bytes() for path in curves.rglob("events.*"))
        self.assertIn(b"eval/chat/loss", written)
        self.assertIn(b"eval/code-2.x/accuracy", written)
        page = self.folder / "page.html"
        subprocess.run([BIN / "report", out, "--out", page], check=True, capture_output=True)
        self.assertIn('"eval_name":["chat","code-2.x","chat","code-2.x"]', page.read_text().replace(" ", ""))

    def test_sets_without_names_of_their_own_are_refused_alike_on_all_ranks(self):
        common = ("--data", self.corpus, "--out", self.out("refused"), *with_small("--steps", 2))
        both = f"--eval-data {self.held_out}: of 2 files each needs a name; write NAME={self.held_out}"
        self.all_refused(3, BAD_OPTIONS, [
            (both, [*common, "--eval-data", self.held_out, f"code={self.corpus}"]),
            (f"--eval-data gives the name code to {self.held_out} and to {self.corpus}: give each its own",
             [*common, "--eval-data", f"code={self.held_out}", f"code={self.corpus}"]),
            ("--eval-data chat /nowhere.h5: No such file or directory", [*common, "--eval-data", "chat=/nowhere.h5"]),
            ("--eval-data a/b=c.h5: No such file or directory", [*common, "--eval-data", "a/b=c.h5"])])

    def test_a_file_with_an_equals_sign_in_its_name_is_a_file(self):
        odd = self.folder / "a=b.h5"
        odd.write_bytes(self.held_out.read_bytes())
        out = self.out("odd name")
        result = subprocess.run([MPIEXEC, "-np", "2", BIN / "train", "--data", self.corpus, "--out", out,
                                 *with_small("--steps", 1), "--eval-data", "a=b.h5"], cwd=self.folder, env=environment(),
                                capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=250)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("eval_name", evaluations(out)[-1])
        config = self.folder / "sets.cfg"
        config.write_text(f"eval-data = one={self.held_out}\neval-data = two={self.held_out}\n")
        self.succeed(1, self.out("of a file"), "--steps", 1, "--config", config)
        self.assertEqual([line["eval_name"] for line in evaluations(self.folder / "of a file")], ["one", "two"])


class Best(Case):
    """Evaluation set `unlike` becomes worse with training on one letter, `like` better."""

    def files(self):
        data = self.ids("one letter", [97] * 2000, 256)
        return data, [f"like={self.ids('like', [97] * 400, 256)}", f"unlike={self.counting('unlike', count=400)}"]

    def go(self, ranks, out, *arguments, keep=1):
        data, sets = self.files()
        return self.run_on(ranks, [data], out, "--keep", keep, "--save-every", 2, "--schedule", "constant", "--warmup", 0,
                           *arguments, "--eval-data", *sets)

    def losses(self, out, name):
        return {line["step"]: line["eval_loss"] for line in evaluations(out) if line["eval_name"] == name}

    def test_the_step_with_the_lowest_loss_is_kept_and_named_on_any_number_of_ranks(self):
        states = []
        for ranks in (1, 3):
            out = self.out(f"unlike on {ranks}")
            result = self.go(ranks, out, "--steps", 8, "--keep-best", "unlike")
            found = self.losses(out, "unlike")
            self.assertEqual(sorted(found), [2, 4, 6, 8])  # evaluated because it is saved
            self.assertEqual(list(self.losses(out, "like")), [8])  # that one at the end alone
            best = min(found, key=found.get)
            self.assertNotEqual(best, 8)  # or the test shows nothing
            self.assertEqual(steps_of(out), [best, 8])
            self.assertEqual((out / "BEST").read_text(), f"step-{best:08}\n")
            self.assertIn(f"the lowest loss of unlike so far is {found[best]:.4f}, at step {best}: kept\n", result.stdout)
            row = events(out, "best")[-1]
            self.assertEqual((row["name"], row["best_step"], row["best_loss"]), ("unlike", best, found[best]))
            shown = inspected(out)["steps"]
            self.assertEqual([(one["step"], one["best"]) for one in shown], [(best, True), (8, False)])
            self.assertEqual(shown[0]["evaluations"], {"unlike": found[best]})
            text = subprocess.run([BIN / "inspect", out], capture_output=True, text=True, check=True).stdout
            self.assertRegex(text, rf"step-{best:08} +complete +unlike {found[best]:.4f} +best")
            states.append((found, state_hash(out / f"step-{best:08}")))
        self.assertEqual(states[0], states[1])

    def test_a_better_step_takes_its_place(self):
        out = self.out("like")
        self.go(2, out, "--steps", 6, "--keep-best", "like")
        self.assertEqual(steps_of(out), [6])
        self.assertEqual((out / "BEST").read_text(), "step-00000006\n")
        self.assertEqual([row["best_step"] for row in events(out, "best")], [2, 4, 6])

    def test_a_run_that_continues_knows_it_and_one_without_the_option_lets_it_go(self):
        out = self.out("continued")
        self.go(3, out, "--steps", 4, "--keep-best", "unlike")
        first = self.losses(out, "unlike")
        best = min(first, key=first.get)
        self.assertEqual(best, 2)
        again = self.go(1, out, "--steps", 8, "--keep-best", "unlike")
        self.assertIn(f"the lowest loss of unlike so far is {first[2]:.4f}, at step 2: kept", again.stderr + again.stdout)
        self.assertEqual(steps_of(out), [2, 8])
        self.assertEqual((out / "BEST").read_text(), "step-00000002\n")
        self.go(2, out, "--steps", 10)
        self.assertEqual(steps_of(out), [10])
        self.assertFalse((out / "BEST").exists())
        # nor does a new run take a name over whose step somebody has removed
        shutil.rmtree(out / "step-00000010")
        (out / "BEST").write_text("step-00000010\n")
        self.go(1, out, "--steps", 2)
        self.assertFalse((out / "BEST").exists())

    def test_a_branch_from_before_the_best_step_forgets_it(self):
        out = self.out("branch")
        data, sets = self.files()
        self.go(1, out, "--steps", 6, "--keep-best", "like", keep=9)
        self.assertEqual((out / "BEST").read_text(), "step-00000006\n")
        result = self.run_on(2, [data], out, "--keep", 9, "--schedule", "constant", "--warmup", 0, "--steps", 5, "--resume",
                             out / "step-00000002", "--keep-best", "like", "--eval-data", *sets)
        self.assertIn("so far is", result.stdout + result.stderr)
        self.assertEqual((out / "BEST").read_text(), "step-00000005\n")

    def test_a_save_that_is_asked_for_is_not_judged_and_what_cannot_be_kept_is_refused(self):
        out = self.out("plain")
        self.succeed(2, out, "--steps", 2, "--eval-data", self.held_out, "--keep-best", "evaluation")
        self.assertEqual((out / "BEST").read_text(), "step-00000002\n")
        self.assertEqual(list(inspected(out)["steps"][0]["evaluations"]), ["evaluation"])
        common = ("--data", self.corpus, "--out", self.out("refused"), *with_small("--steps", 2))
        held_out = f"chat={self.held_out}"
        self.all_refused(3, BAD_OPTIONS, [
            ("--keep-best needs --eval-data: the evaluation set whose loss says which checkpoint is the best",
             [*common, "--keep-best", "chat"]),
            ("--keep-best code: there is no evaluation set of this name; --eval-data has chat",
             [*common, "--keep-best", "code", "--eval-data", held_out]),
            ("--keep-best chat needs saves: give --save-every, or leave out --save-at-end false",
             [*common, "--keep-best", "chat", "--eval-data", held_out, "--save-at-end", "false"])])


if __name__ == "__main__":
    unittest.main()
