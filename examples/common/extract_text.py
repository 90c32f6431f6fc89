# SPDX-License-Identifier: MIT
"""Writes the plain text that a package holds: extract_text.py kjv|austen UNPACKED_PACKAGE OUTPUT_DIRECTORY"""

import pathlib
import re
import struct
import subprocess
import sys
import zlib


def kjv(package: pathlib.Path, output: pathlib.Path) -> None:
    """Windows of text, each as compress(1) writes it but for the three bytes it begins with. One verse a line."""
    data = (package / "usr/lib/bible.data").read_bytes()
    (count,) = struct.unpack_from(">I", data, 0x58)
    offsets = struct.unpack_from(f">{count + 1}I", data, 0x5C)
    text = b""
    for begin, end in zip(offsets, offsets[1:]):
        window = b"\x1f\x9d\x90" + data[begin:end]
        text += subprocess.run(["gzip", "-dc"], input=window, stdout=subprocess.PIPE, check=True).stdout
    verses = text.split(b"\n", 1)[1]  # without the title
    (output / "kjv.txt").write_bytes(re.sub(rb"(?m)^\w+:\d+ ", b"", verses))


def austen(package: pathlib.Path, output: pathlib.Path) -> None:
    """One vector of strings, the lines, for each novel, as R serializes and compresses it (format 3, XDR)."""
    data = (package / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    names = ["emma", "mansfield_park", "northanger_abbey", "persuasion", "pride_and_prejudice", "sense_and_sensibility"]
    for name in names:
        stream = zlib.decompressobj()
        vector = stream.decompress(data[4:])  # after its length
        data = stream.unused_data
        header = 2 + 3 * 4  # "X\n", the version of the format and of two Rs
        at = header + 4 + struct.unpack_from(">i", vector, header)[0]  # past the name of the encoding
        kind, count = struct.unpack_from(">ii", vector, at)
        if kind != 16:
            sys.exit(f"extract_text.py: {name} is no vector of strings")
        at += 8
        lines = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", vector, at + 4)
            at += 8
            lines.append(vector[at : at + length])
            at += length
        (output / f"{name}.txt").write_bytes(b"\n".join(lines) + b"\n")


if __name__ == "__main__":
    {"kjv": kjv, "austen": austen}[sys.argv[1]](pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
