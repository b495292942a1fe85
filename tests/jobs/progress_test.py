"""What train shows while it runs: one line in place on a terminal, within its width; plain lines elsewhere;
warnings of any rank with rank and host; and metrics.jsonl, without double steps whatever happened to the run."""
import fcntl
import json
import os
import pathlib
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import termios
import time
import unittest

import eventful_run
from eventful_run import BIN, MPIEXEC, STEPS
from train_test import is_mpich, wait_for_ranks

CODES = re.compile(r"\x1b\[[0-9;]*m")
TIME = re.compile(r"\[\d\d:\d\d:\d\d\]")


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="tessera ü %1 '")
        cls.folder = pathlib.Path(cls.scratch.name)
        eventful_run.make_inputs(cls.folder)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def words(self, out, *options):
        return [BIN / "train", "--init", self.folder / "model", "--data", self.folder / "data.h5", "--seq", "32",
                "--micro-batch", "2", "--global-batch", "8", "--lr", "3e-3", "--warmup", "3", "--schedule-steps",
                str(STEPS), "--out", out, *map(str, options)]


def run_on_terminal(words, columns, stop_at=None, **environment):
    """Output of a program whose stdin, stdout and stderr are one terminal of so many columns (0: not given), and its
    exit status. `stop_at`: text at which SIGTERM is sent."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(words, stdin=follower, stdout=follower, stderr=follower, close_fds=True,
                               env=dict(kept, **dict({"TERM": "xterm-256color"}, **environment)))
    os.close(follower)
    text = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the last holder has closed it
            break
        if not piece:
            break
        text += piece
        if stop_at is not None and stop_at in text:
            process.send_signal(signal.SIGTERM)
            stop_at = None
    os.close(leader)
    return text.decode(), process.wait(timeout=60)


def progress_lines(text):
    """What was drawn over the progress line's place, one entry a drawing."""
    drawn = [re.split(r"[\r\n]", part)[0] for part in text.split("\r\x1b[K")[1:]]
    return [line for line in drawn if "warning:" not in line]  # which has lines of its own, of any length


