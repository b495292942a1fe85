"""Runs the commands of README.md and jobs/guide at small size, so that what a page says works.

In these pages every fenced block names its kind:

    ```bash      commands. Those of a page run one after the other in one folder, in which there is what a reader has:
                 see Reader. A block that cannot run here has a line before it in the page's source:
                 <!-- not run: REASON -->
    ```python    a script, run by a Python with h5py
    ```text      all else: output, diagrams; ini and json are files

Options of training are made small by the tables below, and `--device cuda` becomes cpu; `train --plan` runs as it stands.
The end lists the blocks that were not run, with their reasons.
"""
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from small_model import BIN, make_model_folder, write_chats

ROOT = pathlib.Path(__file__).resolve().parents[2]
MPIEXEC = os.environ.get("MPIEXEC", "mpirun")
PAGES = [ROOT / "README.md", *sorted((ROOT / "jobs/guide").glob("*.md"))]
NOT_COMMANDS = {"text", "ini", "json"}
PROGRAMS = ("train", "tokenize", "inspect", "report", "generate", "convert", "bench", "mpirun", "bash", "sbatch", "srun", "pip",
            "python3", "cmake", "ctest", "export")
SECONDS = 120  # of one block at most
# An option of training with a larger value gets this one
LARGEST = {"--steps": 4, "--seq": 64, "--micro-batch": 2, "--global-batch": 8, "--batched-forward": 2, "--save-every": 2,
           "--save-local-every": 2, "--export-every": 2, "--eval-every": 2, "--eval-sequences": 8, "--sample-every": 2,
           "--sample-tokens": 8, "--keep-every": 2, "--tokens": 2048, "--reduce-group": 2, "-np": 2}
# and one of these always another.
INSTEAD = {"--device": "cpu", "--trace": "2:3", "--warmup": "1", "--epochs": "0.2", "--save-local": "local-disk"}
PRESETS = re.compile(r"(?<=--model )(?!tiny\b)[a-z][\w.-]*(?<!\.json)\b")


class BadPage(Exception):
    """A page that breaks the rules above."""


class Block:
    def __init__(self, kind, line, text, reason):
        self.kind, self.line, self.text, self.reason = kind, line, text, reason


def blocks_of(name, text):
    """The fenced blocks of a page."""
    found, begin, kind, reason, before = [], None, None, None, ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"\s*```(\S*)\s*$", line)
        if fence and begin is None:
            begin, kind, lines = number, fence[1], []
            noted = re.match(r"\s*<!-- not run: (.+) -->$", before)
            reason = noted[1] if noted else None
            if kind not in NOT_COMMANDS | {"bash", "python"}:
                raise BadPage(f"{name}:{number}: a block begins with ```{kind}: write ```bash for commands, ```python, or "
                              f"one of {', '.join(sorted(NOT_COMMANDS))} for all else")
        elif fence:
            found.append(Block(kind, begin, "\n".join(lines), reason))
            if kind == "text":
                command = next((line for line in lines if line.split(" ")[0] in PROGRAMS), None)
                if command:
                    raise BadPage(f"{name}:{begin}: a block of text has a command, which would not run: {command}")
            begin = None
        elif begin is not None:
            lines.append(line)
        elif line.strip().startswith("<!-- not run") and not re.match(r"\s*<!-- not run: .+ -->$", line):
            raise BadPage(f"{name}:{number}: write <!-- not run: REASON -->")
        before = line
    if begin is not None:
        raise BadPage(f"{name}:{begin}: this block has no end")
    return found


def is_training(command):
    return re.search(r"(^|[\s;(/])(train|finetune-chats\.sh)\s", command) and "--plan" not in command


def made_small(block):
    """The commands of a block, with sizes for a test."""
    lines = []
    for command in block.replace("\\\n", " ").splitlines():
        command = re.sub(r"\bmpirun\b", MPIEXEC, command)
        if is_training(command):
            for option, largest in LARGEST.items():
                command = re.sub(rf"(?<=\s{option} )(\d[\w.]*)",
                                 lambda value, most=largest: value[0] if value[0].isdigit() and int(value[0]) <= most
                                 else str(most), command)
            for option, value in INSTEAD.items():
                command = re.sub(rf"(?<=\s{option} )\S+", value, command)
            command = re.sub(r"\bEPOCHS=\d+", f"EPOCHS={INSTEAD['--epochs']}", PRESETS.sub("tiny", command))
        lines.append(command)
    return "\n".join(lines)


