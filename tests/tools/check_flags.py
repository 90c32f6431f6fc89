#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_flags.py [--compilers g++ clang++] [--flags FLAG...] [--machines baseline native] [--jobs 2] [--build DIR]:
what heed computes under compiler flags that change arithmetic.

Builds tests/flags for each compiler, flag and machine at -O2, runs it and prints a Markdown table:

  right       every number is within the limits of a build without the flag
  refused     heed does not compile, and says why; under "at run time", the first call throws EnvironmentError
  -           the compiler does not know the flag, or does not let it take effect

Exits with 1 if numbers are wrong, the build fails for another reason, or flags that must be refused are not.
"""

import argparse
import concurrent.futures
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Each flag; those that are a list take effect together only.
FLAGS = [
    "-ffast-math",
    "-Ofast",
    "-ffast-math -fno-finite-math-only",
    "-ffinite-math-only",
    "-funsafe-math-optimizations",
    "-fassociative-math",
    "-fassociative-math -fno-signed-zeros -fno-trapping-math",
    "-freciprocal-math",
    "-fno-honor-nans",
    "-fno-honor-infinities",
    "-fno-honor-nans -fno-honor-infinities",
    "-fapprox-func",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-frounding-math",
    "-fsignaling-nans",
    "-ffp-contract=fast",
    "-ffp-contract=off",
    "-ffp-model=fast",
    "-ffp-model=precise",
    "-ffp-model=strict",
    "-fdenormal-fp-math=preserve-sign",
    "-mdaz-ftz",
    "-mrecip",
    "-mfpmath=387",
    "-mfpmath=387 -DEIGEN_DONT_VECTORIZE",
    "-fsingle-precision-constant",
    "-O3 -funroll-loops",
]
MACHINES = {"baseline": [], "native": ["-march=native"]}

# Compilers define __FINITE_MATH_ONLY__ for them, so that heed can refuse them.
MUST_BE_REFUSED = {"-ffast-math", "-Ofast", "-ffinite-math-only"}


def run(command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def does_not_apply(compiler, flags):
    """Whether the compiler does not know the flags, or says that it ignores one."""
    result = run([compiler, "-O2", *flags, "-fsyntax-only", "-x", "c++", "/dev/null"])
    return result.returncode != 0 or re.search("warning: .*(not supported|unused|disabled)", result.stderr)


def outcome(compiler, flags, machine, arguments, directory):
    """What happens, and the text that goes with a failure."""
    program = directory / re.sub(r"\W+", "_", f"{pathlib.Path(compiler).name}_{machine}_{'_'.join(flags)}")
    if does_not_apply(compiler, flags):
        return "-", ""
    source = ROOT / "tests" / "flags"
    common = [compiler, "-std=c++20", "-O2", *MACHINES[machine]]
    include = [f"-I{ROOT / 'include'}", *(f"-isystem{path}" for path in arguments.eigen)]
    plain = run([*common, "-c", source / "plain.cpp", "-o", f"{program}.o"])
    if plain.returncode != 0:
        return "wrong", plain.stderr
    build = run([*common, *flags, *include, source / "flags.cpp", f"{program}.o", "-pthread", "-o", program])
    if build.returncode != 0:
        refusal = re.search(r'error: .*"?heed (relies on|needs) ', build.stderr)
        return ("refused", "") if refusal else ("wrong", build.stderr[:2000])
    result = run([program])
    program.unlink()
    return {0: ("right", ""), 3: ("refused at run time", "")}.get(result.returncode, ("wrong", result.stdout[:2000]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compilers", nargs="+", default=["g++", "clang++"])
    parser.add_argument("--flags", action="append", help="may be given several times; several flags as one argument")
    parser.add_argument("--machines", nargs="+", default=list(MACHINES), choices=list(MACHINES))
    parser.add_argument("--eigen", action="append", help="include directory of Eigen")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--build", type=pathlib.Path, help="directory for the programs; a temporary one by default")
    arguments = parser.parse_args()
    arguments.eigen = arguments.eigen or ["/usr/include/eigen3"]
    all_flags = [shlex.split(flags) for flags in arguments.flags or FLAGS]
    compilers = [compiler for compiler in arguments.compilers if shutil.which(compiler)]
    if not compilers:
        print(f"skipped: none of {', '.join(arguments.compilers)} is installed")
        return 77

    failures = []
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.build or pathlib.Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            cells = {
                (i, compiler, machine): pool.submit(outcome, compiler, flags, machine, arguments, directory)
                for i, flags in enumerate(all_flags)
                for compiler in compilers
                for machine in arguments.machines
            }
            versions = [run([compiler, "-dumpfullversion" if "g++" in compiler and "clang" not in compiler else
                             "-dumpversion"]).stdout.strip() for compiler in compilers]
            print("| flag | " + " | ".join(f"{c} {v}" for c, v in zip(compilers, versions)) + " |")
            print("|---|" + "---|" * len(compilers), flush=True)
            for i, flags in enumerate(all_flags):
                row = []
                for compiler in compilers:
                    found = {machine: cells[i, compiler, machine].result() for machine in arguments.machines}
                    kinds = {kind for kind, _ in found.values()}
                    row.append(kinds.pop() if len(kinds) == 1 else
                               ", ".join(f"{kind} ({machine})" for machine, (kind, _) in found.items()))
                    for machine, (kind, text) in found.items():
                        if kind == "wrong":
                            failures.append(f"{compiler} {' '.join(flags)}, {machine}:\n{text}")
                        elif set(flags) & MUST_BE_REFUSED and len(flags) == 1 and kind != "refused":
                            failures.append(f"{compiler} {' '.join(flags)}, {machine}: must be refused, but is {kind}")
                print(f"| `{' '.join(flags)}` | " + " | ".join(row) + " |", flush=True)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
