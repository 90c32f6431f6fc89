# SPDX-License-Identifier: MIT
"""Writes texts.json: texts and their ids by the original tokenizer library, for the tokenizer of SmolLM2.

    python3 -m venv venv && venv/bin/pip install gguf==0.19.0 tokenizers==0.23.3
    venv/bin/python generate.py SmolLM2-135M-Instruct.Q4_1.gguf             # writes texts.json
    venv/bin/python generate.py SmolLM2-135M-Instruct.Q4_1.gguf 20000       # prints as many, one JSON array a line

golden.json holds what transformers 5.24.0 and torch 2.15.0 computed of the same file, dequantized: logits in float64
(greatest difference to float32: 1e-4), greedy ids in float32 with a cache of keys and values, checked without one.
"""
import json
import pathlib
import random
import sys

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def tokenizer_of(path):
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    types = fields["tokenizer.ggml.token_type"].contents()
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in zip(tokens, types) if kind == 3])
    return tokenizer


def random_texts(tokenizer, count):
    rng = random.Random(7)
    pieces = [tokenizer.decode([i]) for i in range(17, tokenizer.get_vocab_size())]
    characters = [*range(32, 127), 9, 10, 13, 0xA0, 0xAD, 0x2003, 0x2028, 0x301, 0x3A3, 0x4E2D, 0xBD, 0xB2, 0x663,
                  0x1F355, 0x200D, 0xFFFD]
    for _ in range(count):
        yield "".join(
            rng.choice(pieces) if rng.random() < 0.6 else chr(rng.choice(characters)) for _ in range(rng.randrange(30)))


CHOSEN = [
    "", " ", "  ", "\n\n\n", "a  b", "a \n b", "I'm you're he'd THEY'LL 'sneaky", "''s", "x=1+23.5e-7;", "\t\tif (a) {\n",
    "<|im_start|>user\nhi<|im_end|>", "<|im_start|", "<|endoftext|><|endoftext|>", "Crème brûlée naïve", "日本語のテキスト",
    "١٢٣ ½ ² Ⅷ", "🍕👩‍👩‍👧‍👦", "\u00a0non\u2003breaking\u3000spaces \u2028", "-" * 200, " " * 50 + "x", "ab" * 100, "\x04\x06\x13",
    "e\u0301 combining", "don't  do\tthat!?\r\n",
]

if __name__ == "__main__":
    tokenizer = tokenizer_of(sys.argv[1])
    if len(sys.argv) > 2:
        for text in random_texts(tokenizer, int(sys.argv[2])):
            print(json.dumps([text, tokenizer.encode(text).ids]))
    else:
        texts = CHOSEN + list(random_texts(tokenizer, 300))
        lines = [json.dumps([text, tokenizer.encode(text).ids], ensure_ascii=False) for text in texts]
        pathlib.Path(__file__).with_name("texts.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf8")