class Reader:
    """The folder of one who reads a page: the repository's jobs, a model, texts, chats, token files and a run."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        (folder / "jobs").symlink_to(ROOT / "jobs")
        answers = {f"What is {n} + 1?": f"It is {n + 1}." for n in range(120)}
        write_chats(folder / "chats.jsonl", answers, answers)
        with open(folder / "articles.jsonl", "w", encoding="utf-8") as file:
            for n in range(60):
                file.write(json.dumps({"text": f"Article {n}. " + "The fox runs over the lazy dog. " * (1 + n % 9)}) + "\n")
        (folder / "my-texts").mkdir()
        for n in range(300):
            (folder / f"my-texts/{n}.txt").write_text(f"Text {n}. " + "The fox runs over the lazy dog. " * 4)
        make_model_folder(folder / "Qwen3-0.6B", folder / "making", folder / "chats.jsonl")
        shutil.rmtree(folder / "making")
        shutil.copytree(folder / "Qwen3-0.6B", folder / "Qwen3-8B")
        self.run("tokenize --out corpus.h5 --tokenizer bytes --held-out 0.1 my-texts\n"
                 "tokenize --out chats.h5 --tokenizer Qwen3-0.6B --chat auto --held-out 0.1 chats.jsonl\n"
                 "mpirun -np 2 train --model tiny --data corpus.h5 --eval-data corpus.held-out.h5 --seq 64 --global-batch 8"
                 " --steps 4 --save-every 2 --trace 2:3 --out runs/a")

    def copy(self, folder):
        shutil.copytree(self.folder, folder, symlinks=True)
        other = object.__new__(Reader)
        other.folder = folder
        return other

    def run(self, block):
        """Fails with the output where a command fails. Without a terminal, and ends with the last command."""
        environment = dict(os.environ, PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}", MPIEXEC=MPIEXEC, USER="reader")
        result = subprocess.run(["bash", "-euo", "pipefail", "-c", made_small(block)], cwd=self.folder, env=environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                errors="replace", timeout=SECONDS, check=False)
        if result.returncode != 0:
            raise AssertionError(f"ended with {result.returncode}:\n{made_small(block)}\n{result.stdout[-4000:]}")
        return result.stdout


class Pages(unittest.TestCase):
    """A case for each page (see the end of this file)."""
    not_run, python = [], None

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="tessera-pages-")
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.reader = Reader(cls.folder / "reader")

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()
        for place in cls.not_run:
            print("not run:", place)

    @classmethod
    def python_with_h5py(cls):
        """Path of a Python that has h5py, or None."""
        if cls.python is None:
            cls.python = ""
            has_h5py = subprocess.run([sys.executable, "-c", "import h5py"], capture_output=True, check=False).returncode == 0
            if has_h5py:
                cls.python = sys.executable
            else:
                venv = cls.folder / "venv"
                made = [subprocess.run(command, capture_output=True, check=False).returncode == 0
                        for command in ([sys.executable, "-m", "venv", venv],
                                        [venv / "bin/python", "-m", "pip", "install", "-q", "h5py"])]
                cls.python = str(venv / "bin/python") if all(made) else ""
        return cls.python or None

    def check(self, page):
        name = str(page.relative_to(ROOT))
        reader = self.reader.copy(self.folder / name.replace("/", " "))
        for block in blocks_of(name, page.read_text(encoding="utf-8")):
            place = f"{name}:{block.line}"
            if block.kind in NOT_COMMANDS:
                continue
            if block.reason:
                self.not_run.append(f"{place}: {block.reason}")
            elif block.kind == "python":
                python = self.python_with_h5py()
                if not python:
                    self.not_run.append(f"{place}: no Python with h5py here")
                    continue
                result = subprocess.run([python, "-c", block.text], cwd=reader.folder, capture_output=True, text=True,
                                        timeout=SECONDS, check=False)
                self.assertEqual(result.returncode, 0, f"{place}: {result.stderr}")
            else:
                try:
                    reader.run(block.text)
                except AssertionError as error:
                    raise AssertionError(f"{place}: {error}") from None


class Figures(unittest.TestCase):
    def test_they_show_what_the_records_say(self):
        figures = ROOT / "jobs/guide/figures"
        with tempfile.TemporaryDirectory(prefix="tessera-figures-") as folder:
            subprocess.run([sys.executable, figures / "draw.py", folder], check=True)
            drawn = sorted(pathlib.Path(folder).glob("*.svg"))
            self.assertEqual([path.name for path in drawn], sorted(path.name for path in figures.glob("*.svg") if not path.name.startswith("terminal-")))
            for path in drawn:
                self.assertEqual(path.read_text(), (figures / path.name).read_text(), f"run {figures}/draw.py")

    def test_the_pictures_of_the_terminal_can_be_made_again_and_none_passes_the_edge(self):
        figures = ROOT / "jobs/guide/figures"
        with tempfile.TemporaryDirectory(prefix="tessera-figures-") as folder:
            subprocess.run([sys.executable, figures / "terminal.py", "--bin", BIN, folder], check=True)
            drawn = sorted(pathlib.Path(folder).glob("*.svg"))
            self.assertEqual([path.name for path in drawn], sorted(path.name for path in figures.glob("terminal-*.svg")))
            for path in drawn + sorted(figures.glob("terminal-*.svg")):
                lines = re.findall(r"<text [^>]*>(.*?)</text>", path.read_text())
                self.assertGreater(len(lines), 5)
                self.assertLessEqual(max(len(html.unescape(re.sub("<[^>]*>", "", line))) for line in lines), 80, path.name)


class Rules(unittest.TestCase):
    """What this script does with a page that is wrong."""

    def test_each_block_has_a_kind(self):
        with self.assertRaisesRegex(BadPage, "page:2: a block begins with ```: write"):
            blocks_of("page", "# x\n```\ntrain --help\n```\n")

    def test_text_has_no_commands(self):
        with self.assertRaisesRegex(BadPage, "page:1: a block of text has a command"):
            blocks_of("page", "```text\ntrain --help\n```\n")

    def test_a_reason_is_given(self):
        for line in "<!-- not run -->", "<!-- not run: -->":
            with self.assertRaisesRegex(BadPage, "REASON"):
                blocks_of("page", line + "\n```bash\ntrain\n```\n")
        (block,) = blocks_of("page", "<!-- not run: needs Slurm -->\n```bash\nsbatch x\n```\n")
        self.assertEqual((block.kind, block.line, block.reason), ("bash", 2, "needs Slurm"))

    def test_training_is_made_small_and_a_plan_is_not(self):
        self.assertEqual(made_small("bash jobs/finetune-chats.sh M C O --device cuda"),
                         "bash jobs/finetune-chats.sh M C O --device cpu")
        command = "train --model qwen3-8b --device cuda --seq 4096 --steps 3 --tokens 10B"
        self.assertEqual(made_small(command), "train --model tiny --device cpu --seq 64 --steps 3 --tokens 2048")
        self.assertEqual(made_small(command + " --plan"), command + " --plan")
        self.assertEqual(made_small("train --model X/config.json \\\n  --seq 8"), "train --model X/config.json    --seq 8")

    def test_a_command_that_fails_is_shown(self):
        reader = object.__new__(Reader)
        reader.folder = ROOT
        with self.assertRaisesRegex(AssertionError, "(?s)ended with 2.*frobnicate"):
            reader.run("train --frobnicate 3\ntrue")


for each_page in PAGES:
    setattr(Pages, "test_" + re.sub(r"\W", "_", str(each_page.relative_to(ROOT).with_suffix(""))),
            lambda self, page=each_page: self.check(page))

if __name__ == "__main__":
    unittest.main()
