#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tokens.json next to this script: the ids that the original tokenizer gives for the texts of case F41.

    pip install tokenizers==0.23.3
    python3 tokens.py vocab.txt      # that of all-MiniLM-L6-v2; examples/sentence_search/fetch_model.sh fetches it

    vocabulary  a few tokens, so that the test needs no model
    texts       text, its ids by vocab.txt, and its ids by `vocabulary` ("small")
"""
import json
import os
import sys

import tokenizers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Letters with and without "##", some words and pieces, marks, ideographs: enough to tell most mistakes apart.
SMALL = (
    SPECIAL
    + [p + c for c in "abcdefghijklmnopqrstuvwxyz0123456789" for p in ("", "##")]
    + list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    + ["un", "##aff", "##able", "cafe", "resume", "hello", "##ing", "world", "ss", "##ss", "ma", "##sk", "mask"]
    + [p + c for c in "东京東語機器かがきカ한글ᄒ가ßσςαиёяіœæı中文" for p in ("", "##")]
    + list("。，！？「」“”‘’—…€£№½²☕♥→❤") + ["👨", "👩", "👍", "🏽", "##🏽", "😀", "##👩"]
)

# What goes wrong most: limits of words, composed and decomposed letters, ideographs, Hangul, joiners and selectors,
# special folding, invisible characters, special tokens inside words.
TEXTS = [
    "a" * 99, "a" * 100, "a" * 101, "é" * 100, "e\u0301" * 100, "é" * 101, "a" * 100 + "\u0301", "x" * 500 + " un",
    "caf\u00e9", "cafe\u0301", "CAF\u00c9", "re\u0301sume\u0301", "\u1e69 \u1e9b\u0323 s\u0323\u0307",
    "\u212b \u00c5 A\u030a", "\u0344 \u0308\u0301", "o\u0328\u0304 \u01ed",
    "東京語", "a東b京", "机器学习", "\U00020000a\U0002A6D6", "\uf900\ufa0e\U0002F800", "\u3007\u3005\u3006", "㐀䶵鿿",
    "한글", "\u1112\u1161\u11ab\u1100\u1173\u11af", "가각힣", "ㄱㅏ", "がか\u3099 カﾞ", "ー・「語」。",
    "👨\u200d👩\u200d👧", "👍🏽", "👍 🏽", "☕\ufe0f ♥\ufe0e", "❤\ufe0f", "🇩🇪🇫🇷", "a\u200db", "a\u200cb", "a\u2060b", "#\ufe0f\u20e3",
    "İstanbul", "I\u0307", "ı i İ I", "Straße STRASSE ẞ", "ΌΣΟΣ ὈΔΥΣΣΕΎΣ ς Σ", "ǆ ǅ Ǆ", "ﬁ ﬀ", "ſ", "K Å Ω",
    "un\u00adaffable", "\ufeffhello", "hello\ufeff", "hel\x00lo", "a\x7fb\u0080c\u009fd", "a\u0085b", "a\u180eb", "a\u2028b\u2029c",
    "a\u00a0b\u202fc\u3000d\u205fe\u1680f", "a\x1cb\x1db\x1eb\x1fb", "\x0b\x0ca", "a\u061cb", "a\u202eb\u202cc", "\ufffda", "\ue000a\U000f0000",
    "[MASK]", "a[MASK]b", "hello[SEP]world", "[CLS]hello[SEP]", "[mask] [Mask]", "[ MASK ]", "[[MASK]]", "[MASK", "MASK]", "[UN[PAD]K]",
    "[MASK]\u0301", "\u0301[MASK]", "é[MASK]é", "un[MASK]affable", "##able", "un ##aff", "#", "##", "# #ing",
    "unaffable", "unaffables", "UnAffAble!", "un-affable", "don't", "a.b,c;d", "$5.00 €5 5%", "1/2 ½ 2² №5", "a_b", "C++",
    "", " ", "\t\n\r", "\u0301", "\u0301\u0302a", "a \u0301", "\u20dd", "\u0903a", "\u064e\u0627",
    "हिन्दी", "ไทย", "עברית שָׁ", "العربية", "Ёлка ёлка Й й", "ґ Ї", "Łódź Ørsted ð þ", "œuvre ÆON",
    "ａｂｃ １２３ ！", "①②", "Ⅻ", "㎏", "𝐚𝒷", "𐐀𐐨", "\u0378", "\U0010ffff", "\U000e0041", "\U0001f9ff", "\u1fbe\u1fef",
]


def tokenizer_of(tokens):
    tokenizer = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", tokens.index("[SEP]")), ("[CLS]", tokens.index("[CLS]")))
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def main(vocabulary_file):
    with open(vocabulary_file, encoding="utf8", newline="\n") as file:
        large = tokenizer_of([line.rstrip("\n") for line in file])
    assert len(set(SMALL)) == len(SMALL)
    small = tokenizer_of(SMALL)
    lines = [json.dumps({"text": t, "ids": large.encode(t).ids, "small": small.encode(t).ids}, separators=(",", ":")) for t in TEXTS]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokens.json")
    with open(path, "w", encoding="ascii") as file:
        file.write(f'{{"tokenizers":"{tokenizers.__version__}","vocabulary":{json.dumps(SMALL)},"texts":[\n')
        file.write(",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
