# SPDX-License-Identifier: MIT
"""The attention pages in a real browser, with real pointer and key events.

page_test.py --pages PROGRAM [--search PROGRAM] [--char-lm PROGRAM TEXT] [--screenshots DIRECTORY]

The programs write the pages: tests/inspect/browser/pages, the examples sentence_search (which needs its model) and
train_char_lm. Exits with 77 where there is no Chromium.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from devtools import Browser, find_chromium

ARGUMENTS = argparse.Namespace()
SENTENCE = "The animal did not cross the street because it was too tired."


def token(index, row="queries"):
    return f"#{row} .token:nth-child({index + 1})"


def head(layer, number):
    return f'.head[data-layer="{layer}"][data-head="{number}"]'


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="heed-pages-")
        subprocess.run([ARGUMENTS.pages, cls.directory.name], check=True)
        cls.browser = Browser(find_chromium())

    @classmethod
    def tearDownClass(cls):
        cls.browser.__exit__()
        cls.directory.cleanup()

    def open(self, name, **options):
        self.browser.move(0, 0)
        self.browser.open(pathlib.Path(self.directory.name) / name, **options)

    def tearDown(self):
        self.assertEqual(self.browser.complaints(), [])
        elsewhere = [url for url in self.browser.requests() if not url.startswith("file:")]
        self.assertEqual(elsewhere, [], "the page must not need the network")
        if ARGUMENTS.screenshots:
            name = self.id().rsplit(".", 1)[-1]
            self.browser.screenshot(pathlib.Path(ARGUMENTS.screenshots) / f"{name}.png")

    # --- What the page shows ------------------------------------------------------------------------------------------

    def text(self, selector):
        return self.browser.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")

    def count(self, selector):
        return self.browser.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")

    def tooltip(self):
        """The text of the tooltip, or None where none shows."""
        return self.browser.evaluate(
            "(() => { const t = document.getElementById('tooltip'); "
            "return getComputedStyle(t).display === 'none' ? null : t.innerText; })()")

    def weights(self, row="queries"):
        """What each token says: a number, "hidden", or None while no query is chosen."""
        return self.browser.evaluate(f"[...document.querySelectorAll('#{row} .token')].map(t => t.dataset.weight ?? null)")

    def backgrounds(self, row="queries"):
        return self.browser.evaluate(
            f"[...document.querySelectorAll('#{row} .token')].map(t => getComputedStyle(t).backgroundColor)")

    def lightness(self, color):
        red, green, blue = [int(channel) for channel in color.removeprefix("rgb(").removesuffix(")").split(",")]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def pixel(self, selector, x, y):
        """Red, green, blue of a place of a canvas, given as fractions of its size."""
        return self.browser.evaluate(f"""(() => {{
          const from = document.querySelector({json.dumps(selector)}), to = document.createElement("canvas");
          const pen = to.getContext("2d", {{willReadFrequently: true}});
          pen.drawImage(from, -Math.floor({x} * from.width), -Math.floor({y} * from.height));
          return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }})()""")

    def is_gray(self, color):
        return max(color) - min(color) <= 12

    # --- MiniLM -------------------------------------------------------------------------------------------------------

    def test_sentence_of_minilm(self):
        if not ARGUMENTS.search:
            self.skipTest("the example sentence_search was not built")
        page = pathlib.Path(self.directory.name) / "minilm.html"
        made = subprocess.run([ARGUMENTS.search, "--html", str(page), "--sentence", SENTENCE], capture_output=True, text=True)
        if "there is no model" in made.stderr:
            self.skipTest("there is no MiniLM model: examples/sentence_search/fetch_model.sh fetches it")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.open("minilm.html")
        self.assertEqual(self.count(".head"), 6 * 12)
        self.assertEqual(self.text("#detail-title"), "layers.3.self_attn, head 1")
        tokens = self.browser.evaluate("[...document.querySelectorAll('#queries bdi')].map(t => t.textContent)")
        self.assertEqual(tokens, ["[CLS]", *SENTENCE.lower().removesuffix(".").split(), ".", "[SEP]"])
        self.assertEqual(set(self.weights()), {None})

        # Head 1 of layer 3 links "it" to "animal".
        self.browser.hover(token(tokens.index("it")))
        weights = [float(w) for w in self.weights()]
        self.assertAlmostEqual(sum(weights), 1, delta=0.001)
        self.assertEqual(max(range(len(weights)), key=weights.__getitem__), tokens.index("animal"))
        self.assertRegex(self.tooltip(), r"(?s)“it”9 looks at.*0\.\d{4}\s*“animal”2")
        backgrounds = self.backgrounds()
        darkest = min(range(len(weights)), key=lambda i: self.lightness(backgrounds[i]))
        self.assertEqual(darkest, tokens.index("animal"))

        self.browser.click(head(0, 2))
        self.assertEqual(self.text("#detail-title"), "layers.0.self_attn, head 2")
        self.assertEqual(self.count(".head[aria-pressed=true]"), 1)
        entropies = self.browser.evaluate("[...document.querySelectorAll('.head')].map(h => Number(h.dataset.entropy))")
        self.assertTrue(all(0 <= entropy <= 1 for entropy in entropies))
        self.assertGreater(max(entropies) - min(entropies), 0.5)

    # --- The character model --------------------------------------------------------------------------------------

    def test_causal_sample_of_the_character_model(self):
        if not ARGUMENTS.char_lm:
            self.skipTest("the example train_char_lm was not built")
        program, text = ARGUMENTS.char_lm
        setup = ["--steps", "12", "--warmup", "2", "--batch", "4", "--length", "32", "--width", "32", "--heads", "2",
                 "--layers", "2", "--windows", "2", "--sample", "40", "--html", "lm.html", "--overwrite"]
        subprocess.run([os.path.abspath(program), "--text", os.path.abspath(text), *setup], check=True,
                       cwd=self.directory.name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.open("lm.html", dark=True)
        self.assertEqual(self.count(".head"), 2 * 2)
        self.assertEqual(self.count("#queries .token"), 32)
        self.browser.hover(token(11))
        weights = self.weights()
        self.assertEqual(weights[12:], ["hidden"] * 20)
        self.assertNotIn("hidden", weights[:12])
        self.assertAlmostEqual(sum(float(w) for w in weights[:12]), 1, delta=0.002)
        self.assertEqual(self.count("#queries .token.hatched"), 20)
        # The upper right of each map is hatched in gray, the lower left colored.
        self.assertTrue(self.is_gray(self.pixel(head(1, 1) + " canvas", 0.9, 0.1)))
        self.assertFalse(self.is_gray(self.pixel(head(1, 1) + " canvas", 0.1, 0.9)))

    # --- Pointer and keys ---------------------------------------------------------------------------------------------

    def test_pointer_on_the_map(self):
        self.open("cross.html")
        self.browser.click(head(0, 1))
        # The last cell of a causal map of 3 x 3 is visible, the one at the upper right is hidden.
        box = self.browser.evaluate("(() => { const m = document.getElementById('map'); return [m.clientWidth, m.clientHeight]; })()")
        self.assertGreater(min(box), 60)
        self.browser.hover(token(0))
        row = self.browser.evaluate(
            "(() => { const r = document.getElementById('cross-row').getBoundingClientRect(), "
            "m = document.getElementById('map').getBoundingClientRect(); "
            "return [(r.left - m.left) / m.width, (r.top - m.top) / m.height, r.width / m.width, r.height / m.height]; })()")
        left, top, width, height = row
        middle = top + height / 2
        self.browser.hover("#map", (left + width * 0.9, middle))
        self.assertEqual(self.tooltip(), "“le”0 → “dort”2: hidden by the mask")
        self.browser.hover("#map", (left + width * 0.1, middle))
        self.assertEqual(self.tooltip(), "“le”0 → “le”0: 1.0000")
        self.browser.hover("#map", (left + width * 0.5, middle + 2 * height))
        self.assertRegex(self.tooltip(), r"^“dort”2 → “chat”1: 0\.\d{4}$")
        self.assertEqual(self.count("#queries .token.query"), 1)
        self.browser.move(1, 1)
        self.assertIsNone(self.tooltip())
        self.assertEqual(self.count("#queries .token.query"), 0)

    def test_cross_attention_has_keys_of_its_own(self):
        self.open("cross.html")
        self.assertTrue(self.browser.evaluate("document.getElementById('keys').hidden"))
        self.browser.click(head(1, 3))
        self.assertEqual(self.text("#detail-title"), "layers.0.multihead_attn, head 3")
        self.assertFalse(self.browser.evaluate("document.getElementById('keys').hidden"))
        self.assertEqual(self.count("#queries .token"), 3)
        self.assertEqual(self.count("#keys .token"), 5)
        self.browser.click(token(1))
        self.assertEqual(set(self.weights()), {None})
        self.assertAlmostEqual(sum(float(w) for w in self.weights("keys")), 1, delta=0.001)
        self.browser.hover(token(3, "keys"))
        self.assertRegex(self.tooltip(), r"^“chat”1 → “asleep”3: 0\.\d{4}$")

    def test_click_holds_a_token_and_escape_lets_it_go(self):
        self.open("cross.html")
        self.browser.click(token(2))
        held = self.weights()
        self.browser.hover(token(0))
        self.assertEqual(self.weights(), held)
        self.assertRegex(self.tooltip(), r"^“dort”2 → “le”0: 0\.\d{4}$")
        self.assertEqual(self.count("#queries [aria-selected=true]"), 1)
        self.browser.move(1, 1)
        self.assertEqual(self.weights(), held)
        self.browser.press("Escape")
        self.assertEqual(set(self.weights()), {None})

    def test_keyboard_alone(self):
        self.open("cross.html")
        focused = "document.activeElement"
        for _ in range(10):
            self.browser.press("Tab")
            if self.browser.evaluate(f"{focused}.matches('.token')"):
                break
        self.browser.press("ArrowRight")
        self.assertEqual(self.weights()[2], "hidden")
        self.assertIn("“chat”1 sees 2 of 3 keys", self.text("#status"))
        self.browser.press("Enter")
        self.browser.press("Tab")
        self.assertEqual(self.browser.evaluate(f"{focused}.className"), "head")
        self.assertEqual(self.count(".head[tabindex='0']"), 1)
        self.browser.press("ArrowDown")
        self.browser.press("ArrowRight")
        self.assertEqual(self.text("#detail-title"), "layers.0.multihead_attn, head 1")
        self.assertEqual(self.browser.evaluate(f"{focused}.dataset.head"), "1")

    def test_scale_of_the_colors(self):
        self.open("cross.html")
        self.browser.click(head(1, 0))
        self.browser.click(token(2))
        weights = [float(w) for w in self.weights("keys")]
        ends, shades = [], []
        for scale in ("query", "head", "one"):
            self.browser.click(f"input[value={scale}]")
            ends.append(float(self.text("#ramp-end")))
            shades.append([self.lightness(color) for color in self.backgrounds("keys")])
        self.assertEqual(ends[0], max(weights))
        self.assertLess(ends[0], ends[1])
        self.assertEqual(ends[2], 1)
        for narrow, wide in zip(shades, shades[1:]):
            self.assertTrue(all(a < b for a, b in zip(narrow, wide)), (narrow, wide))

    # --- Odd contents -------------------------------------------------------------------------------------------------

    def test_hostile_labels_stay_text(self):
        self.open("hostile.html")
        self.assertEqual(self.browser.evaluate("document.title"), "</title><script>document.title='broken'</script>")
        self.assertEqual(self.count("script"), 2)
        self.assertEqual(self.count("img"), 0)
        labels = self.browser.evaluate("[...document.querySelectorAll('#queries bdi')].map(t => t.textContent)")
        self.assertEqual(labels[0], "</script><script>document.title='broken'</script>")
        self.assertEqual(labels[2:10], ["\"'&amp;&lt;", "∅", "␣", "␊␉␁", "👩‍🚀", "שלום", "\u202eoverride", "\ufffd\ufffd"])
        self.assertEqual(len(labels[10]), 200)
        self.assertEqual(self.text("#grid [role=rowheader]"), "<b>layer</b>")
        for index in range(len(labels)):
            self.browser.hover(token(index))
            self.assertIn("looks at", self.tooltip())
        self.assertEqual(self.browser.evaluate("document.title"), "</title><script>document.title='broken'</script>")
        wide = self.browser.evaluate("document.documentElement.scrollWidth - innerWidth")
        self.assertLessEqual(wide, 0, "a long label must not widen the page")

    def test_zero_hidden_and_nan_differ(self):
        for dark in (False, True):
            self.open("special.html", dark=dark)
            self.browser.hover(token(0))
            self.assertEqual(self.weights(), ["1.0000", "0.0000", "hidden"])
            canvas = head(0, 0) + " canvas"
            zero, hidden, nan = (self.pixel(canvas, (k + 0.5) / 3, (q + 0.5) / 3) for q, k in ((0, 1), (0, 2), (2, 2)))
            self.assertTrue(self.is_gray(hidden), hidden)
            self.assertFalse(self.is_gray(zero), zero)
            self.assertGreater(nan[0], 200)
            self.assertLess(nan[1], 120)
            self.assertFalse(self.browser.evaluate("document.getElementById('legend-nan').hidden"))
            self.browser.hover(token(1))
            self.assertIn("sees no key", self.tooltip())
            self.browser.hover(token(2))
            self.assertIn("not a number", self.tooltip())

    def test_large_page(self):
        page = pathlib.Path(self.directory.name) / "large.html"
        self.assertLess(page.stat().st_size, 3.5e6)
        self.open("large.html", width=1280, height=1400)
        self.assertEqual(self.count(".head"), 144)
        self.assertIn("8 bits", self.text("#summary"))
        self.browser.hover(token(100))
        weights = self.weights()
        self.assertEqual(weights[101:], ["hidden"] * 27)
        self.assertAlmostEqual(sum(0 if w.startswith("below") else float(w) for w in weights[:101]), 1, delta=0.1)
        self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth - innerWidth"), 0)

    def test_grids_are_svg(self):
        for name in ("large.svg", "special.svg"):
            self.browser.show(pathlib.Path(self.directory.name) / name)
            self.assertEqual(self.browser.evaluate("document.documentElement.tagName"), "svg")
            self.assertEqual(self.count("parsererror"), 0)
            wide, page = self.browser.evaluate(
                "[document.documentElement.getBBox().width, document.documentElement.width.baseVal.value]")
            self.assertLessEqual(wide, page)

    def test_light_and_dark(self):
        for dark in (False, True):
            self.open("cross.html", dark=dark)
            page = self.lightness(self.browser.evaluate("getComputedStyle(document.body).backgroundColor"))
            text = self.lightness(self.browser.evaluate("getComputedStyle(document.body).color"))
            self.assertGreater(abs(page - text), 180)
            self.assertEqual(page < text, dark)
            # The largest weight differs from the page.
            largest = self.pixel(head(0, 0) + " canvas", 0.1, 0.1)
            self.assertGreater(abs(self.lightness(f"rgb({largest[0]},{largest[1]},{largest[2]})") - page), 120)

    def test_narrow_screen(self):
        self.open("cross.html", width=390, height=844)
        self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth - innerWidth"), 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pages", required=True)
    parser.add_argument("--search")
    parser.add_argument("--char-lm", nargs=2)
    parser.add_argument("--screenshots")
    parser.parse_args(namespace=ARGUMENTS)
    if not find_chromium():
        print("skipped: there is no Chromium; `apt-get install chromium` brings one (110 MB)")
        return 77
    result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
