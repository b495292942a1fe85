"""Trains a small model for some steps on the ranks of one job, checks the losses, and measures the rate.

    reframe -C settings.py -c tessera_test.py -r [-S modules=tessera/0.1.0] [-S ranks=8 -S ranks_per_node=4]
            [-S device=cuda -S gpus_per_node=4] [-S least_rate=20000] [-S launch_options='--oversubscribe --bind-to none']

The text is the same everywhere, and so are the initial weights. Losses do not depend on the number of ranks; on
other processors they differ in the last digits, on GPUs (bf16) in the third. A site's own rates go into `reference`,
by the names of its partitions.
"""
import json
import math
import os

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import performance_function, run_after, run_before, sanity_function, variable

STEPS = 200
# Of the first step, whose weights are random (ln 256 = 5.545), and the mean of the last ten; what either way is right.
FIRST_LOSS, FIRST_TOLERANCE = 5.515, 0.01
LAST_LOSS, LAST_TOLERANCE = 0.398, 0.15


@rfm.simple_test
class TesseraTrainTest(rfm.RunOnlyRegressionTest):
    """200 steps of the preset `tiny` (0.8 M parameters) on counted numbers."""

    descr = "trains a small language model on several ranks"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    modules = ["tessera"]
    ranks = variable(int, value=2)
    ranks_per_node = variable(int, value=0)  # 0: all on one
    device = variable(str, value="cpu")
    gpus_per_node = variable(int, value=0)
    least_rate = variable(float, value=500.0)  # tokens/s: even a busy core has more; a site sets its own
    launch_options = variable(str, value="")
    time_limit = "10m"
    executable = "train"

    @run_after("init")
    def set_up_run(self):
        self.num_tasks = self.ranks
        self.num_tasks_per_node = self.ranks_per_node or self.ranks
        if self.gpus_per_node:
            self.num_gpus_per_node = self.gpus_per_node
        if os.geteuid() == 0:  # in containers
            self.env_vars = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.prerun_cmds = [
            "seq 1 60000 > numbers.txt",
            "tokenize --tokenizer bytes --out numbers.h5 numbers.txt",
        ]
        self.executable_opts = [
            "--model tiny --data numbers.h5 --seq 64 --micro-batch 4 --global-batch 16 --lr 3e-3",
            f"--steps {STEPS} --device {self.device} --out run",
        ]
        self.postrun_cmds = ["inspect run --verify"]
        self.reference = {"*": {"rate": (self.least_rate, 0.0, None, "tokens/s")}}

    @run_before("run")
    def add_launch_options(self):
        self.job.launcher.options = self.launch_options.split()

    @run_after("run")
    def keep_metrics(self):
        self.keep_files = ["run/metrics.jsonl"]

    @sn.deferrable
    def steps(self):
        """The rows of metrics.jsonl that are steps."""
        with open(os.path.join(self.stagedir, "run", "metrics.jsonl"), encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return [row for row in rows if "loss" in row]

    @sanity_function
    def losses_are_as_they_were(self):
        steps = self.steps()
        losses = sn.defer([row["loss"] for row in steps.evaluate()])
        return sn.all([
            sn.assert_eq(sn.len(steps), STEPS, "{0} steps, and {1} were asked for"),
            sn.assert_found(rf"^step {STEPS}/{STEPS} ", self.stdout),
            sn.assert_found(r"in " + str(self.ranks) + r" ranks?", self.stdout, "another number of ranks trained"),
            sn.assert_true(sn.all(sn.map(math.isfinite, losses)), "a loss is not finite"),
            sn.assert_reference(losses[0], FIRST_LOSS, -FIRST_TOLERANCE, FIRST_TOLERANCE),
            sn.assert_reference(sn.avg(losses[-10:]), LAST_LOSS, -LAST_TOLERANCE, LAST_TOLERANCE),
        ])

    @performance_function("tokens/s")
    def rate(self):
        """The median of all steps but the first ten."""
        rates = sorted(row["tokens_per_second"] for row in self.steps().evaluate()[10:])
        return rates[len(rates) // 2]
