"""report as a user runs it: its numbers are those of metrics.jsonl, no text of a file leaves its place, and a real
browser draws the page on a desk and on a phone."""
import csv
import html.parser
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import browser
import eventful_run
from eventful_run import BIN, STEPS

SKIPPED = 77
BAD_OPTIONS, BAD_FILE, CANNOT_WRITE = 2, 3, 4
EVIL = "</script><b> & 'ü\" %1"
# TESSERA_SCREENSHOTS=FOLDER keeps the pictures of the browser's tests
PICTURES = os.environ.get("TESSERA_SCREENSHOTS")


def report(*arguments):
    return subprocess.run([BIN / "report", *map(str, arguments)], capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, timeout=100)


class Page(html.parser.HTMLParser):
    """What a page's elements are, and the text in #data."""

    def __init__(self, file):
        super().__init__()
        self.tags, self.scripts, self.inside = [], [], None
        self.feed(file.read_text(encoding="utf-8"))
        self.data = json.loads(self.scripts[0])

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, text):
        if self.inside == "script":
            self.scripts[-1] += text


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="tessera ü %1 '")
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.run_a = eventful_run.make_run(cls.folder, "first run")
        # a slash would end the name: the evil one goes without
        cls.run_b = eventful_run.make_run(cls.folder, EVIL.replace("/", ""), "--lr", "1e-3", "--trace", "13:14")

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def page_of(self, *arguments):
        out = self.folder / "page.html"
        result = report(*arguments, "--out", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        return Page(out)


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


class Numbers(Case):
    def test_all_numbers_of_the_page_are_those_of_the_file(self):
        page = self.page_of(self.run_a, self.run_b)
        self.assertEqual(len(page.data["runs"]), 2)
        for folder, run in zip((self.run_a, self.run_b), page.data["runs"]):
            rows = rows_of(folder)
            for columns, kind in ((run["columns"], "loss"), (run["evaluations"], "eval_loss")):
                lines = [row for row in rows if kind in row]
                self.assertGreater(len(lines), 5)
                self.assertLessEqual({key for row in lines for key in row}, set(columns))
                for name, values in columns.items():
                    self.assertEqual(values, [row.get(name) for row in lines], name)
            for name in ("communication", "configurations", "memory"):
                self.assertGreater(len(run[name]), 0, name)
            lines = [row for row in rows if row.get("event") == "communication"]
            self.assertEqual(run["communication"]["bytes"], [row["bytes"] for row in lines])
            self.assertEqual(run["communication"]["step"], [row["step"] for row in lines])
            self.assertEqual(run["configurations"], [row for row in rows if row.get("event") == "configuration"])
            memory = [row for row in rows if row.get("event") == "memory"][-1]
            self.assertEqual((run["memory"], run["resident"]), (memory["lines"], memory["resident_parameters"]))
            self.assertEqual(run["resident"]["names"], "none")  # --resident-bytes none
            self.assertGreater(run["resident"]["of"], 10)
            silent = ("communication", "configuration", "memory")
            self.assertEqual(run["events"], [row for row in rows if "event" in row and row["event"] not in silent])
            self.assertGreaterEqual(sum(row["event"] == "save" for row in run["events"]), 3)
            self.assertEqual(sum(run["columns"]["skipped"]), 1)
            self.assertIn("resume", [row["event"] for row in run["events"]])

    def test_the_timeline_has_the_ranges_of_the_trace(self):
        trace = json.loads((self.run_b / "trace.json").read_text())["traceEvents"]
        ranges = [event for event in trace if event["ph"] == "X" and event["args"]["step"] == 13]
        begin = min(event["ts"] for event in ranges)
        timeline = self.page_of(self.run_b, "--trace-step", 13).data["runs"][0]["timeline"]
        self.assertEqual((timeline["step"], timeline["first"], timeline["last"]), (13, 13, 14))
        self.assertEqual([rank["rank"] for rank in timeline["ranks"]], [0, 1])
        for kind in ("compute", "exposed", "exchange"):
            number = timeline["categories"].index(kind)
            drawn = sum(dur for rank in timeline["ranks"] for lane in rank["lanes"]
                        for _, dur, category, _, _ in lane["ranges"] if category == number)
            there = sum(event["dur"] for event in ranges if event["cat"] == kind)
            self.assertAlmostEqual(drawn / there, 1, delta=0.1, msg=kind)
        longest = max(ranges, key=lambda event: event["dur"])
        self.assertIn([longest["name"], round(longest["dur"], 1)],
                      [[timeline["names"][name], round(dur, 1)] for rank in timeline["ranks"] for lane in rank["lanes"]
                       for ts, dur, _, name, _ in lane["ranges"] if abs(ts - (longest["ts"] - begin)) < 0.1])
        self.assertEqual(report(self.run_b, "--trace-step", 20).returncode, BAD_OPTIONS)
        self.assertEqual(report(self.run_a, "--trace-step", 20).returncode, BAD_OPTIONS)
        self.assertIsNone(self.page_of(self.run_a).data["runs"][0]["timeline"])

    def test_every_nth_step_keeps_skipped_and_last_ones(self):
        steps = self.page_of(self.run_a, "--every", 9).data["runs"][0]["columns"]["step"]
        self.assertEqual(steps, [8, 9, 18, STEPS])

    def test_no_text_leaves_its_place(self):
        folder = self.folder / "evil"
        shutil.copytree(self.run_b, folder / EVIL.replace("/", ""))
        file = folder / EVIL.replace("/", "") / "metrics.jsonl"
        for row in ({"step": 3, "event": "save", "time": 1.0, "text": EVIL},
                    {"step": 24, "event": "configuration", "clip": 1, "ranks": 1, "options": {EVIL: EVIL}}):
            with open(file, "a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
        plain, evil = self.page_of(self.run_a), self.page_of(file.parent)
        self.assertEqual(evil.tags, plain.tags)
        self.assertEqual(len(evil.scripts), 2)
        run = evil.data["runs"][0]
        self.assertEqual(run["name"], EVIL.replace("/", ""))
        self.assertEqual(run["configurations"][-1]["options"], {EVIL: EVIL})
        self.assertIn(EVIL, [row.get("text") for row in run["events"]])

    def test_half_lines_are_passed_over_and_other_files_refused(self):
        half = self.folder / "half"
        half.mkdir()
        (half / "metrics.jsonl").write_bytes((self.run_a / "metrics.jsonl").read_bytes() + b'{"step":25,"lo')
        result = report(half)
        self.assertEqual(result.returncode, 0)
        self.assertIn("passed over 1 line not of a training run", result.stderr)
        self.assertEqual(Page(half / "report.html").data["runs"][0]["columns"]["step"][-1], STEPS)
        (half / "trace.json").write_text("[1, 2")
        self.assertIn("no timeline", report(half).stderr)
        (half / "metrics.jsonl").write_text("no JSON\n[1]\n3\n")
        self.assertEqual(report(half).returncode, BAD_FILE)
        (half / "metrics.jsonl").unlink()
        os.mkfifo(half / "metrics.jsonl")
        self.assertIn("it is a named pipe, and a regular file is needed here", report(half).stderr)
        for arguments in (["/nowhere"], [], [self.run_a, "--every", "0"], [self.run_a, "--bogus"],
                          [self.run_a, "--out", self.run_a / "metrics.jsonl"]):
            self.assertEqual(report(*arguments).returncode, BAD_OPTIONS, arguments)
        self.assertEqual(report(self.run_a, "--out", "/dev/null/page.html").returncode, BAD_OPTIONS)

    def test_only_a_page_of_ours_is_replaced(self):
        out = self.folder / "out"
        out.mkdir()
        mine = out / "mine.html"
        mine.write_text("<!DOCTYPE html>\n<html><title>my thesis</title></html>")
        result = report(self.run_a, "--out", mine)
        self.assertEqual(result.returncode, BAD_OPTIONS)
        self.assertIn("is not a page of report", result.stderr)
        self.assertIn("my thesis", mine.read_text())
        page, link = out / "page.html", out / "link.html"
        self.assertEqual(report(self.run_a, "--out", page).returncode, 0)
        link.symlink_to("page.html")
        self.assertEqual(report(self.run_a, self.run_b, "--out", link).returncode, 0)
        self.assertTrue(link.is_symlink())
        self.assertEqual(len(Page(page).data["runs"]), 2)
        (out / "page.html.part").write_text("mine")  # the name of a temporary file once
        self.assertEqual(report(self.run_a, "--out", page).returncode, 0)
        self.assertEqual((out / "page.html.part").read_text(), "mine")
        self.assertEqual(sorted(f.name for f in out.iterdir()), ["link.html", "mine.html", "page.html", "page.html.part"])

    def test_pipes_and_devices_are_written_to(self):
        page = report(self.run_a, "--out", "/dev/stdout")
        self.assertEqual(page.returncode, 0, page.stderr)
        self.assertTrue(page.stdout.startswith("<!DOCTYPE html>"))
        self.assertTrue(page.stdout.endswith("</html>\n"))
        self.assertIn("/dev/stdout: 1 run,", page.stderr)
        self.assertEqual(report(self.run_a, "--out", "/dev/null").returncode, 0)
        self.assertTrue(pathlib.Path("/dev/null").is_char_device())
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        self.assertEqual(report(self.run_a, "--out", pipe).returncode, CANNOT_WRITE)  # nobody reads
        with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
            got = b""
            for _ in range(100):  # until cat has opened it
                if report(self.run_a, "--out", pipe).returncode == 0:
                    got = reader.communicate(timeout=60)[0]
                    break
        self.assertTrue(got.startswith(b"<!DOCTYPE html>"))
        self.assertTrue(pipe.is_fifo())

    def test_event_files_are_one_folder_a_run(self):
        out = self.folder / "tensorboard"
        result = report(self.run_a, self.run_b, "--tensorboard", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        files = sorted(out.glob("*/events.out.tfevents.*"))
        self.assertEqual(len(files), 2)
        self.assertEqual(report(self.run_a, "--tensorboard", out).returncode, 0)
        self.assertEqual(sorted(out.glob("*/*")), files)  # replaced, not doubled
        self.assertIn(b"train/loss", files[0].read_bytes())
        files[0].write_text("mine")
        self.assertEqual(report(self.run_a, self.run_b, "--tensorboard", out).returncode, BAD_OPTIONS)
        self.assertEqual(files[0].read_text(), "mine")


    def test_tables_have_the_numbers_of_the_file(self):
        out = self.folder / "tables"
        result = report(self.run_a, self.run_b, "--csv", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(result.stdout.splitlines()), 4, result.stdout)
        self.assertFalse((self.run_a / "report.html").exists())
        for run in (self.run_a, self.run_b):
            rows = rows_of(run)
            for name, kind in (("steps", "loss"), ("evaluations", "eval_loss")):
                with open(out / run.name / f"{name}.csv", encoding="utf-8", newline="") as file:
                    read = list(csv.DictReader(file))
                lines = [row for row in rows if kind in row]
                self.assertEqual(len(read), len(lines))
                for row, line in zip(read, lines):
                    for field, text in row.items():
                        value = line.get(field, "" if field == "eval_name" else None)
                        self.assertEqual(json.loads(text) if text else text or None, value if value != "" else None, field)
        table = out / self.run_a.name / "steps.csv"
        self.assertEqual(report(self.run_a, "--csv", out).returncode, 0)
        table.write_text("mine\n")
        refused = report(self.run_a, "--csv", out)
        self.assertEqual(refused.returncode, BAD_OPTIONS)
        self.assertIn("is not a table of report", refused.stderr)
        self.assertEqual(table.read_text(), "mine\n")

    def test_a_page_is_written_again_until_the_run_ends(self):
        run = self.folder / "under way"
        lines = write_begun(self.run_a, run, 10)
        with subprocess.Popen([BIN / "report", run, "--watch", "1"], stdout=subprocess.PIPE, text=True) as process:
            self.assertIn("report.html", process.stdout.readline())
            self.assertIn("written again every 1 s", process.stdout.readline())
            page = Page(run / "report.html")
            self.assertEqual((page.data["renew_seconds"], page.data["runs"][0]["columns"]["step"][-1]), (1, 10))
            with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.writelines(lines)
            rest = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0)
        self.assertIn("all runs have ended", rest)
        page = Page(run / "report.html")
        self.assertEqual((page.data["renew_seconds"], page.data["runs"][0]["columns"]["step"][-1]), (0, STEPS))

    def test_a_signal_ends_the_watch_and_leaves_a_whole_page(self):
        run = self.folder / "never ends"
        write_begun(self.run_a, run, 10)
        for number in (signal.SIGINT, signal.SIGTERM):
            with subprocess.Popen([BIN / "report", run, "--watch", "1"], stdout=subprocess.PIPE, text=True) as process:
                process.stdout.readline()
                process.send_signal(number)
                self.assertEqual(process.wait(timeout=60), 0)
            self.assertTrue((run / "report.html").read_text().endswith("</html>\n"))
        for arguments in (["--watch", "0"], ["--watch", "x"], ["--watch", "1", "--out", "/dev/stdout"]):
            self.assertEqual(report(run, *arguments).returncode, BAD_OPTIONS, arguments)


    def test_a_watch_waits_for_the_first_line_and_keeps_its_page_while_a_file_cannot_be_read(self):
        run = self.folder / "not begun"
        lines = write_begun(self.run_a, run, 10)
        file, away = run / "metrics.jsonl", run / "away"
        file.rename(away)
        for missing in ("no file", "half a line"):
            (run / "report.html").unlink(missing_ok=True)
            if missing == "half a line":
                file.write_text(away.read_text()[:20])
            with subprocess.Popen([BIN / "report", run, "--watch", "1"], stdout=subprocess.PIPE, text=True) as process:
                self.assertRegex(process.stdout.readline(), "waiting for .*not begun: .* no metrics.jsonl yet")
                self.assertFalse((run / "report.html").exists())
                away.rename(file)
                self.assertIn("report.html", process.stdout.readline())
                self.assertIn("written again", process.stdout.readline())
                file.rename(away)
                self.assertRegex(process.stdout.readline(), "cannot read .*; the last page stays")
                self.assertEqual(Page(run / "report.html").data["runs"][0]["columns"]["step"][-1], 10)
                if missing == "no file":
                    process.send_signal(signal.SIGINT)
                else:
                    file.write_text(away.read_text() + "".join(lines))
                rest = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 0)
            self.assertEqual("all runs have ended" in rest, missing != "no file", rest)
        self.assertEqual(report(self.folder / "nowhere", "--watch", "1", "--out", "/dev/stdout").returncode, BAD_OPTIONS)

    def test_a_watch_tells_once_of_a_run_that_writes_nothing_more(self):
        run = self.folder / "killed"
        lines = write_begun(self.run_a, run, 10)
        old = time.time() - 420
        os.utime(run / "metrics.jsonl", (old, old))
        with subprocess.Popen([BIN / "report", run, "--watch", "1"], stdout=subprocess.PIPE, text=True) as process:
            for _ in range(2):
                process.stdout.readline()
            self.assertRegex(process.stdout.readline(), "killed: no new line for 7 minutes, and no end: .* was killed")
            time.sleep(2.5)
            with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.writelines(lines)
            rest = process.communicate(timeout=60)[0]
        self.assertNotIn("no new line", rest)
        self.assertIn("all runs have ended", rest)

    def test_tables_of_a_run_without_evaluations_have_names_alone(self):
        run, out = self.folder / "not evaluated", self.folder / "its tables"
        shutil.copytree(self.run_a, run)
        self.assertEqual(report(run, "--csv", out).returncode, 0)
        table = out / run.name / "evaluations.csv"
        names, *rows = table.read_text().splitlines()
        self.assertTrue(rows)
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (run / "metrics.jsonl").write_text("".join(line for line in lines if "eval_loss" not in json.loads(line)))
        self.assertEqual(report(run, "--csv", out).returncode, 0)
        self.assertEqual(table.read_text().splitlines(), [names])

    def test_names_that_differ_in_their_separators_alone_have_a_folder_each(self):
        out = self.folder / "apart"
        runs = [self.folder / name for name in ("a/b_c", "a_b/c", "a/c")]  # the last: names have two parts
        for run in runs:
            run.parent.mkdir(exist_ok=True)
            shutil.copytree(self.run_a, run)
        self.assertEqual(report(*runs, "--csv", out).returncode, 0)
        self.assertEqual(sorted(p.name for p in out.iterdir()), ["a_b_c", "a_b_c (2)", "a_c"])


def write_begun(source, run, step):
    """A run that has come to this step and has no end yet; returns the lines that are missing."""
    run.mkdir()
    lines = (source / "metrics.jsonl").read_text().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines]
    begun = next(i for i, row in enumerate(rows) if row["step"] == step and "loss" in row) + 1
    (run / "metrics.jsonl").write_text("".join(lines[:begun]))
    return lines[begun:]


