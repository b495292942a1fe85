#!/usr/bin/env python3
"""Draws the figures of numbers.md from the tables in jobs/bench/results, and from nothing else.

    draw.py [FOLDER]      default: the folder of this file
"""
import math
import pathlib
import re
import sys
from html import escape

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "bench/results"
OURS, PEER, THIRD, INK, PALE = "#0b5cad", "#8a6d5a", "#2f8f5b", "#1f2430", "#d9dde3"
WIDTH, HEIGHT = 680, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 58, 46


def sweep(dtype):
    """Rows of `bench flce` on one H200 in `dtype`: (vocabulary, tokens) to (milliseconds, GB beyond inputs and results)."""
    rows, head = {}, None
    for line in (RESULTS / "2026-12-01-h200-14b-adapters.md").read_text().splitlines():
        begin = re.match(r"(\d+) tokens, vocabulary (\d+), hidden 4096, (\w+)", line)
        row = re.match(r"\s*\d+\s+([\d.]+)\s+[\d.]+\s+-\s+[\d.]+\s+[\d.]+\s+([\d.]+)$", line)
        if begin:
            head = (int(begin[2]), int(begin[1])) if begin[3] == dtype else None
        elif row and head:
            rows[head] = float(row[1]), float(row[2])
    return rows


def rows_beside_peers(cards):
    """Rows of rows.md on so many cards that have a peer: (model, tokens/s, peer's name, its tokens/s, GB, its GB)."""
    found, model, full = [], "", ""
    for line in (RESULTS / "rows.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 8 or cells[0] in ("row", "---"):
            continue
        model = cells[0].replace("the same", full.split(",")[0]) or model
        full = cells[0] if cells[0] and not cells[0].startswith("the same") else full
        peer = re.match(r"(torch|llm\.c|LLM\.Q) ([\d,]+)", cells[4])
        if cells[1] == cards and peer:
            memory = re.match(r"([\d.]+) / ([\d.]+)", cells[6])
            found.append((model, number(cells[2]), peer[1], number(peer[2]), *(map(float, memory.groups()) if memory else (0, 0))))
    return found


def number(text):
    return float(text.replace(",", ""))


class Drawing:
    def __init__(self, title, subtitle, height=HEIGHT):
        self.height = height
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif" font-size="12">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
        self.text(12, 22, title, size=15, weight="bold")
        self.text(12, 40, subtitle, color="#5a6270")

    def text(self, x, y, text, color=INK, anchor="start", size=12, weight="normal"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}" font-size="{size}" '
                          f'font-weight="{weight}">{escape(text)}</text>')

    def line(self, points, color, dash="", width=2):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"'
                          + (f' stroke-dasharray="{dash}"' if dash else "") + "/>")

    def dot(self, x, y, color):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>')

    def bar(self, x, y, width, height, color):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>')

    def write(self, path):
        path.write_text("\n".join([*self.parts, "</svg>", ""]), encoding="utf-8")


class LogAxes:
    """Both axes logarithmic; x in powers of two, y in powers of ten."""

    def __init__(self, drawing, xs, low, high, x_name, y_name):
        self.drawing, self.xs, self.low, self.high = drawing, xs, low, high
        for x in xs:
            drawing.line([(self.x(x), self.y(low)), (self.x(x), self.y(high))], PALE, width=1)
            drawing.text(self.x(x), HEIGHT - BOTTOM + 18, f"{x:,}", anchor="middle")
        value = low
        while value <= high * 1.0001:
            drawing.line([(LEFT, self.y(value)), (WIDTH - RIGHT, self.y(value))], PALE, width=1)
            drawing.text(LEFT - 8, self.y(value) + 4, f"{value:g}", anchor="end")
            value *= 10
        drawing.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_name, anchor="middle")
        drawing.text(12, TOP + 6, y_name)

    def x(self, value):
        share = math.log(value / self.xs[0]) / math.log(self.xs[-1] / self.xs[0])
        return LEFT + 20 + share * (WIDTH - LEFT - RIGHT - 120)

    def y(self, value):
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM - 14)

    def curve(self, values, color, name, dash=""):
        points = [(self.x(x), self.y(y)) for x, y in values]
        self.drawing.line(points, color, dash)
        if not dash:
            for point in points:
                self.drawing.dot(*point, color)
        self.drawing.text(points[-1][0] + 8, points[-1][1] + 4, name, color=color)


