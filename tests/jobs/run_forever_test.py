"""jobs/run-forever.sh around a command that ends as it is asked to: which ends are restarted, how often,
and after which pause."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / "jobs" / "run-forever.sh"
# Ends with the next status of the file "statuses"; "wait": with 85, once USR1 comes.
COMMAND = """
read -r first rest < "$1/statuses"
echo "$rest" > "$1/statuses"
[ "$first" = wait ] || exit "$first"
trap 'exit 85' USR1
touch "$1/waits"
while :; do sleep 0.05; done
"""


class RunForever(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="tessera ü '")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def start(self, statuses, *options):
        (self.folder / "statuses").write_text(statuses)
        process = subprocess.Popen(["bash", SCRIPT, *options, "--", "bash", "-c", COMMAND, "command", self.folder],
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        return process

    def run_through(self, statuses, *options):
        """(exit status, statuses that were not reached, pauses in seconds)"""
        process = self.start(statuses, *options)
        _, reported = process.communicate(timeout=60)
        pauses = [int(seconds) for seconds in re.findall(r"starting again in (\d+) s", reported)]
        return process.returncode, self.left(), pauses

    def left(self):
        return (self.folder / "statuses").read_text().strip()

    def test_failures_are_started_again_until_success(self):
        for lost in (1, 4, 6, 8, 137, 205):
            with self.subTest(lost=lost):
                self.assertEqual(self.run_through(f"{lost} 85 {lost} 0 9", "--wait", "0"), (0, "9", [0, 0]))

    def on_hosts(self, alive, *options, statuses="0"):
        """(exit status, what was reported, host file and ranks of each start); `alive`: of the starts, the hosts that answer."""
        hosts = self.folder / "my hosts"
        hosts.write_text("# of the centre\nn1 slots=4\n\nn2 slots=2\nn3\n")
        (self.folder / "statuses").write_text(statuses)
        (self.folder / "alive").write_text("\n".join(alive) + "\n")
        # the first line of "alive" says who answers, until a start has been made
        probe = self.folder / "probe"
        probe.write_text(f"head -n 1 '{str(self.folder / 'alive').replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}' "
                         "| grep -qw \"$1\"\n")
        command = ("cat \"$1\" >> \"$0/seen\"; echo \"ranks $2\" >> \"$0/seen\"; sed -i 1d \"$0/alive\"; "
                   "read -r first rest < \"$0/statuses\"; echo \"$rest\" > \"$0/statuses\"; exit $first")
        # The variable is split at spaces, of which this folder's name has some.
        plain = pathlib.Path(tempfile.mkdtemp(prefix="probe-"))
        self.addCleanup(shutil.rmtree, plain)
        (plain / "probe").symlink_to(probe)
        result = subprocess.run(
            ["bash", SCRIPT, "--wait", "0", "--hosts", hosts, *options, "--", "bash", "-c", command, self.folder, "{hosts}",
             "{ranks}"], stderr=subprocess.PIPE, text=True, timeout=60, check=False,
            env=dict(os.environ, TESSERA_PROBE=f"bash {plain / 'probe'}"))
        seen = self.folder / "seen"
        return result.returncode, result.stderr, seen.read_text().splitlines() if seen.exists() else []

    def test_hosts_that_do_not_answer_are_left_out_of_the_next_start(self):
        code, reported, seen = self.on_hosts(["n1 n2 n3", "n1 n3"], statuses="137 0")
        self.assertEqual((code, seen), (0, ["n1 slots=4", "n2 slots=2", "n3 ", "ranks 7", "n1 slots=4", "n3 ", "ranks 5"]))
        self.assertIn("run-forever: no answer from n2; 2 hosts with 5 ranks are used\n", reported)
        self.assertEqual(reported.count("no answer"), 1)

    def test_a_spare_host_takes_the_place_of_a_lost_one(self):
        code, _, seen = self.on_hosts(["n1 n2 n3", "n2 n3"], "--nodes", "2", statuses="137 0")
        self.assertEqual((code, seen), (0, ["n1 slots=4", "n2 slots=2", "ranks 6", "n2 slots=2", "n3 ", "ranks 3"]))

    def test_too_few_hosts_are_a_failed_start(self):
        code, reported, seen = self.on_hosts(["n3"], "--min-nodes", "2", "--limit", "2")
        self.assertEqual((code, seen), (6, []))
        self.assertIn("2 starts in a row failed", reported)
        for options in (["--nodes", "2"], ["--hosts", self.folder / "none"], ["--hosts", self.folder, "--nodes", "0"]):
            result = subprocess.run(["bash", SCRIPT, *options, "--", "true"], stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(result.returncode, 2, result.stderr)

    def test_what_a_restart_does_not_mend_ends_at_once(self):
        for status in (0, 2, 3, 7, 126, 127):
            with self.subTest(status=status):
                self.assertEqual(self.run_through(f"{status} 0", "--wait", "0"), (status, "0", []))

    def test_pauses_double_and_a_save_begins_the_count_anew(self):
        begin = time.monotonic()
        self.assertEqual(self.run_through("6 6 85 6 0", "--wait", "1"), (0, "", [1, 2, 1]))
        self.assertGreater(time.monotonic() - begin, 4)

    def test_too_many_failures_in_a_row_end_with_the_last_status(self):
        self.assertEqual(self.run_through("6 8 85 6 8 137 0", "--limit", "3", "--wait", "0"),
                         (137, "0", [0, 0, 0, 0]))

    def test_a_signal_is_passed_on_and_ends_it_after_the_save(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            with self.subTest(number=number):
                (self.folder / "waits").unlink(missing_ok=True)
                process = self.start("wait 0", "--wait", "0")
                end = time.monotonic() + 30
                while not (self.folder / "waits").exists() and time.monotonic() < end:
                    time.sleep(0.02)
                process.send_signal(number)
                _, reported = process.communicate(timeout=30)
                self.assertEqual((process.returncode, self.left()), (85, "0"), reported)

    def test_a_signal_during_a_pause_ends_it(self):
        process = self.start("6 0", "--wait", "60")
        self.addCleanup(process.stderr.close)
        self.assertIn("starting again in 60 s", process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=20), 6)

    def test_wrong_options_are_refused(self):
        for options in (["--limit", "0"], ["--limit", "-1"], ["--wait"], ["--bogus", "1"]):
            with self.subTest(options=options):
                self.assertEqual(self.run_through("0", *options), (2, "0", []))


if __name__ == "__main__":
    unittest.main()