class Drawn(Case):
    """In a browser; skipped as a whole where there is none."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.one, cls.two = cls.folder / "one.html", cls.folder / "two.html"
        for file, runs in ((cls.one, [cls.run_b]), (cls.two, [cls.run_a, cls.run_b])):
            subprocess.run([BIN / "report", *runs, "--out", file], check=True, capture_output=True)
        cls.browser = browser.Browser(browser.find_browser())

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        super().tearDownClass()

    def see(self, name, file, *size, **how):
        self.browser.open(file, *size, **how)
        if PICTURES:
            self.browser.screenshot(pathlib.Path(PICTURES) / f"{name}.png", whole=True)
        self.assertEqual(self.browser.complaints(), [])
        self.assertLessEqual(self.browser.run("document.documentElement.scrollWidth"), size[0])

    def test_the_network_between_hosts_has_its_share_of_the_steps(self):
        run = self.folder / "over hosts"
        shutil.copytree(self.run_b, run)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        seconds = min(row["seconds"] for row in rows if "loss" in row)
        start = {"step": 0, "event": "network", "hosts": [{"host": "n1"}, {"host": "n3"}], "all_gather_bytes_per_second": 3e9,
                 "all_to_all_bytes_per_second": 2e9, "pairs": [], "step_bytes": 5e6, "step_seconds": seconds / 4}
        lost = {"step": 0, "event": "lost hosts", "text": "this start is without what did not answer: n2", "hosts": "n2"}
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (start, lost, *rows)))
        page = self.folder / "over hosts.html"
        subprocess.run([BIN / "report", run, "--out", page], check=True, capture_output=True)
        self.browser.open(page, 1280, 900)
        self.assertEqual(self.browser.complaints(), [])
        card = self.browser.run("[...document.querySelectorAll('.card')].map((c) => c.textContent)"
                                ".find((text) => text.includes('Network between hosts: share of the steps'))")
        self.assertIn("2 hosts, into each 2", card)
        self.assertIn("a rank sends 5", card)
        self.assertIn("this start is without what did not answer: n2", self.browser.run("document.body.textContent"))

    def test_a_desk_and_a_phone_show_all_cards(self):
        for name, file, size, how in (("desktop", self.one, (1280, 900), {}), ("phone", self.one, (390, 844), {"phone": True}),
                                      ("desktop-dark", self.two, (1280, 900), {"dark": True}),
                                      ("phone-dark", self.two, (390, 844), {"phone": True, "dark": True})):
            with self.subTest(name=name):
                self.see(name, file, *size, **how)
                titles = self.browser.run("[...document.querySelectorAll('h2')].map((h) => h.textContent)")
                for word in ("Summary", "Loss", "Gradient norm", "Learning rate", "Tokens per second", "GEMM", "Bytes moved",
                             "Timeline", "Memory", "Events"):
                    self.assertTrue(any(word in title for title in titles), (word, titles))
                empty = self.browser.run("[...document.querySelectorAll('.plot svg')].filter((s) => "
                                         "!s.querySelector('path:not(.mark), rect')).length")
                self.assertEqual(empty, 0)
                self.assertEqual(self.browser.run("document.body.textContent.includes('NaN')"), False)
                self.assertEqual(self.browser.run("document.documentElement.dataset.theme"), "dark" if how.get("dark") else "light")
        self.assertEqual(self.browser.run("document.querySelectorAll('main b').length"), 0)
        differing = self.browser.run("document.querySelector('#differences').textContent")
        self.assertIn("3e-3", differing)
        self.assertNotIn("micro-batch", differing)
        self.assertIn(self.run_b.name, differing)

    def test_evaluation_sets_have_a_line_each_by_name(self):
        named = self.folder / "named"
        named.mkdir()
        losses = []
        with open(named / "metrics.jsonl", "w", encoding="utf-8") as file:
            for row in rows_of(self.run_b):
                sets = (("chat", 0), ("code", 1)) if "eval_loss" in row else ((None, 0),)
                for name, more in sets:
                    if name:
                        losses.append(row["eval_loss"])
                        row = {**row, "eval_name": name, "eval_loss": row["eval_loss"] + more}
                    file.write(json.dumps(row) + "\n")
        page = self.folder / "named.html"
        subprocess.run([BIN / "report", named, "--out", page], check=True, capture_output=True)
        self.see("named", page, 1280, 900)
        text = self.browser.run("document.body.textContent")
        for shown in ("evaluation, chat", "evaluation, code", f"chat {losses[-2]:.4f}", f"code {losses[-2] + 1:.4f}"):
            self.assertIn(shown, text)

    def test_marks_stand_for_saves_resume_and_the_skipped_step(self):
        self.see("marks", self.one, 1280, 900)
        kinds = self.browser.run("(() => { const marks = document.querySelector('.plot svg').querySelectorAll('.mark');"
                                 "return [...marks].map((m) => m.getAttribute('stroke')); })()")
        self.assertGreaterEqual(kinds.count("var(--save)"), 3)
        self.assertGreaterEqual(kinds.count("var(--resume)"), 1)
        self.assertEqual(kinds.count("var(--warning)"), 1)
        self.assertGreater(self.browser.run("document.querySelectorAll('.shade-exposed').length"), 0)

    def cards(self, title):
        """Text of the cards whose titles begin so."""
        return self.browser.run("[...document.querySelectorAll('.card')].filter((c) => (c.querySelector('h2')?.textContent ?? '')"
                                f".startsWith({json.dumps(title)})).map((c) => c.textContent)")

    def altered_run(self, name, alter):
        """A copy of a run; `alter` gets each line of its metrics.jsonl as a dictionary."""
        folder = self.folder / name
        folder.mkdir()
        rows = rows_of(self.run_a)
        for row in rows:
            alter(row)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    def test_a_killed_run_has_its_mark_at_the_step_that_it_died_in(self):
        folder = self.altered_run("killed", lambda row: None)
        with open(folder / "metrics.jsonl", "a", encoding="utf-8") as out:
            out.write(json.dumps({"step": STEPS + 6, "event": "error", "time": 2e9, "text": "rank 1 is gone"}) + "\n")
        for runs in ([folder], [folder, self.run_b]):
            report(*runs, "--out", folder / "killed.html")
            self.see(f"killed {len(runs)}", folder / "killed.html", 1280, 900)
            for axis in ("step", "tokens", "hours"):
                self.browser.run(f"(() => {{ const s = document.querySelector('#axis'); s.value = '{axis}'; s.onchange(); }})()")
                places = self.browser.run(
                    "[...document.querySelectorAll('.plot svg')].filter((s) => s.querySelector('.mark')).map((s) => { const box ="
                    "s.querySelector('.axis'); const m = s.querySelector('.mark[stroke=\"var(--error)\"]');"
                    "return m ? [Number(box.getAttribute('x2')), Number(/[(]([0-9.]+)/.exec(m.getAttribute('transform'))[1])] : null; })")
                self.assertGreater(len(places), 5)
                for place in places:
                    self.assertIsNotNone(place, axis)
                    if axis == "step":
                        self.assertAlmostEqual(place[0], place[1], delta=1)  # the right edge
        ticks = "[...document.querySelectorAll('.plot svg')[2].querySelectorAll('text')].map((t) => t.textContent)"
        self.browser.run("(() => { const s = document.querySelector('#axis'); s.value = 'step'; s.onchange(); })()")
        self.assertIn("30", self.browser.run(ticks))

    def test_a_share_beyond_the_whole_is_not_shown(self):
        def busy(row):
            if row.get("event") == "configuration":
                row["gemm_flops_per_second"] = 1e15 if row["step"] == 0 else 1e6  # the second start's is too low
        folder = self.altered_run("busy", busy)
        report(folder)
        self.see("busy", folder / "report.html", 1280, 900)
        card, = self.cards("Share of the measured GEMM rate")
        self.assertRegex(card, r"Steps 15 to 24 are not shown, because training reached [0-9.e+]+% of the rate of 0\.001 GFLOP/s a "
                               r"rank that was measured at their start")
        last = "(() => { const c = [...document.querySelectorAll('.card')].find((c) => c.textContent.startsWith('Share')); const box =" \
               "c.querySelector('.axis'); const x = c.querySelector('path[stroke-width=\"1.9\"]').getAttribute('d').match(/[ML][0-9.]+/g);" \
               "return (Number(x.pop().slice(1)) - box.getAttribute('x1')) / (box.getAttribute('x2') - box.getAttribute('x1')); })()"
        self.assertAlmostEqual(self.browser.run(last), 13 / 23, delta=0.01)  # step 14 of 1 to 24
        report(folder, "--gemm-tflops", "1e-6")
        self.see("too low", folder / "report.html", 1280, 900)
        card, = self.cards("Share of the measured GEMM rate")
        self.assertIn("that --gemm-tflops gives", card)
        self.assertFalse(self.browser.run("[...document.querySelectorAll('.card')].find((c) => c.textContent.startsWith('Share'))"
                                          ".querySelector('svg') !== null"))

    def test_the_time_of_a_step_is_shared_out_and_its_largest_wait_is_named(self):
        def waits(exchange, update, most=None, padding=0):
            def alter(row):
                if "exposed_exchange_seconds" in row and "event" not in row:
                    row.update(seconds=2.0, exposed_exchange_seconds=exchange, exposed_update_seconds=update, padding=padding * row["tokens"])
                if row.get("event") == "ranks" and most:
                    row["computing_seconds"].update(least=1, median=1, most=most, most_rank=1)
            return alter
        nothing = "No wait is a tenth of a step"
        for name, alter, shown, missing in (
                ("even", waits(0.1, 0.1), ["90%", "5%", nothing], "The exchange"),
                ("exchange", waits(0.6, 0.1), ["65%", "30%", "The exchange of gradients takes long", ": a larger --micro-batch"], nothing),
                ("update", waits(0.1, 0.5), ["70%", "25%", "The update takes long beside so little compute"], nothing),
                ("padding", waits(0.1, 0.1, padding=0.25), ["25% of the places are padding"], nothing),
                ("uneven", waits(0.9, 0.1, most=1.8), ["rank 1 on ", "computed 1.8 s in a step and the median rank 1 s", "40% of a step"], nothing)):
            with self.subTest(name=name):
                folder = self.altered_run(f"time {name}", alter)
                if name == "uneven" and not any(row.get("event") == "ranks" for row in rows_of(folder)):
                    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as out:
                        out.write(json.dumps({"step": 24, "event": "ranks", "steps": 20, "slowest_host": "n1", "computing_seconds":
                                              {"least": 1, "median": 1, "most": 1.8, "most_rank": 1}}) + "\n")
                report(folder)
                self.see(f"time {name}", folder / "report.html", 1280, 900)
                card, = self.cards("Where the time of a step goes")
                for text in shown:
                    self.assertIn(text, card)
                self.assertNotIn(missing, card)

    def test_a_page_of_watch_renews_itself_and_keeps_the_readers_view(self):
        for name, size, how in (("desk", (1280, 900), {}), ("pocket", (390, 844), {"phone": True})):
            run = self.folder / f"watch {name}"
            lines = write_begun(self.run_a, run, 10)
            with subprocess.Popen([BIN / "report", run, "--watch", "1"], stdout=subprocess.PIPE, text=True) as process:
                process.stdout.readline()
                self.see(f"watch-{name}", run / "report.html", *size, **how)
                self.assertIn("renewed every 1 s", self.browser.run("document.querySelector('#made').textContent"))
                self.browser.run("(() => { const s = document.querySelector('#axis'); s.value = 'tokens'; s.onchange();"
                                 "document.querySelector('details').open = true; })()")
                with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
                    file.writelines(lines)
                process.communicate(timeout=60)
            shown = "document.documentElement.dataset.ready ? JSON.parse(document.getElementById('data').textContent).runs[0].columns.step.length : 0"
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and self.browser.run(shown) < STEPS:
                time.sleep(0.2)
            self.assertEqual(self.browser.run(shown), STEPS)
            self.assertEqual(self.browser.run("document.querySelector('#axis').value"), "tokens")
            self.assertTrue(self.browser.run("document.querySelector('details').open"))
            self.assertNotIn("renewed every", self.browser.run("document.querySelector('#made').textContent"))
            self.assertEqual(self.browser.complaints(), [])

    def test_packing_fp8_and_adapters_are_shown_where_they_are_used(self):
        packing = {"documents": 30, "cut": 2, "left_out": 0, "sequences": 12, "tokens": 300, "padding": 84}
        adapters = {"rank": 8, "alpha": 16.0, "rank_stabilized": False, "targets": "q_proj,v_proj", "trains_embeddings": False,
                    "base": "nf4", "base_model_hash": "0123456789abcdef"}

        def with_all(row):
            if row.get("event") == "configuration":
                row.update({"packing": packing, "adapters": adapters, "precision": "fp8", "trained_parameters": 4096,
                            "gemm_flops_per_second": 1e6})
                row["options"].update({"fp8-recipe": "tensor", "fp8-skip": "0,3", "init": "QWEN/base"})
        folder = self.altered_run("all of it", with_all)
        report(folder)
        self.see("packing-fp8-adapters", folder / "report.html", 1280, 900)
        card, = self.cards("Summary")
        for shown in ("30 in 12 sequences, 78.1% full", "in 8 bits (--precision fp8, a scale per tensor), but for the blocks 0,3",
                      "rank 8, alpha 16, of q_proj,v_proj; its weights are in nf4, from QWEN/base, hash 0123456789abcdef",
                      "4.096k of adapters beside"):
            self.assertIn(shown, card)
        card, = self.cards("Share of the measured GEMM rate")
        self.assertIn("that of 16-bit GEMMs: no share is shown", card)
        self.see("plain", self.one, 1280, 900)
        card, = self.cards("Summary")
        for hidden in ("8 bits", "adapters", "documents are separate"):
            self.assertNotIn(hidden, card)

    def test_memory_and_summary_say_what_was_counted(self):
        self.see("memory", self.one, 1280, 900)
        card, = self.cards("Memory of rank 0")
        self.assertRegex(card, r"program and libraries \(estimated\)host[0-9.]+ MBnot counted")
        rows = "[...document.querySelectorAll('.memory tbody tr')].map((r) => [...r.children].map((c) => c.textContent))"
        names = [row[0] for row in self.browser.run(rows)]
        self.assertEqual(names[-2:], ["total", "program and libraries (estimated)"])
        widths = self.browser.run("[...document.querySelectorAll('.bar i')].map((b) => parseFloat(b.style.width))")
        self.assertEqual(max(widths), 100)  # the largest line that was counted sets the scale
        self.assertIn("2, then 1", self.cards("Summary")[0])  # ranks of its two starts

    def test_pointing_shows_the_values_and_dragging_zooms(self):
        self.see("pointing", self.one, 1280, 900)
        box = self.browser.run("(() => { const b = document.querySelector('.plot svg').getBoundingClientRect();"
                               "return [b.left, b.top, b.width, b.height]; })()")
        left, top, width, height = box
        self.browser.mouse("mouseMoved", left + width / 2, top + height / 2)
        tip = self.browser.run("(() => { const t = document.querySelector('.plot .tip'); return t.hidden ? '' : t.textContent; })()")
        self.assertRegex(tip, r"^step \d+")
        step = int(tip.split("training")[0].removeprefix("step "))
        loss = next(row["loss"] for row in rows_of(self.run_b) if row["step"] == step and "loss" in row)
        self.assertIn(f"training{float(f'{loss:.6g}')}", tip)
        ticks = "[...document.querySelectorAll('.plot svg')[2].querySelectorAll('text')].map((t) => t.textContent).join()"
        before = self.browser.run(ticks)
        self.browser.mouse("mousePressed", left + width * 0.4, top + height / 2)
        self.browser.mouse("mouseMoved", left + width * 0.6, top + height / 2)
        self.browser.mouse("mouseReleased", left + width * 0.6, top + height / 2)
        self.assertNotEqual(self.browser.run(ticks), before)  # the others follow
        self.browser.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'see all').click()")
        self.assertEqual(self.browser.run(ticks), before)
        self.browser.run("document.querySelector('.head button').click()")
        self.assertEqual(self.browser.run("document.querySelector('.head button').getAttribute('aria-pressed')"), "true")
        self.browser.run("(() => { const s = document.querySelector('#axis'); s.value = 'tokens'; s.onchange(); })()")
        self.assertIn("k", self.browser.run(ticks))
        self.assertEqual(self.browser.complaints(), [])


if __name__ == "__main__":
    if "Drawn" in sys.argv and browser.find_browser() is None:
        print(f"skipped: none of {', '.join(browser.NAMES)} is installed (Debian: apt-get install chromium)")
        sys.exit(SKIPPED)
    unittest.main()
