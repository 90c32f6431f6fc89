# SPDX-License-Identifier: MIT
"""Makes one test program of the pages of the guide: generate.py OUTPUT PAGE...

The ```cpp blocks of a page are the body of one test, in their order: names live on from block to block, and each block
starts at its own line of the page. A block that begins with a struct or a template defines it outside of the body, up
to the last `};` or `}` that stands at the margin. Where a plain ``` block is the next thing of its kind, it is what the
block before it prints to std::cout.
"""
import pathlib
import re
import sys

FENCE = re.compile(r"^```(.*)$")


def blocks_of(text):
    """(kind, number of the first line, lines) of each fenced block."""
    blocks = []
    opened = None
    for number, line in enumerate(text.split("\n"), 1):
        fence = FENCE.match(line)
        if not fence:
            if opened:
                opened[2].append(line)
        elif opened:
            blocks.append(opened)
            opened = None
        else:
            opened = (fence.group(1), number + 1, [])
    if opened:
        raise SystemExit(f"the block at line {opened[1]} is not closed")
    return blocks


def split(lines):
    """The number of lines that belong outside of the body."""
    if not lines or not re.match(r"(struct|class|template)\b", lines[0]):
        return 0
    ends = [i for i, line in enumerate(lines) if line in ("};", "}")]
    return ends[-1] + 1 if ends else 0


def test_of(path):
    page = pathlib.Path(path)
    name = re.sub(r"\W", "_", page.stem)
    outside, body = [], []
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    for i, (kind, line, lines) in enumerate(blocks):
        if kind != "cpp":
            continue
        head = split(lines)
        if head:
            outside += [f'#line {line} "{page}"', *lines[:head]]
        body += [f'#line {line + head} "{page}"', *lines[head:]]
        if i + 1 < len(blocks) and blocks[i + 1][0] == "":
            output = "\n".join(blocks[i + 1][2]) + "\n"
            body.append(f'page.expect({blocks[i + 1][1]}, R"guide({output})guide");')
        else:
            body.append("page.skip();")
    return "\n".join([f"namespace page_{name} {{", *outside, f"TEST(Guide, {name}) {{",
                      f'  heed_test::GuidePage page("{page.name}");', *body, "}", "}", ""])


output, *pages = sys.argv[1:]
program = '#include "guide/guide.hpp"\n\n' + "\n".join(test_of(page) for page in sorted(pages))
pathlib.Path(output).write_text(program, encoding="utf-8")
