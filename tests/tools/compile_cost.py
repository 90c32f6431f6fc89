#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""compile_cost.py [--compiler g++] [--runs 5]: what heed costs the compiler, as ratios and sizes, against its limits.

Measures CPU time (less disturbed by other programs than wall time) and peak memory of compiling small files, medians of
several runs, and the code size of their objects:
  including heed/heed.hpp, and including Eigen/Core
  one call of attention<float> at -O2
  each further mask in the same file: the difference between a file with several masks and one with a single one
Exits with 1 when a limit is exceeded.
"""

import argparse
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

INCLUDE_RATIO_LIMIT = 2.5
CALL_SECONDS_LIMIT = 12.0
CALL_MEGABYTES_LIMIT = 1024
MASK_SECONDS_LIMIT = 0.5
MASK_KILOBYTES_LIMIT = 8.0

# The further masks: each instantiates the same call with another type.
MASKS = [
    "heed::Causal()",
    "heed::Window(7, 0)",
    "heed::Padding(lengths)",
    "heed::Causal() & heed::Padding(lengths)",
    "heed::Strided(8, 4) | heed::GlobalTokens(1)",
]

PREAMBLE = """#include <vector>
#include <heed/heed.hpp>
using Tensor = heed::Tensor<float, 4>;
extern const std::vector<int> lengths;
"""
FUNCTION = """Tensor attend_{index}(const Tensor& q, const Tensor& k, const Tensor& v) {{
  return heed::attention(q, k, v, {mask});
}}
"""


def attention_source(masks):
    """A file with one function for each mask."""
    return PREAMBLE + "".join(FUNCTION.format(index=index, mask=mask) for index, mask in enumerate(masks))


def eigen_flags():
    """How the compiler finds Eigen: pkg-config's answer, or the usual place."""
    try:
        answer = subprocess.run(["pkg-config", "--cflags", "eigen3"], capture_output=True, text=True, check=True)
        return shlex.split(answer.stdout)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ["-I/usr/include/eigen3"]


class Compiler:
    """Compiles files that use heed, in a separate directory."""

    def __init__(self, compiler, runs, directory):
        root = pathlib.Path(__file__).resolve().parents[2]
        self.command = [compiler, "-std=c++20", f"-I{root / 'include'}", *eigen_flags()]
        self.runs = runs
        self.directory = pathlib.Path(directory)

    def run_once(self, source, target, flags):
        """CPU seconds and peak megabytes of one compilation."""
        process = subprocess.Popen([*self.command, *flags, "-c", source, "-o", target])
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"{source} does not compile")
        return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024

    def code_kilobytes(self, target):
        """The machine code and constants of an object file, as `size` counts text."""
        report = subprocess.run(["size", target], capture_output=True, text=True, check=True).stdout
        return int(report.splitlines()[1].split()[0]) / 1024

    def measure(self, sources, flags):
        """Median (seconds, megabytes, kilobytes of code) of each source. The runs take turns, so that a disturbance
        falls on all of them alike."""
        results = [[] for _ in sources]
        paths = []
        for index, text in enumerate(sources):
            path = self.directory / f"source_{index}.cpp"
            path.write_text(text, encoding="utf-8")
            paths.append(path)
        for _ in range(self.runs):
            for path, result in zip(paths, results):
                result.append(self.run_once(path, path.with_suffix(".o"), flags))
        return [
            (*(statistics.median(column) for column in zip(*result)), self.code_kilobytes(path.with_suffix(".o")))
            for path, result in zip(paths, results)
        ]


def main():
    parser = argparse.ArgumentParser(description="What heed costs the compiler.")
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--runs", type=int, default=5, help="runs of each compilation; the median counts")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        compiler = Compiler(arguments.compiler, arguments.runs, directory)
        eigen, heed = compiler.measure(["#include <Eigen/Core>\n", "#include <heed/heed.hpp>\n"], ["-O0"])
        one, several = compiler.measure([attention_source(["heed::NoMask()"]), attention_source(["heed::NoMask()", *MASKS])], ["-O2"])

    further_masks = len(MASKS)
    results = [
        # what, value, unit, limit
        ("including Eigen/Core", eigen[0], "s", None),
        ("including heed/heed.hpp", heed[0], "s", None),
        ("  as a multiple of Eigen/Core", heed[0] / eigen[0], "x", INCLUDE_RATIO_LIMIT),
        ("one attention<float> at -O2", one[0], "s", CALL_SECONDS_LIMIT),
        ("  its memory", one[1], "MiB", CALL_MEGABYTES_LIMIT),
        ("  its code", one[2], "KiB", None),
        ("each further mask", (several[0] - one[0]) / further_masks, "s", MASK_SECONDS_LIMIT),
        ("  its code", (several[2] - one[2]) / further_masks, "KiB", MASK_KILOBYTES_LIMIT),
    ]
    print(f"{arguments.compiler}, CPU time, median of {arguments.runs} runs")
    exceeded = False
    for what, value, unit, limit in results:
        line = f"{what:32}{value:9.2f} {unit:4}"
        if limit is not None:
            exceeded |= value > limit
            line += f" limit {limit:g}" + (", EXCEEDED" if value > limit else "")
        print(line.rstrip())
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
