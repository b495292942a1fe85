"""Reads what `report --tensorboard` wrote with the real tensorboard package, and compares every value with
metrics.jsonl. Needs a virtual environment of its own:

    python3 -m venv /tmp/tb && /tmp/tb/bin/pip install tensorboard
    TESSERA_BIN=build/bin /tmp/tb/bin/python tests/interop/check_tensorboard.py RUN
"""
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


def as_float(value):
    return struct.unpack("<f", struct.pack("<f", math.nan if value is None else value))[0]


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def reference_records():
    """The two records that tests/jobs/event_file_test.cpp has as hexadecimal text."""
    events = [Event(wall_time=1.5, file_version="brain.Event:2"),
              Event(wall_time=2.5, step=300, summary=Summary(value=[Summary.Value(tag="train/loss", simple_value=0.25)]))]
    for event in events:
        with tempfile.NamedTemporaryFile() as file:
            writer = RecordWriter(file)
            writer.write(event.SerializeToString())
            writer.flush()
            file.seek(0)
            yield file.read().hex()


def main(run):
    for record in reference_records():
        print(record)
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(os.environ["TESSERA_BIN"]) / "report"
        file = subprocess.run([report, run, "--tensorboard", folder], check=True, capture_output=True,
                              text=True).stdout.strip()
        read = EventAccumulator(str(pathlib.Path(file).parent), size_guidance={"scalars": 0})
        read.Reload()
        rows = [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()]
        compared = 0
        for tag in read.Tags()["scalars"]:
            group, field = tag.split("/")
            field = {"eval/loss": "eval_loss", "eval/accuracy": "eval_accuracy"}.get(tag, field)
            kind = "loss" if group == "train" else "eval_loss"
            expected = [(row["step"], as_float(row[field])) for row in rows if kind in row and field in row]
            got = [(scalar.step, scalar.value) for scalar in read.Scalars(tag)]
            assert len(expected) == len(got), (tag, len(expected), len(got))
            for (step, value), (got_step, got_value) in zip(expected, got):
                assert step == got_step and same(value, got_value), (tag, step, value, got_step, got_value)
            times = [scalar.wall_time for scalar in read.Scalars(tag)]
            assert times == sorted(times) and times[0] > 1.7e9, tag
            compared += len(got)
        print(f"{len(read.Tags()['scalars'])} tags, {compared} values equal metrics.jsonl")


if __name__ == "__main__":
    main(sys.argv[1])
