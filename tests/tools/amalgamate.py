#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""amalgamate.py INCLUDE_DIR OUTPUT: writes all of heed as one header, for projects that copy a file.

Each header is put in place of the first #include of it. Without heed::compiled, which needs a library.
"""

import pathlib
import re
import sys

STARTS = ["heed/heed.hpp", "heed/inspect.hpp"]
HIDE, RESTORE = "heed/core/hide_macros.hpp", "heed/core/restore_macros.hpp"
LEFT_OUT = {"heed/compiled.hpp"}
LICENSE = "// SPDX-License-Identifier: MIT\n"
INCLUDE = re.compile(r"\s*#\s*include\s*<(heed/[^>]+)>\s*")


def body(root, name, written):
    """The lines of a header with the headers that it includes, where they are not written yet."""
    written.add(name)
    lines, depth = [], 0
    for line in (root / name).read_text(encoding="utf-8").removeprefix(LICENSE).splitlines():
        if line.strip() == "#pragma once":
            continue
        if re.match(r"\s*#\s*if", line):
            depth += 1
        if re.match(r"\s*#\s*endif", line):
            depth -= 1
        include = INCLUDE.fullmatch(line)
        if not include:
            lines.append(line)
        elif include[1] not in written | LEFT_OUT | {HIDE, RESTORE}:
            if depth:
                sys.exit(f"{name}: includes {include[1]} under a condition, which one file can't keep")
            lines.extend([f"// --- {include[1]}", *body(root, include[1], written)])
    return lines


def main():
    root, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    written = set()
    lines = [LICENSE.strip(), "#pragma once", "", "/// @file", "/// All of heed in one header, with heed/inspect.hpp.", ""]
    lines += body(root, HIDE, written)
    for start in STARTS:
        lines += body(root, start, written)
    lines += body(root, RESTORE, written)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
