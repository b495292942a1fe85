#!/usr/bin/env python3
"""Draws what programs print on a terminal, from the programs themselves: terminal-*.svg.

    terminal.py [--bin build/bin] [--columns 80] [FOLDER]      default: the folder of this file

Runs on the CPU, in less than a minute; times and hashes differ from run to run.
"""
import argparse
import fcntl
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from html import escape

HERE = pathlib.Path(__file__).resolve().parent
ROWS = 24
ADVANCE, LINE, MARGIN, BAR = 7.8, 17, 14, 26
INK, PAPER, RED, YELLOW = "#e6e6e6", "#1f2430", "#ff7b72", "#e3b341"
COLOURS = {"31": RED, "33": YELLOW}


def shown_by(words, columns, folder):
    """What `words` writes to a terminal of so many columns, with its control codes."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(words, stdin=follower, stdout=follower, stderr=follower, cwd=folder,
                          env=dict(kept, TERM="xterm-256color")) as process:
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
        os.close(leader)
    if process.returncode != 0:
        sys.exit(f"{words}: {process.returncode}\n{text.decode()}")
    return text.decode()


def rows_of(text):
    """The lines that are left on the screen: what is drawn over is gone."""
    return [line.split("\r")[-1].replace("\x1b[K", "") for line in text.replace("\r\n", "\n").rstrip("\n").split("\n")]


def line_svg(line, y):
    """A line, with its colours, as text of SVG."""
    parts, colour = [], INK
    for piece in re.split(r"(\x1b\[\d*m)", line):
        code = re.fullmatch(r"\x1b\[(\d*)m", piece)
        if code:
            colour = COLOURS.get(code[1], INK)
        elif piece:
            parts.append(f'<tspan fill="{colour}">{escape(piece)}</tspan>')
    return f'<text x="{MARGIN}" y="{y:g}" xml:space="preserve">{"".join(parts)}</text>'


def draw(title, lines, columns):
    width, height = round(2 * MARGIN + columns * ADVANCE), BAR + MARGIN + LINE * len(lines)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-size="13" '
             'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace">',
             f"<title>{escape(title)}</title>", f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
             *[f'<circle cx="{MARGIN + 4 + 16 * i}" cy="15" r="5" fill="#5a6270"/>' for i in range(3)]]
    parts += [line_svg(line, BAR + LINE * (i + 1) - 4) for i, line in enumerate(lines)]
    return "\n".join(parts) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=HERE)
    parser.add_argument("--bin", type=pathlib.Path, default=HERE.parents[2] / "build/bin")
    parser.add_argument("--columns", type=int, default=80)
    options = parser.parse_args()
    os.environ["PATH"] = f"{options.bin.resolve()}:{os.environ['PATH']}"
    pictures = {
        "start": "train --model tiny --data corpus.h5 --seq 128 --global-batch 16 --steps 60 --lr 1e-3 "
                 "--eval-data corpus.held-out.h5 --eval-every 30 --out runs",
        "inspect": "inspect runs",
        "plan": "train --plan --model qwen3-32b --device cuda --card h100 --ranks 16 --ranks-per-node 8 --seq 4096 --micro-batch 1 "
                "--global-batch 64 --tokens 10B"}
    most_lines = {"inspect": 8}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(40):  # texts that are the same everywhere
            words = [f"{(i * 7 + k * k) % 97}" for k in range(900)]
            (pathlib.Path(folder) / f"{i}.txt").write_text(" ".join(words))
        subprocess.run(["tokenize", "--out", "corpus.h5", "--held-out", "0.1", *[f"{i}.txt" for i in range(40)]], cwd=folder,
                       check=True, stdout=subprocess.DEVNULL)
        for name, command in pictures.items():
            lines = rows_of(shown_by(command.split(), options.columns, folder))
            if len(lines) > most_lines.get(name, len(lines)):
                lines[most_lines[name]:] = ["..."]
            typed, line = [], "$"
            for word in re.findall(r"(?:--\S+(?: (?!--)\S+)?|\S+)", command):
                if len(line) + 1 + len(word) + 2 > options.columns:
                    typed.append(f"{line} \\")
                    line = "   "
                line += f" {word}"
            typed.append(line)
            (options.folder / f"terminal-{name}.svg").write_text(
                draw(f"{command.split()[0]} on a terminal of {options.columns} columns", typed + lines, options.columns))


if __name__ == "__main__":
    main()
