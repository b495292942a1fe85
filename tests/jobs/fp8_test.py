"""train --precision fp8 as a user runs it on CPU ranks: bit-identical on any number of ranks and when it continues,
what it records, and what it refuses."""
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from train_test import BAD_OPTIONS, Case, events, metrics, state_hash, train, with_small  # noqa: E402

FP8 = ["--precision", "fp8"]
LAYERS = ("qkv", "attention output", "gate/up", "down")


class Fp8(Case):
    def test_a_run_that_continues_on_other_ranks_has_the_bits_of_one(self):
        straight, parts = self.out("one rank"), self.out("changing ranks")
        steps = ["--schedule-steps", "6", "--fp8-skip", "0,2:3"]
        self.succeed(1, straight, *FP8, "--steps", 6, *steps)
        for until, ranks, extra in ((2, 3, ["--recompute", "mlp"]), (4, 2, ["--recompute", "block:2,mlp"]),
                                    (6, 1, ["--resident-bytes", "none", "--page-bytes", "64KiB"])):
            self.succeed(ranks, parts, *FP8, "--steps", until, *steps, *extra)
        self.assertEqual(metrics(parts), metrics(straight))
        self.assertEqual(state_hash(parts), state_hash(straight))

    def test_a_continued_run_says_what_of_it_has_changed(self):
        out = self.out("changed")
        result = self.succeed(1, out, *FP8, "--steps", 2)
        self.assertIn("--precision fp8 on cpu quantises", result.stdout)
        result = self.succeed(1, out, *FP8, "--steps", 3, "--fp8-skip", "1")
        self.assertIn("--fp8-skip was none and is 1 from step 3 on: the results change bit for bit", result.stdout)
        result = self.succeed(1, out, "--steps", 4)
        self.assertIn("--precision was fp8 and is auto (f32) from step 4 on: the results change bit for bit",
                      result.stdout)

    def test_shares_of_what_was_lost_are_recorded_where_steps_are_logged(self):
        out = self.out("recorded")
        self.succeed(2, out, *FP8, "--steps", 5, "--log-every", 2)
        rows = events(out, "fp8")
        self.assertEqual([row["step"] for row in rows], [2, 4, 5])
        for row in rows:
            for layer in LAYERS:
                for operand in ("input", "weight", "gradient"):
                    shares = row[layer][operand]
                    self.assertEqual(shares["saturated"], 0)
                    self.assertTrue(0 <= shares["underflowed"] < 0.2, (layer, operand, shares))
        plain = self.out("plain")
        self.succeed(2, plain, "--steps", 2)
        self.assertEqual(events(plain, "fp8"), [])
        self.assertEqual(events(out, "configuration")[0]["precision"], "fp8")

    def test_the_plan_has_codes_of_weights_and_operands(self):
        def planned(*arguments):
            result = train(1, "--plan", "--json", "--model", "qwen3-0.6b", "--device", "cuda", *with_small(*arguments))
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            return {line["name"]: line["bytes"] for line in json.loads(result.stdout)["lines"]
                    if line["where"] == "device"}
        plain, fp8 = planned(), planned(*FP8)
        blocks = 28 * (1024 * 4096 + 2048 * 1024 + 1024 * 6144 + 3072 * 1024)
        self.assertEqual(fp8["fp8 weights"], 2 * blocks + 28 * 4 * 16)  # a scale for each of four matrices, 16 bytes apart
        self.assertGreater(fp8["fp8 operands"], 3 * 64 * 3072)
        self.assertNotIn("fp8 weights", plain)
        one = planned(*FP8, "--fp8-weights", "one-layout")
        self.assertEqual(one["fp8 weights"], blocks + blocks // 28 + 28 * 4 * 16)  # and one block transposed
        half = planned(*FP8, "--fp8-skip", "0:13")
        self.assertEqual(2 * half["fp8 weights"], fp8["fp8 weights"])

    def test_codes_in_one_layout_are_taken_where_both_do_not_fit_and_parameters_are_gathered(self):
        def planned(*arguments):
            result = train(1, "--plan", "--json", "--device", "cuda", "--card", "h100", "--seq", "4096", "--micro-batch", "1",
                           *FP8, *arguments)
            return json.loads(result.stdout)
        large = planned("--model", "qwen2.5-32b", "--ranks", "16", "--ranks-per-node", "8", "--global-batch", "64", "--recompute", "block")
        self.assertEqual((large["fp8_weights"], large["parameters_stored"]), ("one-layout", "shards"))
        small = planned("--model", "qwen3-1.7b", "--global-batch", "4")
        self.assertEqual((small["fp8_weights"], small["parameters_stored"]), ("stored", "whole"))

    def test_what_makes_no_run_is_refused_in_one_sentence(self):
        for arguments, sentence in (
                ([*FP8, "--fp8-recipe", "row"], "--fp8-recipe row is not in this version"),
                ([*FP8, "--fp8-recipe", "block"], "--fp8-recipe block is not in this version"),
                ([*FP8, "--fp8-recipe", "tile"], "--fp8-recipe 'tile': choose tensor, row, block"),
                ([*FP8, "--fp8-skip", "3:4"], "--fp8-skip 4: the model's 4 blocks are 0 to 3"),
                ([*FP8, "--fp8-skip", "2,1"], "give blocks in ascending order"),
                ([*FP8, "--fp8-skip", "1:x"], "--fp8-skip"),
                (["--fp8-skip", "1"], "--fp8-skip needs --precision fp8"),
                (["--fp8-recipe", "row"], "--fp8-recipe needs --precision fp8"),
                (["--precision", "fp4"], "--precision 'fp4': choose auto, f32, bf16, bf16-params, fp8")):
            self.refused(1, BAD_OPTIONS, sentence, "--data", self.corpus, "--out", self.out("refused"),
                         *with_small(*arguments))
        result = train(1, "--plan", "--model", "tiny", "--data", self.corpus, "--device", "cuda", *FP8,
                       *with_small("--seq", "36"))
        self.assertEqual(result.returncode, BAD_OPTIONS, result.stdout + result.stderr)
        self.assertIn("--micro-batch times --seq, are 72", result.stderr)


if __name__ == "__main__":
    unittest.main()
