#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_headers.py INCLUDE_DIR: the rules that the headers of heed keep.

- Each layer includes only itself and the layers to its left; within a layer no header includes itself round a circle.
- Apart from heed, only Eigen/Core and the standard library are included, with few named exceptions.
- Every header starts with its license and #pragma once, and heed.hpp or inspect.hpp leads to every header.

A header longer than 500 lines is reported; that is advice, not an error.
"""

import pathlib
import re
import sys

LAYERS = ["core", "mask", "attention", "nn", "io", "train", "inspect"]

# The headers that users include; together they lead to every other.
UMBRELLAS = ["heed.hpp", "inspect.hpp"]

# What else the headers of one path may include: the machine's instructions in one place, the system's memory mapping.
EXTRA_INCLUDES = {
    "core/simd.hpp": {"immintrin.h", "arm_neon.h"},
    "io/": {"fcntl.h", "sys/mman.h", "sys/stat.h", "unistd.h"},
}

# Of C++20, what libstdc++ 12 has.
STANDARD_LIBRARY = set(
    """
    algorithm any array atomic barrier bit cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits cmath
    compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring
    ctime cwchar deque exception filesystem forward_list fstream functional future initializer_list iomanip ios iosfwd
    iostream istream iterator latch limits list locale map memory memory_resource mutex new numbers numeric optional
    ostream queue random ranges ratio semaphore set shared_mutex source_location span sstream stack stdexcept stop_token
    streambuf string string_view system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set
    utility valarray variant vector version
    """.split()
)

MAX_LINES = 500
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def layer_of(header):
    """The layer of "core/tensor.hpp"; headers directly in heed/ belong to none."""
    return header.split("/")[0] if "/" in header else None


def check_include(header, quote, target, headers):
    """The error in one #include of `header`, or None."""
    if quote == '"':
        return f'includes "{target}": write <heed/...>'
    if target.startswith("heed/"):
        target = target.removeprefix("heed/")
        if target not in headers:
            return f"includes heed/{target}, which does not exist"
        layer, target_layer = layer_of(header), layer_of(target)
        if layer and target_layer and LAYERS.index(target_layer) > LAYERS.index(layer):
            return f"includes heed/{target}: {layer} is below {target_layer}"
        if layer and target in UMBRELLAS:
            return f"includes {target}, which is for users"
        return None
    if target == "Eigen/Core" or target in STANDARD_LIBRARY:
        return None
    if any(header.startswith(path) and target in includes for path, includes in EXTRA_INCLUDES.items()):
        return None
    return f"includes <{target}>: only heed, Eigen/Core and the standard library are allowed here"


def reachable(start, graph):
    seen, rest = set(), [start]
    while rest:
        header = rest.pop()
        if header not in seen:
            seen.add(header)
            rest.extend(graph[header])
    return seen


def main():
    root = pathlib.Path(sys.argv[1]) / "heed"
    headers = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in root.rglob("*.hpp")}
    errors, advice, graph = [], [], {}

    for header, text in sorted(headers.items()):
        if layer_of(header) not in [None, *LAYERS]:
            errors.append(f"{header}: heed/{layer_of(header)} is no layer; there are {', '.join(LAYERS)}")
            continue
        lines = text.splitlines()
        if lines[:2] != ["// SPDX-License-Identifier: MIT", "#pragma once"]:
            errors.append(f"{header}: must start with the license line and #pragma once")
        if len(lines) > MAX_LINES:
            advice.append(f"{header}: {len(lines)} lines; look for a seam to split it along")
        graph[header] = []
        for quote, target in INCLUDE.findall(text):
            error = check_include(header, quote, target, headers)
            if error:
                errors.append(f"{header}: {error}")
            elif target.startswith("heed/"):
                graph[header].append(target.removeprefix("heed/"))

    if not errors:
        for header, targets in graph.items():
            if any(header in reachable(target, graph) for target in targets):
                errors.append(f"{header}: includes itself in a circle")
        forgotten = set(headers).difference(*(reachable(start, graph) for start in UMBRELLAS if start in graph))
        errors.extend(f"{header}: no umbrella header leads to it" for header in sorted(forgotten))

    for line in advice:
        print(f"advice: {line}")
    for line in errors:
        print(f"error: {line}")
    print(f"{len(headers)} headers, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
