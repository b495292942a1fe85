"""The job of jobs/finetune-chats.sh at a small size: a Hugging Face folder and chats in, a fine-tuned folder out, read by
our programs and by PyPI's tokenizers."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from small_model import TEXT_END, TURN, TURN_END, make_model_folder, write_chats
from train_test import BIN, MPIEXEC, Case, environment
from watching_test import generate

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "jobs/finetune-chats.sh"
ANSWERS = {"fox": "jumps", "dog": "sleeps"}
GREEDY = ("--temperature", 0, "--max-tokens", 12)
# Reads questions and ids by PyPI's tokenizers, and prints the ids of prompts and the texts of answers.
READER = """
import json, sys, tokenizers
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
print(json.dumps([tokenizer.encode(text).ids if isinstance(text, str) else tokenizer.decode(text) for text in json.load(sys.stdin)]))
"""


def prompt(question):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


class Newcomer(Case):
    def asked(self, folder, question, *options):
        result = generate(folder, "--chat", "auto", "--prompt", question, *GREEDY, *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.decode().rstrip("\n")

    def test_a_folder_and_chats_become_a_folder_that_answers(self):
        chats, out = self.folder / "chats.jsonl", self.folder / "tuned"
        write_chats(chats, [("fox", "dog")[i % 2] for i in range(400)], ANSWERS)
        base = self.folder / "base"
        make_model_folder(base, self.folder / "making base", chats)
        result = subprocess.run(
            ["bash", SCRIPT, base, chats, out, "--seq", "64", "--micro-batch", "4", "--global-batch", "8", "--lr", "3e-3"],
            env=environment(PATH=f"{BIN}:{os.environ['PATH']}", MPIEXEC=MPIEXEC, EPOCHS="10"), capture_output=True,
            text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        # our readers: the folder answers as the run does, and goes in again
        run = self.folder / "tuned.work/run"
        for question, answer in ANSWERS.items():
            self.assertEqual(self.asked(out, question), answer)
            self.assertEqual(self.asked(run, question), answer)
        subprocess.run([BIN / "convert", "import", out, self.folder / "again"], check=True, capture_output=True)
        generation = json.loads((out / "generation_config.json").read_text())
        self.assertEqual(generation["eos_token_id"], [TEXT_END, TURN_END])
        config = json.loads((out / "config.json").read_text())  # where some programs look alone
        self.assertEqual({key: config[key] for key in generation if key.endswith("token_id")},
                         {key: generation[key] for key in generation if key.endswith("token_id")})
        for name in "tokenizer.json", "tokenizer_config.json":
            self.assertEqual((out / name).read_bytes(), (base / name).read_bytes())
        self.tune_adapters(out, chats)
        self.check_with_tokenizers(out)

    def tune_adapters(self, base, chats):
        """The same with --lora makes a folder of PEFT's, which answers beside the base."""
        out = self.folder / "adapters"
        result = subprocess.run(
            ["bash", SCRIPT, base, chats, out, "--seq", "64", "--micro-batch", "4", "--global-batch", "8", "--lora", "8"],
            env=environment(PATH=f"{BIN}:{os.environ['PATH']}", MPIEXEC=MPIEXEC, EPOCHS="1"), capture_output=True,
            text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("has the adapters, as PEFT loads them", result.stdout + result.stderr)
        self.assertEqual(json.loads((out / "adapter_config.json").read_text())["r"], 8)
        for question, answer in ANSWERS.items():
            self.assertEqual(self.asked(out, question, "--base", base), answer)

    def check_with_tokenizers(self, out):
        """The ids of PyPI's tokenizers are those that the model knows, and its answers are texts there."""
        with tempfile.TemporaryDirectory(prefix="tessera-venv-") as folder:
            python = pathlib.Path(folder) / "bin/python"
            for command in ([sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "-q", "tokenizers"]):
                made = subprocess.run(command, capture_output=True, text=True, check=False)
                if made.returncode != 0:
                    self.skipTest(f"no throw-away venv with tokenizers here: {made.stderr.strip()[-200:]}")

            def read(values):
                result = subprocess.run([python, "-c", READER, out / "tokenizer.json"], input=json.dumps(values),
                                        capture_output=True, text=True, check=True)
                return json.loads(result.stdout)

            questions = list(ANSWERS)
            answers = []
            for ids in read([prompt(question) for question in questions]):
                self.assertEqual(ids[0], TURN)
                result = generate(out, "--prompt-ids", ",".join(map(str, ids)), *GREEDY)
                self.assertEqual(result.returncode, 0, result.stderr)
                answers.append([int(number) for number in result.stdout.split(b",") if number.strip()])
            self.assertEqual(read(answers), [ANSWERS[question] for question in questions])

    def test_a_format_is_given_where_the_model_has_none(self):
        chats, base, out = self.folder / "few.jsonl", self.folder / "without template", self.folder / "never"
        write_chats(chats, ["fox", "dog"] * 20, ANSWERS)
        make_model_folder(base, self.folder / "making it", chats)
        (base / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))

        def tune(*options, **more):
            return subprocess.run(["bash", SCRIPT, base, chats, out, *(options or ("--seq", "no number"))], capture_output=True, text=True, check=False,
                                  env=environment(PATH=f"{BIN}:{os.environ['PATH']}", MPIEXEC=MPIEXEC, **more))
        self.assertIn("CHAT=FORMAT bash jobs/finetune-chats.sh", tune().stderr)
        tokens = self.folder / "never.work/chats.h5"
        self.assertFalse(tokens.exists())
        tune(CHAT="chatml")
        self.assertTrue(tokens.exists())
        # what comes out has it: as a model, as adapters, and as a model that they are merged into
        settings = ("--seq", "32", "--micro-batch", "2", "--global-batch", "8")
        tuned = tune(*settings, CHAT="chatml")
        self.assertEqual(tuned.returncode, 0, tuned.stdout + tuned.stderr)
        template = (out / "chat_template.jinja").read_text()
        self.assertIn("'<|im_start|>' + message.role", template)
        self.asked(out, "fox")
        adapters, merged = self.folder / "with adapters", self.folder / "merged"
        subprocess.run(list(map(str, [BIN / "train", "--init", base, "--data", tokens, "--out", self.folder / "lora", "--lora", "4",
                                      "--steps", "1", "--export", adapters, *settings])), check=True, capture_output=True)
        self.assertEqual((adapters / "chat_template.jinja").read_text(), template)
        for source in self.folder / "lora", adapters:
            subprocess.run([BIN / "convert", "merge", source, merged, "--base", base], check=True, capture_output=True)
            self.assertEqual((merged / "chat_template.jinja").read_text(), template)
            shutil.rmtree(merged)

    def test_its_arguments_are_named_where_they_are_missing(self):
        result = subprocess.run(["bash", SCRIPT, "model"], capture_output=True, text=True, check=False)
        self.assertEqual((result.returncode, result.stderr.splitlines()),
                         (2, ["usage: finetune-chats.sh HF_FOLDER chats.jsonl OUT_FOLDER [options of train]"]))


if __name__ == "__main__":
    unittest.main()
