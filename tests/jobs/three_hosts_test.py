"""The network of three hosts at a bridge, as a start finds it: who uses what, how fast it is, which link is slow, and
what a step needs of it."""
import shutil

from imitated_hosts import HostsCase, bridged_hosts, run, run_tests
from train_test import events, metrics

HOSTS = ("tessera-x", "tessera-y", "tessera-z")
IMITATED = bridged_hosts(HOSTS, "10.76.0", "t")


class ThreeHosts(HostsCase):
    NETWORK = "10.76.0"

    def setUp(self):
        for host in HOSTS:
            self.disk_of(host).mkdir(exist_ok=True)

    def network_of(self, out, *arguments):
        stdout, stderr = self.finish(self.start(HOSTS, 3, out, "--save-at-end", "false", *arguments))
        (event,) = events(out, "network")
        self.assertEqual([pair["hosts"] for pair in event["pairs"]], [list(HOSTS[:2]), list(HOSTS[1:])])
        return stdout, stderr, event

    def test_three_hosts_are_measured_and_a_step_is_said_to_take_its_share(self):
        out = self.out("measured")
        stdout, stderr, event = self.network_of(out, "--steps", 3, "--global-batch", 6)
        self.assertRegex(stdout, r"network: 3 hosts, MPI through sockets on tstn0 \(Ethernet.*\) \(1 host\); sockets on tstn1 .*, with btl tcp, .*pml ob1; "
                                 r"into a host [0-9.]+ .B/s in an all-gather, [0-9.]+ .B/s in an all-to-all\n")
        self.assertEqual([(host["host"], host["ranks"], [used["port"] for used in host["used"]]) for host in event["hosts"]],
                         [(host, 1, [f"tstn{i}"]) for i, host in enumerate(HOSTS)])
        self.assertRegex(stdout, r"(?m)^a rank sends [0-9.]+ MB to other hosts in a step: [0-9.e-]+ s at the measured rates$")
        # one rank a host: all that it sends goes to other hosts, and slices are rounded up
        sent = events(out, "communication")[-1]["bytes"]
        self.assertLess(abs(event["step_bytes"] / sent - 1), 0.1, (event, sent))
        slowest = min(event["all_to_all_bytes_per_second"], event["all_gather_bytes_per_second"])
        fastest = max(event["all_to_all_bytes_per_second"], event["all_gather_bytes_per_second"])
        self.assertGreaterEqual(event["step_seconds"], event["step_bytes"] / fastest)
        self.assertLess(event["step_seconds"], event["step_bytes"] / slowest + 0.1)  # and a message's latency
        self.assertEqual(len(metrics(out)), 3)

    def test_the_link_that_is_slow_is_named_and_the_others_are_not(self):
        if shutil.which("tc") is None:
            self.skipTest("no program tc here (package iproute2): no link can be slowed")
        rate = 10e6
        run("ip", "netns", "exec", HOSTS[2], "tc", "qdisc", "add", "dev", "tstn2", "root", "tbf", "rate", f"{rate:.0f}bps",
            "burst", "64kb", "latency", "500ms")
        try:
            _, stderr, event = self.network_of(self.out("slow"), "--steps", 1)
        finally:
            run("ip", "netns", "exec", HOSTS[2], "tc", "qdisc", "del", "dev", "tstn2", "root")
        self.assertRegex(stderr, rf"warning: between {HOSTS[1]} and {HOSTS[2]} only [0-9.]+ .B/s arrive, where the median of neighbouring hosts is ")
        # (a machine under load may lack a third of the 10 Gb/s that its cables report)
        self.assertNotRegex(stderr, f"between {HOSTS[0]} and .* where the median of neighbouring hosts is")
        fast, slow = [pair["bytes_per_second"] for pair in event["pairs"]]
        self.assertLess(slow, 2 * rate)
        self.assertGreater(fast, 2 * slow)


if __name__ == "__main__":
    run_tests(IMITATED)
