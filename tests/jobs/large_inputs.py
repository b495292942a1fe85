"""tokenize on two million short chats and on a line of 200 MB: what memory it takes, how long, and what comes out.

    python3 tests/jobs/large_inputs.py build/bin/tokenize HF_FOLDER [--chats 2000000] [--folder /tmp]

HF_FOLDER: a folder with a tokenizer that has ChatML's tokens. Takes 1 GB of disk and, on two cores, some minutes.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

WORDS = "the quick brown fox jumps over a lazy dog while seven green turtles sleep under an old oak tree".split()
MOST_CHAT_MEMORY = 700  # MB
MOST_LINE_MEMORY = 3000


def run(command, limit):
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    memory = usage.ru_maxrss / 1000
    print(output, end="")
    print(f"status {os.waitstatus_to_exitcode(status)}, {memory:.0f} MB of memory (at most {limit}), {time.monotonic() - begin:.0f} s")
    if os.waitstatus_to_exitcode(status) != 0 or memory > limit:
        sys.exit(1)
    return output


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenize")
    parser.add_argument("model")
    parser.add_argument("--chats", type=int, default=2_000_000)
    parser.add_argument("--folder")
    options = parser.parse_args()
    words = random.Random(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = pathlib.Path(name)
        chats = folder / "chats.jsonl"
        with open(chats, "w", encoding="utf-8") as file:
            for i in range(options.chats):
                question, answer = (" ".join(words.choices(WORDS, k=words.randrange(1, 20))) for _ in range(2))
                file.write(json.dumps({"messages": [{"role": "user", "content": f"{i} {question}"},
                                                    {"role": "assistant", "content": answer}]}) + "\n")
        print(f"{options.chats} chats, {chats.stat().st_size / 1e6:.0f} MB")
        output = run([options.tokenize, "--tokenizer", options.model, "--chat", "chatml", "--out", folder / "chats.h5", chats],
                     MOST_CHAT_MEMORY)
        if f" {options.chats:,} chats," not in output:
            sys.exit("not all chats are there")
        chats.unlink()
        line = folder / "line.jsonl"
        with open(line, "w", encoding="utf-8") as file:
            file.write('{"text": "short"}\n{"text": "')
            size = 0
            while size < 200_000_000:
                part = " ".join(words.choices(WORDS, k=1000)) + " "
                file.write(part)
                size += len(part)
            file.write('"}\n{"text": "behind"}\n')
        output = run([options.tokenize, "--tokenizer", options.model, "--field", "text", "--out", folder / "line.h5", line],
                     MOST_LINE_MEMORY)
        if " 3 documents," not in output:
            sys.exit("not all documents are there")


if __name__ == "__main__":
    main()
