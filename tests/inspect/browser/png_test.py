# SPDX-License-Identifier: MIT
"""png_test.py PAGES: reads the PNG files that the program tests/inspect/browser/pages writes, with Python's zlib."""

import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

PAPER, HIDDEN, NAN = (255, 255, 255), {(236, 236, 236), (190, 190, 190)}, (0xE6, 0, 0x7E)


class Png:
    """A file of 8-bit indexed colors without filters. Checks what it reads."""

    def __init__(self, path):
        data = path.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        chunks, at = {}, 8
        while at < len(data):
            length, = struct.unpack(">I", data[at:at + 4])
            kind, content = data[at + 4:at + 8], data[at + 8:at + 8 + length]
            checksum, = struct.unpack(">I", data[at + 8 + length:at + 12 + length])
            assert zlib.crc32(kind + content) == checksum, kind
            chunks[kind] = content
            at += 12 + length
        assert list(chunks) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
        self.width, self.height, *form = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
        assert form == [8, 3, 0, 0, 0]
        self.palette = [tuple(chunks[b"PLTE"][i:i + 3]) for i in range(0, len(chunks[b"PLTE"]), 3)]
        self.packed = len(chunks[b"IDAT"])
        lines = zlib.decompress(chunks[b"IDAT"])
        assert len(lines) == (self.width + 1) * self.height
        self.rows = [lines[i:i + self.width + 1] for i in range(0, len(lines), self.width + 1)]
        assert all(row[0] == 0 for row in self.rows)

    def color(self, x, y):
        return self.palette[self.rows[y][1 + x]]


class PngTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="heed-pages-")
        subprocess.run([sys.argv[1], cls.directory.name], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def read(self, name):
        return Png(pathlib.Path(self.directory.name) / name)

    def test_cells_of_one_head(self):
        png = self.read("special.png")
        self.assertEqual((png.width, png.height), (30, 30))
        scale = png.palette[:251]
        for x in range(30):
            for y in range(30):
                cell = (y // 10, x // 10)
                expected = {(0, 0): {scale[250]}, (0, 1): {scale[0]}, (2, 2): {NAN}}.get(cell, HIDDEN)
                self.assertIn(png.color(x, y), expected, cell)

    def test_grid_of_many_heads(self):
        png = self.read("large.png")
        self.assertEqual((png.width, png.height), (12 * 104 + 8, 12 * 104 + 8))
        for layer in range(12):
            for head in range(12):
                x, y = 8 + 104 * head, 8 + 104 * layer
                self.assertEqual(png.color(x - 1, y), PAPER)
                self.assertEqual(png.color(x, y), png.palette[250], "the first query looks at the first key")
                self.assertIn(png.color(x + 95, y), HIDDEN)
        self.assertLess(png.packed, 0.6 * png.width * png.height)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
