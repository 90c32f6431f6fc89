# SPDX-License-Identifier: MIT
"""What the peers share: each is a process that answers every line of its stdin with one line of JSON.

"load PATH" reads a workload as heed saved it, makes this peer's variants of it, and compares the output of each with
heed's: the answer holds the relative errors of those that agree, and why others failed.
"VARIANT CALLS" answers as `workloads --serve` does, after that many calls.
"""

import json
import os
import sys
import time

import numpy as np
from safetensors import safe_open

# How far a peer's output may be from heed's, relative to the largest element: the difference of two float32
# computations, and of one whose queries, weights and output have 16 bits too.
TOLERANCE = {"F32": 1e-4, "F16": 1e-2, "BF16": 5e-2}


class Saved:
    """A workload: its metadata by name, its tensors by name in the arrays of a framework."""

    def __init__(self, path, framework):
        self.file = safe_open(path, framework=framework)
        self.metadata = self.file.metadata()
        self.names = set(self.file.keys())

    def __getitem__(self, name):
        return self.file.get_tensor(name)

    def __contains__(self, name):
        return name in self.names

    def dtype(self, name):
        return self.file.get_slice(name).get_dtype()

    def integers(self, name):
        return [int(i) for i in self[name]]

    def texts(self):
        """The token ids of each text of a minilm workload."""
        ids = self.integers("ids")
        texts, begin = [], 0
        for length in self.integers("lengths"):
            texts.append(ids[begin : begin + length])
            begin += length
        return texts


def pin(cores):
    """All threads of this process, also those that exist already."""
    for task in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(task), cores)


def error(output, expected):
    output, expected = np.asarray(output, np.float64), np.asarray(expected, np.float64)
    if output.shape != expected.shape:
        raise ValueError(f"the output is {output.shape}, heed's is {expected.shape}")
    return float(np.abs(output - expected).max() / np.abs(expected).max())


def run_slice(call, calls, threads):
    cpu, start = time.process_time(), time.perf_counter()
    for _ in range(calls):
        call()
    wall = time.perf_counter() - start
    return {"ms": 1e3 * wall / calls, "cpu_share": (time.process_time() - cpu) / wall / threads}


def check(variants, saved, expected):
    """variants: (name, make) with make() -> (call, to_numpy), where to_numpy(call()) has the layout of heed's output.
    Returns the calls by name, and the answer."""
    tolerance = float(saved.metadata.get("tolerance", TOLERANCE[saved.dtype("k") if "k" in saved else "F32"]))
    calls, errors, failed = {}, {}, {}
    for name, make in variants:
        try:
            call, to_numpy = make()
            difference = error(to_numpy(call()), expected)
            if not difference <= tolerance:
                raise ValueError(f"its output differs from heed's by {difference:.1e} of the largest element")
            calls[name], errors[name] = call, difference
        except Exception as reason:  # what a peer can't do, it says in exceptions of many types
            failed[name] = f"{type(reason).__name__}: {' '.join(str(reason).split())}"[:300]
    return calls, {"errors": errors, "failed": failed}


def serve(about, framework, makers, to_numpy):
    """makers: by the kind of workload, a function of (saved, threads) that yields its variants.
    Arguments of the process: the number of threads, and the cores to run on, as 0,1."""
    threads, cores = int(sys.argv[1]), {int(core) for core in sys.argv[2].split(",")}
    all_cores = os.sched_getaffinity(0)
    print(json.dumps({"about": about}), flush=True)
    calls = {}
    for line in sys.stdin:
        command, argument = line.rstrip("\n").split(" ", 1)
        if command == "load":
            calls.clear()
            pin(all_cores)  # compilers may use them all
            saved = Saved(argument, framework)
            make = makers.get(saved.metadata["kind"])
            variants = make(saved, threads) if make else []
            calls, answer = check(variants, saved, to_numpy(saved["out"]))
            pin(cores)
        else:
            answer = run_slice(calls[command], int(argument), threads)
        print(json.dumps(answer), flush=True)
