#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_targets.py [--only TEXT] [--jobs 2] [--build DIR]: heed with other compilers, other Eigens, for other machines.

Compiles tests/consumer/calls.cpp for each target, without a warning under strict flags, runs it, holds the files that it
writes against those of this machine's g++ byte by byte, and prints a Markdown table:

  passed      compiles without a warning, all claims hold, the files are the same
  -           the compiler, the Eigen or what runs the program is not here

Exits with 1 if anything else happens.
"""

import argparse
import concurrent.futures
import pathlib
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

STRICT = shlex.split(
    "-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast -Wdouble-promotion -Wcast-align "
    "-Wnull-dereference -Werror"
)
# Not this machine's own instructions, so that the table does not depend on it.
MACHINES = {"baseline": [], "AVX2": ["-mavx2", "-mfma"]}
HERE = [
    ("g++", ["g++"], ["-Wuseless-cast"]),
    ("clang++ 14", ["clang++-14"], []),
    ("clang++ 16", ["clang++-16"], []),
    ("clang++ 19", ["clang++-19"], []),
    ("Zig's clang++ with libc++", [sys.executable, "-m", "ziglang", "c++"], ["-fno-sanitize=undefined"]),
]
# Name, compiler, flags, what runs the program.
ELSEWHERE = [
    ("32-bit x86, SSE2", "i686-linux-gnu-g++ -pthread", "-msse2 -mfpmath=sse",
     "/usr/i686-linux-gnu/lib/ld-linux.so.2 --library-path /usr/i686-linux-gnu/lib"),
    ("32-bit Arm, NEON", "arm-linux-gnueabihf-g++ -pthread", "-mfpu=neon -Wno-psabi",
     "qemu-arm -L /usr/arm-linux-gnueabihf"),
    ("64-bit Arm", "aarch64-linux-gnu-g++ -pthread", "-Wno-psabi", "qemu-aarch64 -L /usr/aarch64-linux-gnu"),
    ("WebAssembly, SIMD128", "em++",
     "-msse2 -msimd128 -D__MMINTRIN_H -fgnuc-version=5.13 -fexceptions -sALLOW_MEMORY_GROWTH -sTOTAL_STACK=4MB "
     "-sNODERAWFS -sEXIT_RUNTIME", "node --no-experimental-fetch"),
    ("Windows", "x86_64-w64-mingw32-g++-posix", "-static -Wa,-mbig-obj", "/usr/lib/wine/wine64"),
]


def run(command, where):
    return subprocess.run(command, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          errors="replace")


def here(compiler):
    """True if the compiler can be called."""
    return shutil.which(compiler[0]) is not None and run([*compiler, "--version"], ROOT).returncode == 0


def eigens():
    """Include paths of the Eigens by name; None where one is not to be had."""
    eigen3 = [path for path in ["/usr/include/eigen3", "/usr/local/include/eigen3"] if pathlib.Path(path).is_dir()]
    prefix = ROOT / "build/eigen5-headers"
    fetched = run([ROOT / "tests/tools/fetch_eigen5.sh", prefix], ROOT).returncode == 0
    return {"3.4": eigen3[0] if eigen3 else None, "5": f"{prefix}/include/eigen3" if fetched else None}


def check(target, build, expected):
    """The target's verdict, and what went wrong."""
    compiler, eigen, runner = target["compiler"], target["eigen"], target["runner"]
    if not eigen or not here(compiler) or runner and not shutil.which(runner[0]):
        return "-", None
    work = build / "".join(c if c.isalnum() else "_" for c in target["name"])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    program = "calls.js" if compiler[0] == "em++" else "calls.exe" if "mingw" in compiler[0] else "calls"
    compiled = run([*compiler, "-std=c++20", "-O1", *STRICT, *target["flags"], f"-I{ROOT}/include", "-isystem", eigen,
                    str(ROOT / "tests/consumer/calls.cpp"), "-o", program], work)
    if compiled.returncode:
        return "does not compile", compiled.stdout
    ran = run([*runner, f"./{program}"], work)
    if ran.returncode:
        return "does not run", ran.stdout
    files = {name: (work / name).read_bytes() for name in ["numbers.safetensors", "state.safetensors"]}
    if expected and files != expected:
        return "other files", str(work)
    return "passed", files


def targets():
    found = eigens()
    for name, compiler, flags in HERE:
        for machine, machine_flags in MACHINES.items():
            for eigen, path in found.items():
                yield {"name": f"{name} | {eigen} | x86-64, {machine}", "compiler": compiler, "eigen": path, "runner": [],
                       "flags": [*flags, *machine_flags, "-pthread"]}
    for name, compiler, flags, runner in ELSEWHERE:
        command = shlex.split(compiler)
        yield {"name": f"{command[0]} | 3.4 | {name}", "compiler": command, "eigen": found["3.4"],
               "runner": shlex.split(runner), "flags": shlex.split(flags)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="targets whose line has this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/targets")
    arguments = parser.parse_args()

    listed = list(targets())
    verdict, expected = check(listed[0], arguments.build / "expected", None)
    if verdict != "passed":
        print(f"{listed[0]['name']}: {verdict}\n{expected}", file=sys.stderr)
        return 1
    listed = [target for target in listed if arguments.only in target["name"]]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as executor:
        results = list(executor.map(lambda target: check(target, arguments.build, expected), listed))

    print("| compiler | Eigen | machine | result |\n|---|---|---|---|")
    status = 0
    for target, (verdict, text) in zip(listed, results):
        print(f"| {target['name']} | {verdict} |")
        if verdict not in ["passed", "-"]:
            print(f"{target['name']}:\n{text}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