class Terminal(Case):
    def test_the_line_is_drawn_in_place_within_the_width_and_in_colour(self):
        for columns in (40, 60, 200):
            text, status = run_on_terminal(self.words(self.folder / f"out {columns}", "--steps", 14), columns)
            self.assertEqual(status, 0, text)
            lines = progress_lines(text)
            self.assertGreaterEqual(len(lines), 14)
            for line in lines:
                self.assertLess(len(CODES.sub("", line)), columns, line)
            self.assertIn("step 14/14  loss", text)
            self.assertIn("\x1b[31mSKIPPED", text)
        self.assertIn("tok/s", text)

    def test_no_color_and_dumb_terminals_are_respected(self):
        text, _ = run_on_terminal(self.words(self.folder / "plain", "--steps", 12), 100, NO_COLOR="1")
        self.assertIn("\r\x1b[K", text)
        self.assertIn("SKIPPED", text)
        self.assertEqual(CODES.findall(text), [])
        text, _ = run_on_terminal(self.words(self.folder / "empty", "--steps", 12), 100, NO_COLOR="")
        self.assertIn("\x1b[31mSKIPPED", text)
        text, _ = run_on_terminal(self.words(self.folder / "dumb", "--steps", 12), 100, TERM="dumb")
        self.assertNotIn("\x1b", text)

    def test_a_warning_does_not_tear_the_line(self):
        stop = self.folder / "stop"
        writer = threading.Timer(5, stop.write_text, ["not empty, so it is left where it is"])
        writer.start()
        self.addCleanup(writer.cancel)
        text, status = run_on_terminal(self.words(self.folder / "warned", "--steps", 100000, "--stop-file", stop), 80)
        self.assertEqual(status, 85, text)
        at = text.rindex("warning:", 0, re.search(r"is\s+left\s+where\s+it\s+is", text).start())
        line = text[text.rindex("\n", 0, at) + 1:text.index("\n", at)]
        self.assertRegex(line.replace("\r\x1b[K", "\r").rsplit("\r\x1b", 1)[-1], r"\x1b\[33mwarning:")
        self.assertNotRegex(line.split("\r\x1b[K")[-1], r"step \d+/")
        rows = [json.loads(row) for row in (self.folder / "warned" / "warnings.jsonl").read_text().splitlines()]
        self.assertEqual({(row["event"], row["rank"]) for row in rows}, {("warning", 0)})
        left = [row for row in rows if "is left where it is" in row["text"]]
        self.assertEqual(len(left), 1, rows)
        self.assertGreaterEqual(left[0]["step"], 1)

    def test_elsewhere_each_step_is_one_plain_line(self):
        for words in (self.words(self.folder / "pipe", "--steps", 5),
                      [MPIEXEC, "-np", "2", *self.words(self.folder / "ranks", "--steps", 5)]):
            result = subprocess.run(words, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
            self.assertNotIn("\x1b", result.stdout + result.stderr)
            self.assertNotIn("\r", result.stdout)
            steps = re.findall(r"^step (\d+)/5  loss .*left$", result.stdout, re.MULTILINE)
            self.assertEqual(steps, ["1", "2", "3", "4", "5"])
        # mpirun gives its ranks terminals without a width, whatever its own output is
        text, status = run_on_terminal([MPIEXEC, "-np", "2", *self.words(self.folder / "mpirun", "--steps", 5)], 0)
        self.assertEqual(status, 0, text)
        self.assertNotIn("\x1b", text)

    def test_a_warning_of_another_rank_names_rank_and_host(self):
        out = self.folder / "unwritable"
        first = [MPIEXEC, "-np", "2", *self.words(out, "--save-every", "2", "--steps", "4")]
        subprocess.run(first, capture_output=True, check=True, stdin=subprocess.DEVNULL)
        shard = next((out / "step-00000004").glob("shard-00001*"))
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        result = subprocess.run([*first[:-1], "5"], capture_output=True, text=True, check=False,
                                stdin=subprocess.DEVNULL)
        self.assertRegex(result.stderr, r"\[\d\d:\d\d:\d\d rank \d on \S+\] (warning|error): ")
        self.assertNotIn("\x1b", result.stderr)
        rows = [json.loads(row) for row in (out / "warnings.jsonl").read_text().splitlines()]
        self.assertTrue(all(row["host"] and row["rank"] in (0, 1) for row in rows))
        self.assertTrue(any("step-00000004" in row["text"] for row in rows))


class Start(Case):
    """What a run says before its first step, and where everything else is."""
    LABELS = ["model", "ranks", "data", "steps", "memory", "chosen"]

    def test_six_lines_say_what_begins(self):
        out = self.folder / "six lines"
        result = subprocess.run([MPIEXEC, "-np", "2", *self.words(out, "--steps", 2)], capture_output=True, text=True,
                                check=True, stdin=subprocess.DEVNULL)
        lines = result.stdout.splitlines()
        self.assertEqual([line.split()[0] for line in lines[:6]], self.LABELS)
        text = "\n".join(lines[:6])
        self.assertRegex(text, r"model +\S.*, [\d,]+ parameters, f32; weights of ")
        self.assertRegex(text, r"ranks +2 on 1 host, on the CPU with 1 thread each; tessera \S+, commit \S+")
        self.assertRegex(text, r"data .*: [\d,]+ tokens in [\d,]+ documents?; one pass is [\d,]+ steps? of 256 tokens \(8 x 32\)")
        self.assertIn("steps   1 to 2, ", text)
        self.assertRegex(text, r"memory +[\d.]+ .B of [\d.]+ .B on a node with 2 ranks")
        self.assertRegex(text, r"chosen  --documents joined, .*--zero 2; everything: .*start\.txt$")
        self.assertNotIn("logits chunk", result.stdout)
        self.assertNotIn("lr = ", result.stdout)
        shown = [line for line in lines if not line.startswith(("step ", "evaluation ", "saved ", "waiting ", "parameters "))]
        self.assertLessEqual(len(shown), 9, shown)
        wordy = subprocess.run(self.words(self.folder / "wordy", "--steps", 1, "--verbose"), capture_output=True,
                               text=True, check=True, stdin=subprocess.DEVNULL)
        for shown in ("logits chunk", "lr = 3e-3", "one pass over the data is"):
            self.assertIn(shown, wordy.stdout)

    def test_start_txt_makes_the_same_run(self):
        out, again = self.folder / "kept", self.folder / "kept again"
        subprocess.run(self.words(out, "--steps", 3), capture_output=True, check=True, stdin=subprocess.DEVNULL)
        kept = (out / "start.txt").read_text()
        for shown in ("lr = 3e-3\n", "# memory ", "# chosen ", "logits chunk", "optimizer state"):
            self.assertIn(shown, kept)
        subprocess.run([BIN / "train", "--config", out / "start.txt", "--out", again], capture_output=True, check=True,
                       stdin=subprocess.DEVNULL)
        values = [[(row["step"], row["loss"], row["grad_norm"]) for row in rows_of(run) if "loss" in row]
                  for run in (out, again)]
        self.assertEqual(*values)
        # a file of the user's is not replaced, and named before any work
        other = self.folder / "theirs"
        other.mkdir()
        (other / "start.txt").write_text("my notes")
        refused = subprocess.run(self.words(other, "--steps", 1), capture_output=True, text=True, check=False,
                                 stdin=subprocess.DEVNULL)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("start.txt", refused.stderr)
        self.assertEqual((other / "start.txt").read_text(), "my notes")

    def test_inspect_prints_the_command_that_saved_and_what_it_ran_with(self):
        if not (BIN / "inspect").exists():
            self.skipTest("inspect is not built")
        out = self.folder / "asked for"
        words = [MPIEXEC, "-np", "2", *self.words(out, "--steps", 2)]
        subprocess.run(words, capture_output=True, check=True, stdin=subprocess.DEVNULL)
        lines = subprocess.run([BIN / "inspect", out, "--command"], capture_output=True, text=True, check=True).stdout.splitlines()
        self.assertEqual(shlex.split(lines[0]), ["cd", os.getcwd()])
        self.assertEqual(shlex.split(lines[1]), ["mpirun", "-np", "2", *map(str, words[3:])])
        self.assertTrue(all(line.startswith("# ") and line.isprintable() for line in lines[2:]), lines)
        for shown in (r"# saved step 2, on 2 ranks", r"# build: tessera \S+, .*", r"# device: cpu", r"# HDF5 \d+\.\d+\.\d+", r"# oneDNN \d+\.\d+\.\d+",
                      r"# (Open MPI|MPICH).*"):
            self.assertTrue([line for line in lines if re.fullmatch(shown, line)], (shown, lines))
        first = subprocess.run([BIN / "inspect", out], capture_output=True, text=True, check=True).stdout
        self.assertIn(", after step 2\n  16 sequences seen: 512 tokens of input at --seq 32, padding included\n  last losses: ", first)

    def test_the_start_and_help_follow_the_width_of_the_terminal(self):
        for columns in (60, 80, 120):
            text, status = run_on_terminal(self.words(self.folder / f"start {columns}", "--steps", 1), columns)
            self.assertEqual(status, 0, text)
            begin = CODES.sub("", text.split("\r\x1b[K")[0].replace("\r", "")).splitlines()
            # one word, a file's name, may be longer than a line
            self.assertFalse([line for line in begin if len(line) > columns and " " in line.strip()], begin)
            shown = "".join(f"{line}\n" for line in begin)
            self.assertEqual(re.findall(r"^(\w+) ", shown, re.MULTILINE)[:6], self.LABELS)
            for program in ("train", "inspect", "report", "generate", "tokenize", "convert"):
                if not (BIN / program).exists():
                    continue
                printed, status = run_on_terminal([BIN / program, "--help"], columns)
                self.assertEqual(status, 0, printed)
                widest = max(printed.replace("\r", "").splitlines(), key=len)
                self.assertLessEqual(len(widest.rstrip()), columns, f"{program}: {widest}")
                if columns > 80:
                    self.assertGreater(len(widest), 80, program)

    def test_plans_and_messages_follow_the_width_of_the_terminal_and_commands_may_be_copied(self):
        of_8b = ["--plan", "--model", "qwen3-8b", "--card", "h100", "--ranks", "16", "--ranks-per-node", "8", "--seq", "4096",
                 "--micro-batch", "1", "--global-batch", "64", "--host-memory", "900GB"]
        cases = {"plan": ([BIN / "train", *of_8b, "--tokens", "10B"], 0), "fit": ([BIN / "train", *of_8b, "--fit"], 0),
                 "scale": ([BIN / "train", *of_8b, "--scale"], 0),
                 "does not fit": ([BIN / "train", *of_8b[:-1], "1GB"], 2),
                 "preset": (self.words(self.folder / "none", "--steps", 1, "--init", "", "--model", "none"), 2),
                 "convert": ([BIN / "convert", "export", self.folder / "model", self.folder / "nowhere", "--like", self.folder], 3),
                 "inspect": ([BIN / "inspect", self.folder / "a folder that is not there" / ("with a long name " * 4)], None)}
        for name, (words, expected) in cases.items():
            plain = subprocess.run(words, capture_output=True, text=True)
            for columns in (60, 80, 120):
                text, status = run_on_terminal(words, columns)
                if expected is not None:
                    self.assertEqual(status, expected, text)
                lines = CODES.sub("", text.replace("\r", "")).splitlines()
                whole = [re.sub("`[^`]*`", "", line).strip() for line in lines if len(line) > columns]  # `code` stays in one line
                self.assertFalse([line for line in whole if " " in line], name)
                # the words are those of a pipe, where a message is one line; none is lost
                of_pipe = TIME.sub("", plain.stdout + plain.stderr).split()
                self.assertEqual(TIME.sub("", CODES.sub("", text)).replace("\\\r\n", " ").split(), of_pipe, name)

    def test_each_group_of_options_has_one_place_in_help(self):
        shown = subprocess.run([BIN / "train", "--help"], capture_output=True, text=True, check=True).stdout
        groups = re.findall(r"^([A-Z].*):$", shown, re.MULTILINE)
        self.assertGreater(len(groups), 5)
        self.assertEqual(len(groups), len(set(groups)), groups)

    def test_what_programs_print_of_their_work_follows_the_width_of_the_terminal(self):
        """Tables stay whole; prose does not pass the edge, and no line is broken twice."""
        run, text = self.folder / "shown", self.folder / "some text.txt"
        text.write_text("a document\n" * 40)
        self.assertEqual(run_on_terminal(self.words(run, "--steps", 2, "--verbose"), 80)[1], 0)
        cases = [[BIN / "tokenize", "--out", self.folder / "shown.h5", text], [BIN / "tokenize", "--check", self.folder / "data.h5"],
                 [BIN / "inspect", run], [BIN / "inspect", self.folder / "data.h5"], [BIN / "inspect", run, "--command"],
                 *[[BIN / program, "--help"] for program in ("train", "inspect", "report", "generate", "tokenize", "convert")]]
        for words in cases:
            for columns in (80, 120):
                shown, status = run_on_terminal(words, columns)
                self.assertEqual(status, 0, shown)
                lines = CODES.sub("", shown.split("\r\x1b[K")[-1].replace("\r", "")).splitlines()
                for line, after in zip(lines, lines[1:] + [""]):
                    if len(line) > columns:  # a word alone, a row of a table, a comment of a command
                        self.assertRegex(line, r"^\s*\S+$|\S {2,}\S|^# ", f"{words[0].name} in {columns} columns")
                    # a line that ends in the middle of a sentence, and the next is not of another paragraph, is full
                    if "--help" in words and columns == 80 and re.match(r"[A-Za-z]", line) and re.match(r"[a-z(]", after):
                        self.assertGreater(len(line) + 1 + len(after.split()[0]), columns, f"{words[0].name}: {line!r}")

    def test_the_progress_line_has_evaluation_memory_and_time(self):
        out = self.folder / "evaluated"
        result = subprocess.run(self.words(out, "--steps", 4, "--eval-data", self.folder / "data.h5", "--eval-every", 2),
                                capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
        found = [row["eval_loss"] for row in rows_of(out) if "eval_loss" in row]
        lines = [line for line in result.stdout.splitlines() if line.startswith("step ")]
        self.assertEqual(["  eval " in line for line in lines], [False, False, True, True])
        self.assertIn(f"  eval {found[0]:.4f}  ", lines[2])
        for line in lines:
            self.assertRegex(line, r"  memory [\d.]+ [MG]B  \d+s left$")

    CONTINUE = "to continue, with your launcher's options: "

    def interrupted(self, out, ranks, end, *options):
        """What a run has printed, without its launcher's lines, to the stream that ends with the command: which stream mpirun
        forwards first is up to it. `end` gets the launcher and the pids of the ranks."""
        words = [MPIEXEC, "-np", str(ranks), *self.words(out, "--steps", 100000, "--save-every", 2, *options)]
        with subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              stdin=subprocess.DEVNULL) as process:
            pids = wait_for_ranks(process.pid, "train", ranks)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and not (out / "LATEST").exists():
                time.sleep(0.05)
            end(process, pids)
            texts = process.communicate()
        launcher = re.compile(r"-----+|Primary job|a non-zero exit code|the job to be|mpi\w+ (detected|noticed|has exited)|  Process name|  Exit code|\s*$")
        streams = [[line for line in text.splitlines() if not launcher.match(line)] for text in texts]
        return next((lines for lines in streams if lines and self.CONTINUE in lines[-1]), sum(streams, [])), words

    def test_after_every_interruption_the_last_line_is_the_command_to_run(self):
        for name, ranks, end, options in (
                ("lost", 3, lambda process, pids: os.kill(pids[1], signal.SIGKILL), ()),
                ("lost first", 2, lambda process, pids: os.kill(pids[0], signal.SIGKILL), ()),
                ("stopped", 2, lambda process, pids: process.send_signal(signal.SIGUSR1), ("--resume", "none")),
                ("ended", 2, lambda process, pids: process.send_signal(signal.SIGTERM), ())):
            if is_mpich() and name != "stopped":  # its launcher leaves the others no time to say anything
                continue
            with self.subTest(name=name):
                lines, words = self.interrupted(self.folder / f"it's {name}", ranks, end, *options)
                self.assertIn(self.CONTINUE, lines[-1], lines)
                given = shlex.split(lines[-1].split(self.CONTINUE)[-1])
                kept = [word for word in map(str, words[3:]) if word not in options]
                self.assertEqual(given, ["mpirun", "-np", str(ranks), *kept])

    def test_the_command_of_the_last_line_continues_the_run(self):
        out = self.folder / "it's interrupted"
        lines, _ = self.interrupted(out, 2, lambda process, pids: os.kill(pids[1], signal.SIGKILL), "--resume", "none")
        if is_mpich():
            return
        given = shlex.split(lines[-1].split(self.CONTINUE)[-1])
        given[given.index("--steps") + 1] = str(max(int(path.name[5:]) for path in out.glob("step-*")) + 1)
        again = subprocess.run([MPIEXEC, *given[1:]], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("continuing after step ", again.stdout)


def rows_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


class MetricsFile(Case):
    def one_rank(self, out, *options):
        return subprocess.run(self.words(out, *options), capture_output=True, text=True, check=True,
                              stdin=subprocess.DEVNULL)

    def test_a_killed_run_goes_on_without_double_steps_and_half_lines(self):
        out, straight = self.folder / "killed", self.folder / "straight"
        self.one_rank(straight, "--steps", STEPS)
        self.one_rank(out, "--steps", 10, "--save-every", 4, "--save-at-end", "false")
        file = out / "metrics.jsonl"
        with open(file, "a", encoding="utf-8") as half:
            half.write('{"step":11,"loss":3.1,"gr')
        before = file.read_text().splitlines()
        self.one_rank(out, "--steps", STEPS)
        rows = rows_of(out)
        steps = [row["step"] for row in rows if "loss" in row]
        self.assertEqual(steps, list(range(1, STEPS + 1)))
        values = [[(row["step"], row["loss"], row["grad_norm"], row["lr"]) for row in rows_of(run) if "loss" in row]
                  for run in (out, straight)]
        self.assertEqual(*values)
        kept = [line for line in before[:-1] if json.loads(line)["step"] <= 8]
        self.assertEqual(file.read_text().splitlines()[:len(kept)], kept)
        # the save that it continued from was announced after step 8, and is still there
        self.assertIn(8, [row["step"] for row in rows if row.get("event") == "save"])
        self.assertEqual([row["step"] for row in rows if row.get("event") == "resume"][:1], [8])

    def test_a_run_killed_before_its_first_save_begins_again(self):
        out = self.folder / "never saved"
        process = subprocess.Popen(self.words(out, "--steps", 100000), stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if (out / "metrics.jsonl").exists() and '"step":3,' in (out / "metrics.jsonl").read_text():
                break
            time.sleep(0.02)
        process.kill()
        process.wait()
        self.one_rank(out, "--steps", 4)
        self.assertEqual([row["step"] for row in rows_of(out) if "loss" in row], [1, 2, 3, 4])

    def test_events_have_what_is_documented(self):
        out = eventful_run.make_run(self.folder, "eventful")
        rows = rows_of(out)
        events = {row["event"] for row in rows if "event" in row}
        self.assertLessEqual({"start", "resume", "configuration", "memory", "communication", "save", "end"}, events)
        for row in rows:
            if "event" in row:
                self.assertGreater(row["time"], 1.7e9)
        step = next(row for row in rows if "loss" in row)
        self.assertEqual(list(step), ["step", "loss", "grad_norm", "lr", "tokens", "padding", "targets",
                                      "tokens_per_second", "seconds", "skipped", "pages", "resident_pages",
                                      "state_device_bytes", "paged_in_bytes", "paged_out_bytes", "sweep_seconds",
                                      "sweep_bytes_per_second", "exposed_update_seconds",
                                      "exposed_exchange_seconds"])
        first, second = [row for row in rows if row.get("event") == "configuration"]
        self.assertEqual((first["ranks"], second["ranks"], first["clip"]), (2, 1, 1.0))
        self.assertEqual(first["options"]["lr"], "3e-3")
        memory = next(row for row in rows if row.get("event") == "memory")["lines"]
        state = [line for line in memory if line["name"] == "optimizer state"]
        self.assertTrue(state and all(line["planned"] == line["allocated"] > 0 for line in state), state)
        sent = [(row["step"], row["bytes"]) for row in rows if row.get("event") == "communication"]
        # two ranks, four micro-batches, two rounds: each sends half of every unit twice as gradients and, but for the
        # first step and the one behind a skipped one, its own half as parameters; all of it in f32
        parameters = first["parameters"]
        padded = sent[1][1] - sent[0][1]
        self.assertGreaterEqual(padded, parameters * 4 // 2)
        self.assertLess(padded, parameters * 4 // 2 + 4 * 4 * 2048)
        self.assertEqual(sent, [(1, 2 * padded), (2, 3 * padded), (9, 2 * padded), (10, 3 * padded), (15, 0)])
        skipped = [row["step"] for row in rows if row.get("skipped")]
        self.assertEqual(skipped, [8])
        documented = (pathlib.Path(__file__).parents[2] / "runtime" / "monitor" / "metrics.md").read_text(encoding="utf-8")
        for name in {key for row in rows for key in row} | {key for line in memory for key in line} | events:
            self.assertIn(f"`{name}`", documented)


class Ranks(Case):
    """Which ranks compute for longer than others, as it is reported."""

    def run_of(self, out, ranks, *options):
        words = list(map(str, self.words(out, *options)))
        words[words.index("--global-batch") + 1] = "128"
        words[words.index("--init") + 1] = str(eventful_run.GOLDEN)
        return [MPIEXEC, "-np", str(ranks), *words]

    def test_how_evenly_ranks_compute_is_written_every_20_steps_and_at_the_end(self):
        out = self.folder / "even"
        subprocess.run(self.run_of(out, 3, "--steps", 47, "--log-every", 3), capture_output=True, check=True,
                       stdin=subprocess.DEVNULL)
        rows = [row for row in rows_of(out) if row.get("event") == "ranks"]
        self.assertEqual([(row["step"], row["steps"]) for row in rows], [(21, 21), (42, 21), (47, 5)])
        seconds = {row["step"]: row["seconds"] for row in rows_of(out) if "loss" in row}
        for row in rows:
            mean = sum(seconds[step] for step in range(row["step"] - row["steps"] + 1, row["step"] + 1)) / row["steps"]
            for field in ("computing_seconds", "exposed_update_seconds", "exposed_exchange_seconds"):
                each = row[field]["by_rank"]
                self.assertEqual((row[field]["least"], row[field]["median"], row[field]["most"]), tuple(sorted(each)))
                self.assertEqual(each[row[field]["most_rank"]], max(each))
                self.assertGreaterEqual(min(each), 0)
            parts = zip(*(row[field]["by_rank"] for field in ("computing_seconds", "exposed_update_seconds",
                                                               "exposed_exchange_seconds")))
            for spent in parts:  # the rest is the exchange of integers, where ranks wait for each other
                self.assertLess(sum(spent), 1.05 * mean)
            self.assertTrue(row["slowest_host"])
        alone = self.folder / "alone"
        subprocess.run(self.run_of(alone, 1, "--steps", 25)[3:], capture_output=True, check=True,
                       stdin=subprocess.DEVNULL)
        self.assertFalse([row for row in rows_of(alone) if row.get("event") in ("ranks", "slow rank")])

    def test_a_rank_that_holds_the_others_up_is_named(self):
        out = self.folder / "held up"
        with subprocess.Popen(self.run_of(out, 2, "--steps", 25), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, stdin=subprocess.DEVNULL) as process:
            threading.Thread(target=self.hold_up, args=(process, wait_for_ranks(process.pid, "train", 2)[1]),
                             daemon=True).start()
            output = process.stdout.read()
        self.assertEqual(process.returncode, 0, output)
        named = [row for row in rows_of(out) if row.get("event") == "slow rank"]
        self.assertIn(1, [row["rank"] for row in named], output)
        row = next(row for row in named if row["rank"] == 1)
        self.assertGreaterEqual(row["step"], 20)
        self.assertGreater(row["excess"], 0.05)
        text = re.search(rf"warning: (rank 1 on {re.escape(row['host'])} has computed (\d+)% longer than the median of the "
                         r"ranks with as many micro-batches \((.*) s against (.*) s in a typical one of its last 20 steps\): .*)", output)
        self.assertTrue(text, output)
        self.assertAlmostEqual(float(text[3]) / float(text[4]), 1 + int(text[2]) / 100, delta=0.02 * float(text[3]) / float(text[4]))
        warnings = [json.loads(line) for line in (out / "warnings.jsonl").read_text().splitlines()]
        self.assertIn((row["step"], text[1]), [(warning["step"], warning["text"]) for warning in warnings])
        last = [row for row in rows_of(out) if row.get("event") == "ranks"][-1]["computing_seconds"]
        self.assertEqual(last["most_rank"], 1)

    @staticmethod
    def hold_up(process, rank):
        """Lets the rank have a fifth of the time, in turns shorter than a step, until the run ends."""
        try:
            while process.poll() is None:
                os.kill(rank, signal.SIGSTOP)
                time.sleep(0.02)
                os.kill(rank, signal.SIGCONT)
                time.sleep(0.005)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    unittest.main()
