#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the table of bench/README.md and the chart docs/ratios.svg from bench/results.csv.

    publish.py                            from the numbers that are there
    publish.py RESULTS.jsonl SHARES.jsonl   from new ones: build/compare/results.jsonl, and what
                                          `./heed bench --json` printed; both of one commit on a clean tree
"""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "bench/results.csv"
README = ROOT / "bench/README.md"
CHART = ROOT / "docs/ratios.svg"
BEGIN, END = "<!-- results: written by compare/publish.py -->\n", "<!-- end of results -->\n"
COLORS = {"PyTorch": "#c8553d", "ONNX Runtime": "#2a6f97", "llama.cpp": "#6a994e"}


def take(results, shares):
    """bench/results.csv from JSON lines."""
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True, cwd=ROOT).strip()
    of = {}
    for line in map(json.loads, Path(shares).read_text().splitlines()):
        if line.get("pct_read"):
            of[line["workload"]] = f"{line['pct_read']:.0f} % of plain read"
        elif line.get("pct_peak"):
            of[line["workload"]] = f"{line['pct_peak']:.0f} %"
    with open(TABLE, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["workload", "of peak", "ratio", "fastest peer", "commit"])
        for line in map(json.loads, Path(results).read_text().splitlines()):
            if line.get("fastest"):
                name, ratio = line["workload"], f"{line['ratio']:.3g}"
                writer.writerow([name, of.get(name, ""), ratio, line["peer"], commit])


def svg(rows, title):
    """Bars from 1 to each ratio, on a logarithmic axis: (workload, ratio, peer) of each row."""
    row, top, left, width = 18, 52, 170, 360
    largest = max(ratio for _, ratio, _ in rows)
    smallest = min(1.0, *(ratio for _, ratio, _ in rows))
    low, high = math.log2(smallest) - 0.1, math.log2(largest)
    bottom = top + row * len(rows)

    def x(ratio):
        return left + width * (math.log2(ratio) - low) / (high - low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{bottom + 44}" '
        f'font-family="sans-serif" font-size="12" role="img" aria-label="{escape(title)}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="13" font-weight="bold">{escape(title)}</text>',
    ]
    for at, (family, color) in enumerate(COLORS.items()):
        out.append(f'<rect x="{left + 150 * at}" y="31" width="11" height="11" fill="{color}"/>')
        out.append(f'<text x="{left + 150 * at + 16}" y="41" fill="#444">against {family}</text>')
    for tick in (1, 2, 4, 8):
        if tick <= largest:
            out.append(
                f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top}" y2="{bottom}" '
                f'stroke="{"#222" if tick == 1 else "#ddd"}"/>'
            )
            out.append(f'<text x="{x(tick):.1f}" y="{bottom + 15}" text-anchor="middle" fill="#444">{tick}</text>')
    for at, (workload, ratio, peer) in enumerate(rows):
        y = top + row * at
        color = next(color for family, color in COLORS.items() if peer.startswith(family))
        begin, end = sorted((x(1), x(ratio)))
        out.append(f'<text x="{left - 20}" y="{y + 13}" text-anchor="end">{escape(workload)}</text>')
        out.append(f'<rect x="{begin:.1f}" y="{y + 3}" width="{end - begin:.1f}" height="12" fill="{color}"/>')
        out.append(f'<text x="{end + 6:.1f}" y="{y + 13}" fill="#222">{ratio:.3g}  {escape(peer)}</text>')
    out.append(f'<text x="{left}" y="{bottom + 34}" fill="#444">time of the fastest peer / time of heed: '
               "right of 1, heed is faster</text>")
    return "\n".join([*out, "</svg>", ""])


def main():
    if len(sys.argv) == 3:
        take(*sys.argv[1:])
    elif len(sys.argv) > 1:
        raise SystemExit(__doc__)
    with open(TABLE, newline="") as file:
        rows = list(csv.DictReader(file))
    commits = sorted({row["commit"] for row in rows})
    table = [f"Measured at commit {', '.join(commits)}.\n\n", "| workload | of peak | ratio | fastest peer |\n", "|---|---|---|---|\n"]
    table += [f"| {r['workload']} | {r['of peak']} | {r['ratio']} | {r['fastest peer']} |\n" for r in rows]
    text = README.read_text(encoding="utf-8")
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    README.write_text(text[:begin] + "".join(table) + text[end:], encoding="utf-8")
    bars = [(row["workload"], float(row["ratio"]), row["fastest peer"]) for row in rows]
    CHART.write_text(svg(bars, "heed against the fastest peer, one thread, AVX2"), encoding="utf-8")


if __name__ == "__main__":
    main()
