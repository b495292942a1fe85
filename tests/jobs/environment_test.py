"""What lies outside the programs: who reads their output, signals, names, permissions, files of earlier runs."""
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from train_test import (BAD_FILE, BAD_OPTIONS, BIN, CANNOT_WRITE, MPIEXEC, RESTART, Case, environment, events, is_mpich, metrics,
                        train, with_small)


class EnvironmentCase(Case):
    """Most runs are of one rank without mpirun: what is tested is the process."""

    def command(self, out, *arguments):
        return [BIN / "train", "--data", self.corpus, "--out", out, *with_small(*arguments)]

    def start(self, out, *arguments, ranks=1, **more):
        launcher = [] if ranks == 1 else [MPIEXEC, "-np", str(ranks)]
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        process = subprocess.Popen([*launcher, *map(str, self.command(out, *arguments))], text=True,
                                   stdin=subprocess.DEVNULL, env=environment(), **more)
        self.addCleanup(process.kill)
        return process

    def until(self, process, condition, seconds=150):
        end = time.monotonic() + seconds
        while not condition():
            self.assertIsNone(process.poll(), "the run ended by itself")
            self.assertLess(time.monotonic(), end, "it never came so far")
            time.sleep(0.02)

    @staticmethod
    def steps_done(out):
        return len(metrics(out)) if (out / "metrics.jsonl").exists() else 0


class Output(EnvironmentCase):
    """stdout that is closed, full, or a pipe that nobody reads any more."""

    TOOLS = (("inspect", "--help"), ("tokenize", "--help"), ("tokenize", "--version"), ("generate", "--help"),
             ("generate", "--version"), ("convert", "--help"), ("convert", "--version"), ("report", "--help"),
             ("report", "--version"), ("bench", "--help"), ("train", "--help"), ("train", "--version"),
             ("train", "--plan", "--model", "tiny"), ("train", "--plan", "--json", "--model", "tiny"))

    def run_without_reader(self, words, **more):
        """Of a process whose stdout is a pipe that nobody reads: status and stderr."""
        read, write = os.pipe()
        os.close(read)
        try:
            return subprocess.run([str(word) for word in words], stdout=write, stderr=subprocess.PIPE, text=True,
                                  check=False, env=environment(), stdin=subprocess.DEVNULL, timeout=150, **more)
        finally:
            os.close(write)

    def run_with_full_disk(self, words, **more):
        with open("/dev/full", "wb") as full:
            return subprocess.run([str(word) for word in words], stdout=full, stderr=subprocess.PIPE, text=True,
                                  check=False, env=environment(), stdin=subprocess.DEVNULL, timeout=150, **more)

    def run_closed(self, words, closing=">&-"):
        return subprocess.run(["bash", "-c", f'"$@" {closing}', "bash", *(str(word) for word in words)],
                              stderr=subprocess.PIPE, text=True, check=False, env=environment(),
                              stdin=subprocess.DEVNULL, timeout=150)

    def test_every_tool_ends_with_4_and_one_sentence_where_its_output_is_lost_and_quietly_without_a_reader(self):
        out = self.out("looked at")
        self.assertEqual(self.start(out, "--steps", 2).wait(), 0)
        step = out / "step-00000002"
        tools = [(BIN / name, *words) for name, *words in self.TOOLS]
        tools += [(BIN / "inspect", out), (BIN / "inspect", step, "--json"), (BIN / "report", out),
                  (BIN / "tokenize", "--tokenizer", "bytes", "--out", self.folder / "again.h5",
                   self.folder / "text"),
                  (BIN / "generate", out, "--prompt", "the", "--max-tokens", "3"),
                  (BIN / "convert", "export", out, self.folder / "exported")]
        ways = {"it is closed": self.run_closed, "no space left on the device": self.run_with_full_disk,
                "Broken pipe": self.run_without_reader}
        for number, words in enumerate(tools):
            cause = list(ways)[number % len(ways)]
            result = ways[cause](words)
            with self.subTest(words=words[1:], program=words[0].name, cause=cause):
                unread = cause == "Broken pipe"  # 141: cut short, as by SIGPIPE
                self.assertIn(result.returncode, (0, 141) if unread else (CANNOT_WRITE,), result.stderr)
                self.assertEqual(result.stderr.count("cannot write to standard output"), int(not unread), result.stderr)
                self.assertIn("" if unread else f"cannot write to standard output: {cause}", result.stderr)

    def test_every_program_answers_help_and_version_alike(self):
        for name in ("train", "tokenize", "inspect", "report", "generate", "convert", "bench"):
            reported = {word: subprocess.run([BIN / name, word], capture_output=True, text=True, check=False, timeout=60,
                                         env=environment()) for word in ("--help", "-h", "--version")}
            with self.subTest(program=name):
                self.assertEqual([(r.returncode, r.stderr) for r in reported.values()], [(0, "")] * 3)
                self.assertEqual(reported["-h"].stdout, reported["--help"].stdout)
                self.assertIn(name, reported["-h"].stdout)
                self.assertNotIn("\n\n\n", reported["-h"].stdout)
                self.assertRegex(reported["--version"].stdout, rf"^{name} of tessera \d+\.\d+\.\d+(, .*)?\n$")

    def test_training_goes_on_without_its_output(self):
        reference = self.out("with")
        self.assertEqual(self.start(reference, "--steps", 6).wait(), 0)
        ways = {"it is closed": self.run_closed, "no space left on the device": self.run_with_full_disk,
                "Broken pipe": self.run_without_reader}
        for cause, run in ways.items():
            out = self.out(f"without {cause}")
            result = run(self.command(out, "--steps", 6))
            with self.subTest(cause=cause):
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(result.stderr.count("cannot write to standard output"), 1, result.stderr)
                self.assertIn(f"cannot write to standard output: {cause}; the run continues without it",
                              result.stderr)
                self.assertEqual(metrics(out), metrics(reference))
                self.assertTrue((out / "step-00000006").is_dir())

    def test_no_file_of_a_run_takes_the_place_of_a_closed_stream(self):
        out = self.out("all closed")
        result = self.run_closed(self.command(out, "--steps", 4), "<&- >&- 2>&-")
        self.assertEqual(result.returncode, 0)
        for line in (out / "metrics.jsonl").read_text().splitlines():
            json.loads(line)  # nothing else is in it
        self.assertEqual(subprocess.run([BIN / "inspect", out, "--verify"], check=False,
                                        stdout=subprocess.DEVNULL).returncode, 0)

    @unittest.skipIf(is_mpich(), "how Open MPI's mpirun passes on its ranks' output")
    def test_ranks_under_mpirun_go_on_when_nobody_reads_it(self):
        out = self.out("head")
        steps = 16  # more lines than mpirun tolerates failures
        result = self.run_without_reader([MPIEXEC, "-np", 2, *self.command(out, "--steps", steps)])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(metrics(out)[-1][0], steps)
        self.assertTrue((out / f"step-{steps:08}").is_dir())