def draw_flce(folder):
    source = "one H200, 2026-12-01, commit 64d057e, hidden width 4096"
    by_type = {dtype: sweep(dtype) for dtype in ("bf16", "f32")}
    keys = sorted(by_type["bf16"])
    vocabularies = sorted({key[0] for key in keys})
    tokens = sorted({key[1] for key in keys})
    colors = dict(zip(vocabularies, (THIRD, OURS, PEER)))
    drawing = Drawing("Fused linear cross entropy, forward and backward: milliseconds", source)
    axes = LogAxes(drawing, tokens, 1, 10000, "tokens", "ms")
    for dtype, rows in by_type.items():
        for vocabulary, color in colors.items():
            axes.curve([(count, rows[vocabulary, count][0]) for count in tokens], color, f"{dtype}, V = {vocabulary:,}")
    drawing.write(folder / "flce-latency.svg")

    for dtype, size, name in (("bf16", 2, "flce-memory.svg"), ("f32", 4, "flce-memory-f32.svg")):
        drawing = Drawing(f"Fused linear cross entropy in {dtype}: GB beyond its inputs and results", source)
        axes = LogAxes(drawing, tokens, 0.01, 100, "tokens", "GB")
        for vocabulary, color in colors.items():
            axes.curve([(count, by_type[dtype][vocabulary, count][1]) for count in tokens], color, f"V = {vocabulary:,}")
            axes.curve([(count, count * vocabulary * size / 1e9) for count in tokens], color, "", "5 4")
        drawing.text(LEFT + 30, axes.y(60), f"dashed: logits of all tokens in {dtype} (computed)", color="#5a6270")
        drawing.write(folder / name)


def draw_bars(folder, name, title, subtitle, pairs, unit):
    """pairs: (label, ours, the peer's name, its value); each pair is drawn by its larger one."""
    height = TOP + 46 * len(pairs) + 14
    drawing = Drawing(title, subtitle, height)
    for i, (label, ours, peer, theirs) in enumerate(pairs):
        y, largest = TOP + 46 * i, max(ours, theirs)
        model, _, sizes = label.partition(", ")
        drawing.text(12, y + 16, model, weight="bold")
        drawing.text(12, y + 32, sizes.replace("mbs", "micro-batch"), color="#5a6270")
        for j, (who, value, color) in enumerate((("tessera", ours, OURS), (peer, theirs, PEER))):
            width = 220 * value / largest
            drawing.bar(300, y + 3 + 19 * j, width, 16, color)
            drawing.text(306 + width, y + 15 + 19 * j, f"{value:,.{unit[1]}f} {unit[0]}  {who}")
    drawing.write(folder / name)


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    draw_flce(folder)
    draw_bars(folder, "throughput-one.svg", "A training step beside peers: tokens/s on one H100",
              "2026-11-28; torch 2.11 compiled; each pair is drawn by its larger one; jobs/bench/results/rows.md",
              [(model, ours, peer, theirs) for model, ours, peer, theirs, _, _ in best(rows_beside_peers("H100"))], ("", 0))
    two = [row for row in best(rows_beside_peers("two H200s")) if row[2] == "torch"]  # the others ran on H100s
    draw_bars(folder, "throughput-two.svg", "A training step beside peers: tokens/s on two H200s",
              "2026-11-28; torch 2.11 compiled, FSDP2; jobs/bench/results/rows.md",
              [(model, ours, peer, theirs) for model, ours, peer, theirs, _, _ in two], ("", 0))
    draw_bars(folder, "memory.svg", "Memory of a rank beside FSDP2's: GB a card on two H200s",
              "2026-11-28, in the rows above; ours by the driver's count, torch's peak by its allocator's",
              [(model, ours, "FSDP2", theirs) for model, _, _, _, ours, theirs in two], ("GB", 1))


def best(rows):
    """Of rows of the same model and peer the fastest of ours, in the order of the table."""
    kept = {}
    for row in rows:
        key = row[0], row[2]
        if key not in kept or row[1] > kept[key][1]:
            kept[key] = row
    return list(kept.values())


if __name__ == "__main__":
    main()
