#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_headers.py INCLUDE_DIR: the rules that the headers of heed keep.

- Each layer includes only itself and the layers to its left; no header and no directory includes itself round a circle.
- Apart from heed, only Eigen/Core and the standard library are included, with few named exceptions.
- Every header starts with its license and #pragma once, and one directly in heed/, as heed.hpp, leads to it.
- A header that declares anything hides the macros of others meanwhile (core/hide_macros.hpp).

A header longer than 500 lines is reported; that is advice, not an error.
"""

import pathlib
import re
import sys

# For users; a header inside a layer includes what it needs.
UMBRELLAS = ["heed.hpp", "inspect.hpp", "compiled.hpp", "eigen_tensor.hpp"]

LAYERS = ["core", "mask", "attention", "nn", "io", "train", "inspect", "compiled"]

# What else the headers of one path may include: the machine's instructions, fork(), the system's memory mapping,
# what the build of heed::compiled writes, Eigen's unsupported tensors.
EXTRA_INCLUDES = {
    "core/simd.hpp": {"immintrin.h", "arm_neon.h"},
    "core/float_state.hpp": {"xmmintrin.h"},
    "core/parallel.hpp": {"pthread.h"},
    "io/": {"fcntl.h", "sys/file.h", "sys/mman.h", "sys/stat.h", "unistd.h"},
    "compiled/": {"heed_compiled_abi.hpp"},
    "eigen_tensor.hpp": {"unsupported/Eigen/CXX11/Tensor"},
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

# The first line and the last of a header's contents.
HIDE, RESTORE = "#include <heed/core/hide_macros.hpp>", "#include <heed/core/restore_macros.hpp>"
# Included again by each header.
EACH_TIME = ["core/hide_macros.hpp", "core/restore_macros.hpp"]

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
        if layer and target_layer is None and target != "version.hpp":
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


def in_circles(graph):
    """The nodes that lead back to themselves."""
    return [node for node, targets in graph.items() if any(node in reachable(target, graph) for target in targets)]


def by_directory(graph):
    """Which directory includes which others. One inside another is a part of it: these may include each other."""
    directories = {pathlib.PurePosixPath(header).parent: set() for header in graph}
    for header, targets in graph.items():
        directory = pathlib.PurePosixPath(header).parent
        for other in {pathlib.PurePosixPath(target).parent for target in targets}:
            if not directory.is_relative_to(other) and not other.is_relative_to(directory):
                directories[directory].add(other)
    return directories


def main():
    root = pathlib.Path(sys.argv[1]) / "heed"
    headers = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in root.rglob("*.hpp")}
    errors, advice, graph = [], [], {}

    for header, text in sorted(headers.items()):
        if layer_of(header) not in [None, *LAYERS]:
            errors.append(f"{header}: heed/{layer_of(header)} is no layer; there are {', '.join(LAYERS)}")
            continue
        lines = text.splitlines()
        if lines[:2] != ["// SPDX-License-Identifier: MIT", "#pragma once"] and header not in EACH_TIME:
            errors.append(f"{header}: must start with the license line and #pragma once")
        if "HEED_NAMESPACE_BEGIN" in lines and (lines[2] != HIDE or lines[-1] != RESTORE):
            errors.append(f"{header}: line 3 must be {HIDE} and the last line {RESTORE}")
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
        errors.extend(f"{header}: includes itself in a circle" for header in in_circles(graph))
        errors.extend(f"{folder}/: its headers include it in a circle" for folder in in_circles(by_directory(graph)))
        found = set().union(*(reachable(header, graph) for header in headers if layer_of(header) is None))
        errors.extend(f"{header}: no header of heed/ leads to it" for header in sorted(set(headers) - found))

    for line in advice:
        print(f"advice: {line}")
    for line in errors:
        print(f"error: {line}")
    print(f"{len(headers)} headers, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