class Signals(EnvironmentCase):
    ENDLESS = ("--steps", 100000)

    def stopped(self, process, out, reason):
        stdout, stderr = process.communicate(timeout=150)
        self.assertEqual(process.returncode, RESTART, stdout + stderr)
        last = metrics(out)[-1][0]
        self.assertIn(f"stopped at step {last} by {reason}: saved", stdout)
        self.assertTrue((out / f"step-{last:08}").is_dir())
        return stdout

    def test_hangup_and_usr2_save_and_stop(self):
        for number in (signal.SIGHUP, signal.SIGUSR2):
            out = self.out(f"stopped {number}")
            process = self.start(out, *self.ENDLESS)
            self.until(process, lambda: self.steps_done(out) > 2)
            process.send_signal(number)
            with self.subTest(number=number):
                self.stopped(process, out, f"signal {number.name[3:]}")

    def test_the_limit_of_cpu_time_saves_and_stops(self):
        out = self.out("cpu time")
        process = self.start(out, *self.ENDLESS,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (2, 60)))
        self.stopped(process, out, "signal XCPU")

    def test_a_hangup_that_is_ignored_stays_ignored(self):
        out = self.out("nohup")
        process = self.start(out, *self.ENDLESS,
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.until(process, lambda: self.steps_done(out) > 2)
        process.send_signal(signal.SIGHUP)
        then = self.steps_done(out)
        self.until(process, lambda: self.steps_done(out) > then + 5)
        process.send_signal(signal.SIGUSR1)
        self.stopped(process, out, "signal USR1")

    def drop(self, what, after, *arguments, ranks=2):
        """Tells one of the ranks to stop when the first steps are done, and something long is under way."""
        out = self.out(f"drop {what} {len(arguments)}")
        process = self.start(out, *self.ENDLESS, "--eval-data", self.held_out, *arguments, ranks=ranks)
        self.until(process, lambda: self.steps_done(out) >= after)
        time.sleep(0.3)
        self.assertEqual(self.steps_done(out), after, "it takes longer than that")
        process.send_signal(signal.SIGUSR1)
        at = time.monotonic()
        stdout = self.stopped(process, out, "signal USR1")
        self.assertLess(time.monotonic() - at, 30)  # on a busy machine
        self.assertIn(f"no {what} at step {after}: asked to stop by signal USR1", stdout)
        self.assertEqual(metrics(out)[-1][0], after)
        self.assertEqual(len(events(out, "dropped")), 1)
        return out

    def test_an_evaluation_is_dropped_for_a_save(self):
        # thousands of micro-batches of a model that is not tiny
        long = self.folder / "long.txt"
        long.write_text("the quick fox " * 40000)
        self.held_out = self.folder / "long.h5"
        subprocess.run([BIN / "tokenize", "--tokenizer", "bytes", "--out", self.held_out, long], check=True,
                       capture_output=True)
        out = self.drop("evaluation", 3, "--eval-every", 3, "--eval-sequences", 0, "--micro-batch", 1)
        self.assertNotIn("eval_loss", (out / "metrics.jsonl").read_text())

    def test_a_sample_is_dropped_for_a_save(self):
        self.drop("sample", 4, "--sample-every", 4, "--sample-prompt", "the", "--sample-tokens", 20000)

    def test_samples_that_all_ranks_write_are_dropped_for_a_save(self):
        out = self.drop("sample", 4, "--sample-every", 4, "--sample-prompt", "the", "--sample-prompt", "a fox, and two",
                        "--sample-tokens", 20000, "--zero", 3)
        self.assertEqual(events(out, "sample"), [])


def run(*words, **more):
    """One rank without mpirun, or a tool."""
    return subprocess.run(words, capture_output=True, check=False, env=environment(), stdin=subprocess.DEVNULL,
                          timeout=150, **more)


def text_of(result):
    return (result.stdout + result.stderr).decode(errors="replace")


class Names(EnvironmentCase):
    """Names that are long, many, or not UTF-8."""
    INSIDE = len("/.tmp-step-9223372036854775807.12345678/shard-00000-of-99999.h5")

    @staticmethod
    def long_path(start, length):
        """A path of so many bytes, of parts that a file system takes, below `start`."""
        path = str(start)
        while (size := len(os.fsencode(path))) < length:
            left = length - size - 1
            path += "/" + "p" * (left if left <= 200 else min(200, left - 2))
        return path

    def test_an_output_folder_may_be_as_long_as_a_path(self):
        most = 4095 - self.INSIDE
        for length in (198, 1000, most):
            out = self.long_path(self.folder.resolve(), length)
            with self.subTest(length=length):
                self.assertEqual(len(os.fsencode(out)), length)
                result = run(*map(str, self.command(out, "--steps", 2)))
                self.assertEqual(result.returncode, 0, text_of(result))
                self.assertEqual(run(BIN / "inspect", out, "--verify").returncode, 0)
                again = run(*map(str, self.command(out, "--steps", 3)))
                self.assertIn(b"continuing after step 2", again.stdout)
        relative = self.long_path("r", 300)
        result = run(*map(str, self.command(relative, "--steps", 1)), cwd=self.folder)
        self.assertEqual(result.returncode, 0, text_of(result))
        self.assertTrue((self.folder / relative / "step-00000001").is_dir())

    def test_a_longer_one_is_refused_before_the_first_step(self):
        most = 4095 - self.INSIDE
        for start in (str(self.folder.resolve()), "relative"):
            out = self.long_path(start, most + 1)
            result = run(*map(str, self.command(out, "--steps", 1)), cwd=self.folder)
            with self.subTest(start=start):
                self.assertEqual(result.returncode, BAD_OPTIONS, text_of(result))
                self.assertIn(f"--out has {most + 1} bytes, and with the names of a checkpoint's files behind it "
                              f"at most {most} are possible".encode(), result.stderr)
                self.assertFalse(os.path.exists(os.path.join(self.folder, out.split("/p")[0], "p")))

    def test_any_number_of_data_files_can_be_named(self):
        folder = self.folder / "many"
        folder.mkdir()
        names = [folder / f"{'n' * 200} {number}.h5" for number in range(300)]
        for name in names:
            os.link(self.corpus, name)
        out = self.out("many files")
        words = ["--data", *map(str, names), "--out", str(out), *with_small("--steps", 2)]
        result = run(BIN / "train", *words)
        self.assertEqual(result.returncode, 0, text_of(result))
        shown = run(BIN / "inspect", out / "step-00000002", "--json", "--verify")
        self.assertEqual(shown.returncode, 0, text_of(shown))
        self.assertIn(str(names[-1]), json.dumps(json.loads(shown.stdout), ensure_ascii=False))
        words[words.index("--steps") + 1] = "3"
        again = run(BIN / "train", *words)
        self.assertEqual(again.returncode, 0, text_of(again))
        self.assertIn(b"continuing after step 2", again.stdout)
        self.assertNotIn(b"--data was", again.stdout)

    def test_names_of_any_bytes_work_and_are_shown_escaped(self):
        folder = os.path.join(os.fsencode(self.folder), b"\xff\xfe caf\xe9 \\x41")
        os.mkdir(folder)
        data, held_out, config, out = (os.path.join(folder, name) for name in (
            b"d\xff.h5", b"e\xff.h5", b"c\xff.json", b"out\xff"))
        shutil.copy(self.corpus, data)
        shutil.copy(self.held_out, held_out)
        first = run(BIN / "train", "--data", data, "--model", "tiny", "--out", os.path.join(folder, b"first"),
                    *with_small("--steps", 1))
        self.assertEqual(first.returncode, 0, text_of(first))
        exported = run(BIN / "convert", "export", os.path.join(folder, b"first"), os.path.join(folder, b"hf\xff"))
        self.assertEqual(exported.returncode, 0, text_of(exported))
        shutil.copy(os.path.join(folder, b"hf\xff", b"config.json"), config)
        words = [BIN / "train", "--data", data, "--eval-data", held_out, "--eval-every", "1", "--model", config,
                 "--init", os.path.join(folder, b"hf\xff"), "--out", out, "--trace", "1:2",
                 *with_small("--steps", 2)]
        result = run(*words)
        self.assertEqual(result.returncode, 0, text_of(result))
        result.stdout.decode()  # all of it is UTF-8
        self.assertIn(b"d\\xff.h5", result.stdout)
        for line in pathlib.Path(os.fsdecode(out), "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row.get("event") == "configuration":
                # reversible: the bytes of the name again, a backslash that was in it included
                stored = row["options"]["data"].encode()
                self.assertIn(b"\\x5cx41", stored)
        words[-1] = "3"
        again = run(*words)
        self.assertEqual(again.returncode, 0, text_of(again))
        self.assertIn(b"continuing after step 2", again.stdout)
        self.assertNotRegex(again.stdout, rb"--(?!steps)\S+ was .* and is ")
        for tool in ([BIN / "inspect", out, "--json"], [BIN / "inspect", data, "--json"], [BIN / "report", out],
                     [BIN / "generate", out, "--prompt", "a", "--max-tokens", "2"],
                     [BIN / "tokenize", "--out", os.path.join(folder, b"t\xff.h5"), os.fsencode(self.folder / "text")]):
            shown = run(*tool)
            if tool[1] == data:
                self.assertNotIn(shown.returncode, (9, -6), text_of(shown))
                continue
            self.assertEqual(shown.returncode, 0, text_of(shown))
            if "--json" in tool:
                self.assertIn("\\xff", json.dumps(json.loads(shown.stdout.decode())))


def other_user():
    """How to run as a user without rights; None where this process cannot."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return None
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@unittest.skipIf(other_user() is None, "needs root and setpriv, to run as a user without rights")
class Permissions(EnvironmentCase):
    """A user who may not search a folder on the way."""

    def setUp(self):
        os.chmod(self.folder, 0o755)
        self.public = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        os.chmod(self.public, 0o777)
        self.closed = self.public / "closed"
        self.closed.mkdir(mode=0o700)

    def as_other(self, *words, cwd=None):
        more = {"cwd": cwd or self.public}
        return run(*other_user(), *map(str, words), **more)

    def refused(self, status, name, *words):
        result = self.as_other(*words)
        with self.subTest(words=[str(word) for word in words]):
            self.assertEqual(result.returncode, status, text_of(result))
            reported = result.stderr.decode()
            self.assertEqual(reported.count("Permission denied"), 1, reported)
            self.assertIn(str(name), reported)
            self.assertNotIn("report it", reported)

    def test_what_cannot_be_reached_is_reported_with_the_code_for_reading_or_writing(self):
        can_run = self.as_other(BIN / "train", "--version")
        if can_run.returncode != 0:
            self.skipTest(f"another user cannot run the programs here: {text_of(can_run)}")
        closed, text = self.closed / "x", self.folder / "text"
        small = with_small("--steps", 1)
        data, out = ["--data", self.corpus], ["--out", self.public / "out"]
        self.refused(CANNOT_WRITE, closed, BIN / "train", *data, "--out", closed, *small)
        self.refused(BAD_FILE, closed, BIN / "train", "--data", closed, *out, *small)
        self.refused(BAD_FILE, closed, BIN / "train", *data, *out, *small, "--eval-data", closed)
        self.refused(BAD_FILE, closed, BIN / "train", *data, *out, *small, "--init", closed)
        self.refused(BAD_FILE, closed, BIN / "train", *data, *out, *small, "--resume", closed)
        self.refused(BAD_FILE, closed, BIN / "train", *data, *out, *small, "--model", f"{closed}.json")
        self.refused(BAD_FILE, closed, BIN / "train", *data, *out, *small, "--config", closed)
        self.refused(BAD_FILE, closed, BIN / "generate", closed, "--prompt", "a")
        self.refused(BAD_FILE, closed, BIN / "inspect", closed)
        self.refused(BAD_FILE, closed, BIN / "report", closed)
        self.refused(BAD_FILE, closed, BIN / "convert", "import", closed, self.public / "imported")
        self.refused(BAD_FILE, closed, BIN / "convert", "export", closed, self.public / "exported")
        self.refused(BAD_FILE, closed, BIN / "tokenize", "--tokenizer", "bytes", "--out", self.public / "t.h5", closed)
        self.refused(BAD_FILE, closed, BIN / "tokenize", "--tokenizer", closed, "--out", self.public / "t.h5", text)
        self.refused(CANNOT_WRITE, closed, BIN / "tokenize", "--tokenizer", "bytes", "--out", closed, text)

    def test_results_cannot_be_written_there(self):
        run_folder = self.out("saved")
        self.assertEqual(run(*map(str, self.command(run_folder, "--steps", 1))).returncode, 0)
        closed = self.closed / "x"
        self.refused(CANNOT_WRITE, closed, BIN / "convert", "export", run_folder, closed)
        self.refused(CANNOT_WRITE, closed, BIN / "report", run_folder, "--out", closed)
        exported = self.out("hf")
        self.assertEqual(run(BIN / "convert", "export", run_folder, exported).returncode, 0)
        self.refused(CANNOT_WRITE, closed, BIN / "convert", "import", exported, closed)


def remove(path):
    path.unlink(missing_ok=True)


def flip(path):
    """One bit of the file's middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


class Earlier(EnvironmentCase):
    """Files of an earlier run are not taken for this one's, and failures are called by their cause."""

    def test_a_run_that_begins_anew_puts_the_earlier_ones_records_away(self):
        out = self.out("again")
        first = ("--steps", 3, "--save-at-end", "false", "--trace", "2:2")
        self.assertEqual(run(*map(str, self.command(out, *first))).returncode, 0)
        (out / "warnings.jsonl").write_text('{"step":1,"event":"warning","text":"of the first"}\n')
        (out / "report.html").write_text("<!DOCTYPE html>")
        old = {name: (out / name).read_bytes() for name in ("metrics.jsonl", "trace.json", "warnings.jsonl")}
        result = run(*map(str, self.command(out, "--steps", 2)))
        self.assertEqual(result.returncode, 0, text_of(result))
        for name, content in old.items():
            self.assertEqual((out / f".earlier-{name}.1").read_bytes(), content)
        for name in ("trace.json", "warnings.jsonl", "report.html"):
            self.assertFalse((out / name).exists(), name)
        starts = [event["text"] for event in events(out, "start")]
        self.assertEqual(len([text for text in starts if text.startswith("starting at step 1")]), 1, starts)
        self.assertEqual([row[0] for row in metrics(out)], [1, 2])
        # a run that continues keeps its own
        result = run(*map(str, self.command(out, "--steps", 4)))
        self.assertEqual(result.returncode, 0, text_of(result))
        self.assertEqual([row[0] for row in metrics(out)], [1, 2, 3, 4])
        self.assertEqual(len(list(out.glob(".earlier-*"))), 4)

    @staticmethod
    def contents(folder):
        """Every name in it, with what lies under it; a lock says who had it last."""
        found = {}
        for path in sorted(folder.rglob("*")):
            if path.name != ".lock" or not path.is_file():
                found[path.relative_to(folder)] = (
                    os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None)
        return found

    def test_a_start_that_fails_leaves_the_folder_as_it_was(self):
        first = self.out("first")
        result = run(*map(str, self.command(first, "--steps", 4, "--save-every", 2)))
        self.assertEqual(result.returncode, 0, text_of(result))
        other = self.out("other")
        self.assertEqual(run(*map(str, self.command(other, "--steps", 1))).returncode, 0)
        back = ("--resume", "step-00000002")
        # what is in the folder, the arguments, the status, and a part of the sentence
        metrics_name, branch = "metrics.jsonl", "branch.json"
        cases = [
            (lambda out: None, ("--data", self.folder / "no.h5"), BAD_OPTIONS, "no.h5: No such file or directory"),
            (lambda out: None, ("--eval-data", first / "no.h5"), BAD_OPTIONS, "no.h5: No such file or directory"),
            (lambda out: None, ("--model", "small"), BAD_OPTIONS, "another model"),
            (lambda out: None, ("--resume", "none"), BAD_OPTIONS, "holds steps of a run already"),
            (lambda out: None, ("--resume", other), BAD_OPTIONS, "did not begin there"),
        ]
        for name in (metrics_name, ".superseded-metrics.jsonl", ".lock", "tokens.json"):
            cases += [(lambda out, name=name: (remove(out / name), (out / name).mkdir()), back, None, name),
                      (lambda out, name=name: (remove(out / name), os.mkfifo(out / name)), back, None, name)]
            if name != ".lock":  # whose target is made, and locked
                cases += [(lambda out, name=name: (remove(out / name), (out / name).symlink_to("nothing")), back, None,
                           name)]
        records = lambda out: (shutil.rmtree(out / "step-00000002"), shutil.rmtree(out / "step-00000004"))  # noqa: E731
        cases += [
            (records, ("--data", self.folder / "no.h5"), BAD_OPTIONS, "no.h5"),
            (records, ("--init", self.folder / "no folder"), BAD_OPTIONS, "no folder"),
            (lambda out: (records(out), (out / branch).write_text("a user's")), ("--resume", other), BAD_OPTIONS,
             branch),
            (lambda out: (records(out), (out / branch).mkdir()), ("--resume", other), None, branch),
        ]
        for number, (prepare, arguments, status, sentence) in enumerate(cases):
            with self.subTest(number=number, arguments=arguments, sentence=sentence):
                out = self.out(f"failed {number}")
                shutil.copytree(first, out)
                prepare(out)
                before = self.contents(out)
                words = [out / word if word == "step-00000002" else word for word in arguments]
                result = run(*map(str, self.command(out, "--steps", 6, *words)))
                self.assertIn(result.returncode, (BAD_OPTIONS, CANNOT_WRITE, BAD_FILE) if status is None else (status,),
                              text_of(result))
                self.assertIn(sentence, result.stderr.decode() if isinstance(result.stderr, bytes) else result.stderr)
                self.assertEqual(self.contents(out), before)
        # nor is a folder made for a run that does not start
        out = self.out("never made")
        self.assertEqual(run(*map(str, self.command(out, "--data", self.folder / "no.h5"))).returncode, BAD_OPTIONS)
        self.assertFalse(out.exists())
        # nor is anything left of a start that is refused once it has looked at its folders
        local, export = self.folder / "local never/made", self.folder / "exports never/made"
        for ranks, arguments, status, sentence in (
                (1, ("--resume", self.folder), BAD_FILE, "no complete step"),
                (2, ("--resume", self.folder), BAD_FILE, "no complete step"),
                (2, ("--save-local", local, "--save-local-every", 2, "--resume", self.folder), BAD_FILE, "no complete step"),
                (2, ("--export", export, "--model", "small", "--init", other), BAD_OPTIONS, "another model")):
            with self.subTest(ranks=ranks, arguments=arguments):
                for out, left in ((self.out("never") / "a/b", False), (self.out("mine"), True)):
                    if left:
                        out.mkdir()
                        (out / "notes.txt").write_text("a user's")
                    result = train(ranks, *map(str, ("--data", self.corpus, "--out", out, *with_small("--steps", 6, *arguments))))
                    self.assertEqual(result.returncode, status, result.stderr)
                    self.assertIn(sentence, result.stderr)
                    self.assertEqual([path.name for path in out.iterdir()] if left else out.parent.exists(),
                                     ["notes.txt"] if left else False)
                    self.assertFalse(local.parent.exists() or export.parent.exists())
                    if left:
                        shutil.rmtree(out)

    def test_warnings_of_the_start_are_kept_once_the_run_has_begun(self):
        out = self.out("warned")
        self.assertEqual(run(*map(str, self.command(out, "--steps", 2, "--save-every", 1))).returncode, 0)
        flip(next((out / "step-00000002").glob("shard-*")))
        result = run(*map(str, self.command(out, "--steps", 3)))
        self.assertEqual(result.returncode, 0, text_of(result))
        warnings = [json.loads(line)["text"] for line in (out / "warnings.jsonl").read_text().splitlines()]
        self.assertEqual(len([text for text in warnings if text.startswith("passing over")]), 1, warnings)

    def test_a_stop_file_that_was_there_before_does_not_stop_the_run(self):
        out, stop = self.out("stop"), self.folder / "stop now"
        stop.touch()
        process = self.start(out, "--steps", 100000, "--stop-file", stop)
        self.until(process, lambda: self.steps_done(out) > 20)
        time.sleep(1.1)
        self.assertTrue(stop.exists())
        self.assertIsNone(process.poll())
        stop.touch()
        stdout, stderr = process.communicate(timeout=150)
        self.assertEqual(process.returncode, RESTART, stdout + stderr)
        self.assertIn("by the stop file: saved", stdout)
        self.assertIn(f"stop file {stop} was there before this run", stderr)

    def test_a_sentencepiece_model_of_an_earlier_run_is_not_kept(self):
        out = self.out("tokens")
        self.assertEqual(run(*map(str, self.command(out, "--steps", 1))).returncode, 0)
        (out / "tokenizer.model").write_text("an earlier run's")
        self.assertEqual(run(*map(str, self.command(out, "--steps", 2))).returncode, 0)
        self.assertFalse((out / "tokenizer.model").exists())

    def test_a_pipe_in_place_of_the_metrics_is_refused(self):
        out = self.out("pipe")
        out.mkdir()
        os.mkfifo(out / "metrics.jsonl")  # to open it for reading would wait without end
        result = run(*map(str, self.command(out, "--steps", 1)))
        self.assertEqual(result.returncode, CANNOT_WRITE, result.stdout + result.stderr)
        self.assertIn(b"metrics.jsonl: it is a named pipe, and a regular file is needed here", result.stderr)

    def test_a_full_disk_under_the_metrics_is_called_so(self):
        out = self.out("full")
        process = self.start(out, "--steps", 100000, "--save-at-end", "false")
        self.until(process, lambda: self.steps_done(out) > 3)
        # so that the next line is cut: write returns less than it was given, and sets no errno
        limit = (out / "metrics.jsonl").stat().st_size + 2000
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        self.until(process, lambda: (out / "warnings.jsonl").exists())
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        then = self.steps_done(out)
        self.until(process, lambda: self.steps_done(out) > then)
        process.send_signal(signal.SIGUSR1)
        stdout, stderr = process.communicate(timeout=150)
        self.assertEqual(process.returncode, RESTART, stdout + stderr)
        self.assertIn("metrics.jsonl: the file size limit (ulimit -f, or the file system's) is reached", stderr)
        self.assertEqual(stderr.count("metrics.jsonl"), 1)
        for line in (out / "metrics.jsonl").read_text().splitlines():
            json.loads(line)


if __name__ == "__main__":
    unittest.main()
