#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the golden values of the tests from PyTorch: one .safetensors file per case, see README.md beside this file.

    python3 generate.py            # writes torch/*.safetensors beside this script
    python3 generate.py --check    # writes nothing, compares what it would write with what is there
"""

import argparse
import json
import pathlib
import struct
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

TORCH_VERSION = torch.__version__.split("+")[0]
CHECK_TOLERANCE = 1e-11  # relative to the largest entry of a tensor: another CPU may sum in another order

DTYPES = {"float64": "F64", "float32": "F32", "int64": "I64", "uint8": "U8"}

GIVEN = ("in.", "param.", "dout.")  # stored as float32, which holds them exactly; all else is stored as computed

KEEP = "keep tensors are U8, 1 = may attend, 0 = hidden (PyTorch's module masks mean the opposite)"


# ---- files ---------------------------------------------------------------------------------------------------------


def encode(tensors, metadata):
    """The bytes of a safetensors file. The official writer leaves the order of __metadata__ to a random hash, and the
    files have to be reproducible byte by byte, hence these lines."""
    # Wide types first keeps every tensor aligned without gaps, which the format forbids.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header, data = {"__metadata__": metadata}, b""
    for name in names:
        array = tensors[name]
        raw = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def decode(content):
    """The tensors and the metadata of a file that encode() made."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        dtype = next(numpy_name for numpy_name, stored in DTYPES.items() if stored == entry["dtype"])
        first, last = entry["data_offsets"]
        tensors[name] = np.frombuffer(content[end + first : end + last], dtype).reshape(entry["shape"])
    return tensors, metadata


def differences(made, stored):
    """What is wrong with the stored file, as a list of sentences; empty if it holds what was made."""
    if made == stored:
        return []
    (new, new_metadata), (old, old_metadata) = decode(made), decode(stored)
    found = [f"{name} is in one of them only" for name in sorted(new.keys() ^ old.keys())]
    if new_metadata != old_metadata:
        found.append("metadata differs")
    for name in sorted(new.keys() & old.keys()):
        a, b = new[name], old[name]
        if a.dtype != b.dtype or a.shape != b.shape:
            found.append(f"{name}: {a.dtype}{a.shape} made, {b.dtype}{b.shape} stored")
        elif name.startswith(("out.", "grad.", "final.")) and a.dtype.kind == "f":
            eps = CHECK_TOLERANCE if a.dtype == np.float64 else 1e-5
            finite = np.isfinite(a)
            largest = max(1.0, np.abs(a[finite]).max(initial=0.0))
            same_infinities = np.array_equal(a[~finite], b[~finite])
            if not same_infinities or np.abs(a[finite] - b[finite]).max(initial=0.0) > eps * largest:
                found.append(f"{name}: values differ")
        elif not np.array_equal(a, b):
            found.append(f"{name}: values differ")
    return found


# ---- one case ------------------------------------------------------------------------------------------------------


def representable(values):
    """Rounds to numbers that float, half and bfloat16 hold exactly, so that a test in any of these precisions starts
    from the very numbers that PyTorch started from."""
    return torch.as_tensor(values).to(torch.bfloat16).to(torch.float16).to(torch.float64)


class Golden:
    """One case: its tensors, its metadata, and random numbers seeded by its name, so that cases are independent."""

    def __init__(self, name, module, options, masks="none", notes=""):
        self.name = name
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.metadata = {
            "generator": "tests/golden/generate.py",
            "module": module,
            "options": json.dumps(options),
            "masks": masks,
            "notes": notes,
            "torch": TORCH_VERSION,
        }
        self.tensors = {}
        self.leaves = {}

    def normal(self, *shape, scale=1.0, mean=0.0):
        return representable(mean + scale * self.rng.standard_normal(shape))

    def put(self, name, value):
        array = value.detach().numpy().copy() if isinstance(value, torch.Tensor) else np.asarray(value)
        if array.dtype == np.bool_:
            array = array.astype(np.uint8)
        elif array.dtype == np.float64 and name.startswith(GIVEN):
            assert np.array_equal(array, array.astype(np.float32)), f"{self.name}: {name} is not exact in float32"
            array = array.astype(np.float32)
        self.tensors[name] = array

    def input(self, name, value):
        """An input with a gradient."""
        self.put("in." + name, value)
        self.leaves["in." + name] = value.requires_grad_()
        return value

    def keep(self, name, value):
        self.put("keep" + name, value)
        return value

    def parameters(self, module):
        """Replaces PyTorch's own initial values, in which biases are 0 and norms 1 and so prove nothing."""
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if parameter.dim() > 1:
                    parameter.copy_(self.normal(*parameter.shape, scale=1.2 / parameter.shape[-1] ** 0.5))
                elif name.endswith("weight"):
                    parameter.copy_(self.normal(*parameter.shape, scale=0.3, mean=1.0))
                else:
                    parameter.copy_(self.normal(*parameter.shape, scale=0.3))
                self.put("param." + name, parameter)
                self.leaves["param." + name] = parameter
        return module

    def backward(self, **outputs):
        """Stores the outputs, draws a dout for each, and stores the gradients of loss = sum over outputs of
        sum(out * dout)."""
        loss = torch.zeros((), dtype=torch.float64)
        for name, value in outputs.items():
            dout = self.normal(*value.shape)
            self.put("out." + name, value)
            self.put("dout." + name, dout)
            loss = loss + (value * dout).sum()
        loss.backward()
        for name, leaf in self.leaves.items():
            self.put("grad." + name, leaf.grad)

    def content(self):
        for name, array in self.tensors.items():
            if name.startswith("grad."):
                assert np.abs(array).max() > 1e-6, f"{self.name}: {name} is zero and would test nothing"
            if array.dtype.kind == "f" and name != "out.lse":
                assert np.isfinite(array).all(), f"{self.name}: {name} is not finite"
        return encode(self.tensors, self.metadata)


def padding(lengths, longest):
    return torch.arange(longest)[None, :] < torch.as_tensor(lengths)[:, None]


def lower_triangle(length):
    return torch.ones(length, length, dtype=torch.bool).tril()


def record_attention_weights(golden, module):
    """Layers ask their attention for no weights; this asks the attention once more, with the same arguments."""

    def ask(attention, args, kwargs, name):
        asking = dict(kwargs, need_weights=True, average_attn_weights=False)
        with torch.no_grad():
            golden.put(f"out.{name}.weights", nn.MultiheadAttention.forward(attention, *args, **asking)[1])

    for name, child in module.named_modules():
        if isinstance(child, nn.MultiheadAttention):
            child.register_forward_pre_hook(
                lambda attention, args, kwargs, name=name: ask(attention, args, kwargs, name), with_kwargs=True
            )


def record_layers(golden, module):
    """Stores what each layer of a stack returns, so that a failing test tells where it went wrong."""
    for index, layer in enumerate(module.layers):
        layer.register_forward_hook(lambda _, args, output, index=index: golden.put(f"out.layers.{index}", output))


# ---- scaled dot-product attention ----------------------------------------------------------------------------------


def sdpa(name, B, H, G, Lq, Lk, Dk, Dv, *, keep=None, causal=False, scale=None, bias=False, spread=1.0, notes=""):
    """keep: shape of a random boolean mask, or "empty rows"."""
    options = {"enable_gqa": G != H, "is_causal": causal, "scale": scale}
    golden = Golden(name, "torch.nn.functional.scaled_dot_product_attention", options, KEEP if keep else "none", notes)
    q = golden.input("q", golden.normal(B, H, Lq, Dk, scale=spread))
    k = golden.input("k", golden.normal(B, G, Lk, Dk))
    v = golden.input("v", golden.normal(B, G, Lk, Dv))
    mask = None
    if causal:
        golden.metadata["masks"] = "causal, Lq = Lk"
    elif keep == "empty rows":
        mask = torch.ones(B, 1, Lq, Lk, dtype=torch.bool)
        mask[0, 0, 2] = mask[1, 0, 0] = mask[1, 0, Lq - 1] = False
        golden.keep("", mask)
    elif keep:
        mask = torch.as_tensor(golden.rng.random(keep) < 0.55)
        mask[..., torch.arange(Lq), torch.arange(Lq) % Lk] = True  # no row without a key
        golden.keep("", mask)
    elif bias:
        mask = golden.input("bias", golden.normal(1, H, Lq, Lk))
    y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=G != H)

    # The weights and the log-sum-exp, which the function keeps to itself.
    with torch.no_grad():
        key, value = (t.repeat_interleave(H // G, dim=1) for t in (k, v))
        scores = q @ key.transpose(-2, -1) * (Dk**-0.5 if scale is None else scale)
        if bias:
            scores = scores + mask
        elif causal or mask is not None:
            scores = scores.masked_fill(~(lower_triangle(Lq) if causal else mask), float("-inf"))
        lse = torch.logsumexp(scores, dim=-1)
        weights = torch.where(torch.isinf(scores), 0.0, torch.softmax(scores, dim=-1))
        torch.testing.assert_close(weights @ value, y, rtol=0, atol=1e-12)
    golden.put("out.weights", weights)
    golden.put("out.lse", lse)
    golden.backward(y=y)
    return golden


def sdpa_cases():
    yield sdpa("sdpa", 2, 3, 3, 5, 13, 8, 8)
    yield sdpa("sdpa_scale", 2, 2, 2, 7, 9, 12, 6, scale=0.4)
    yield sdpa("sdpa_causal", 2, 2, 2, 11, 11, 8, 8, causal=True)
    yield sdpa("sdpa_gqa", 2, 6, 2, 5, 8, 4, 7)
    yield sdpa("sdpa_gqa_causal", 2, 6, 2, 7, 7, 6, 5, causal=True)
    yield sdpa("sdpa_mqa_causal", 2, 4, 1, 6, 6, 5, 8, causal=True, scale=0.3)
    yield sdpa("sdpa_mask_shared_by_heads", 3, 2, 2, 5, 10, 8, 6, keep=(3, 1, 5, 10))
    yield sdpa("sdpa_mask_shared_by_batch", 2, 2, 2, 9, 6, 8, 8, keep=(1, 2, 9, 6))
    yield sdpa("sdpa_gqa_mask_per_head", 2, 6, 2, 5, 9, 6, 4, keep=(2, 6, 5, 9), scale=0.25)
    yield sdpa(
        "sdpa_empty_rows", 2, 2, 2, 5, 7, 6, 4, keep="empty rows",
        notes="queries without a visible key: output, weights and gradients 0, log-sum-exp -inf",
    )
    yield sdpa("sdpa_large_scores", 2, 2, 2, 6, 8, 8, 4, spread=200.0, notes="scores of several hundred")
    yield sdpa(
        "sdpa_bias", 2, 3, 3, 6, 8, 4, 4, bias=True,
        notes="in.bias (1,H,Lq,Lk) is added to the scaled scores; its gradient is summed over the batch",
    )


# ---- multi-head attention ------------------------------------------------------------------------------------------


def multi_head_attention(name, B, Lq, Lk, E, H, *, kdim=None, vdim=None, bias=True, causal=False, lengths=None):
    cross = Lk is not None
    options = {"embed_dim": E, "num_heads": H, "bias": bias, "kdim": kdim, "vdim": vdim, "batch_first": True}
    masks = [text for text, used in (("keep (Lq,Lk): causal", causal), ("keep.keys (B,Lk): padding", lengths)) if used]
    golden = Golden(
        name, "torch.nn.MultiheadAttention", options, "; ".join(masks + [KEEP]) if masks else "none",
        "cross attention: in.query, in.key, in.value" if cross else "self attention: in.x is query, key and value",
    )
    module = golden.parameters(nn.MultiheadAttention(**options, dtype=torch.float64))
    if cross:
        query = golden.input("query", golden.normal(B, Lq, E))
        key = golden.input("key", golden.normal(B, Lk, kdim or E))
        value = golden.input("value", golden.normal(B, Lk, vdim or E))
    else:
        query = key = value = golden.input("x", golden.normal(B, Lq, E))
    masking = {}
    if causal:
        masking["attn_mask"] = ~golden.keep("", lower_triangle(Lq))
    if lengths:
        golden.put("in.lengths", np.array(lengths))
        masking["key_padding_mask"] = ~golden.keep(".keys", padding(lengths, Lk or Lq))

    y, _ = module(query, key, value, need_weights=False, **masking)
    with torch.no_grad():
        y_too, weights = module(query, key, value, average_attn_weights=False, **masking)
        _, mean = module(query, key, value, average_attn_weights=True, **masking)
    torch.testing.assert_close(y_too, y, rtol=0, atol=1e-12)
    golden.put("out.weights", weights)
    golden.put("out.weights_mean", mean)
    golden.backward(y=y)
    return golden


def multi_head_attention_cases():
    yield multi_head_attention("mha_self", 2, 7, None, 24, 3)
    yield multi_head_attention("mha_self_no_bias", 2, 9, None, 16, 2, bias=False)
    yield multi_head_attention("mha_self_causal", 2, 8, None, 16, 4, causal=True)
    yield multi_head_attention("mha_self_padding", 3, 7, None, 16, 2, lengths=[7, 4, 2])
    yield multi_head_attention("mha_self_causal_padding", 3, 6, None, 16, 4, causal=True, lengths=[4, 6, 1])
    yield multi_head_attention("mha_cross", 2, 5, 9, 16, 2)
    yield multi_head_attention("mha_cross_kdim_vdim", 2, 5, 9, 24, 4, kdim=20, vdim=12)
    yield multi_head_attention(
        "mha_cross_kdim_vdim_no_bias_padding", 3, 5, 6, 16, 2, kdim=10, vdim=18, bias=False, lengths=[6, 3, 5]
    )


# ---- transformer layers and stacks ---------------------------------------------------------------------------------

PADDED_QUERIES = "padding hides keys only: rows of padded queries are computed like any other and have a dout"


def encoder_layer(name, B, L, E, H, ff, *, norm_first, activation, eps, lengths=None):
    options = {
        "d_model": E, "nhead": H, "dim_feedforward": ff, "dropout": 0.0, "activation": activation,
        "layer_norm_eps": eps, "batch_first": True, "norm_first": norm_first,
    }
    masks = f"keep.keys (B,L): padding; {KEEP}" if lengths else "none"
    golden = Golden(name, "torch.nn.TransformerEncoderLayer", options, masks, PADDED_QUERIES if lengths else "")
    module = golden.parameters(nn.TransformerEncoderLayer(**options, dtype=torch.float64))
    record_attention_weights(golden, module)
    x = golden.input("x", golden.normal(B, L, E))
    masking = {}
    if lengths:
        golden.put("in.lengths", np.array(lengths))
        masking["src_key_padding_mask"] = ~golden.keep(".keys", padding(lengths, L))
    golden.backward(y=module(x, **masking))
    return golden


def encoder(name, B, L, E, H, ff, layers, *, norm_first, activation, lengths, final_norm):
    options = {
        "d_model": E, "nhead": H, "dim_feedforward": ff, "dropout": 0.0, "activation": activation,
        "layer_norm_eps": 1e-4, "batch_first": True, "norm_first": norm_first,
    }
    stack = {"num_layers": layers, "norm": "LayerNorm" if final_norm else None, "norm_eps": 1e-3}
    golden = Golden(
        name, "torch.nn.TransformerEncoder", options | stack, f"keep.keys (B,L): padding; {KEEP}",
        f"out.layers.N: the output of layer N; {PADDED_QUERIES}",
    )
    layer = nn.TransformerEncoderLayer(**options, dtype=torch.float64)
    norm = nn.LayerNorm(E, eps=1e-3, dtype=torch.float64) if final_norm else None
    module = golden.parameters(nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False))
    record_attention_weights(golden, module)
    record_layers(golden, module)
    x = golden.input("x", golden.normal(B, L, E))
    golden.put("in.lengths", np.array(lengths))
    golden.backward(y=module(x, src_key_padding_mask=~golden.keep(".keys", padding(lengths, L))))
    return golden


def decoder(name, B, Lt, Lm, E, H, ff, *, layers=None, norm_first, activation, eps, lengths):
    """One layer, or with `layers` a stack of them with a final norm."""
    options = {
        "d_model": E, "nhead": H, "dim_feedforward": ff, "dropout": 0.0, "activation": activation,
        "layer_norm_eps": eps, "batch_first": True, "norm_first": norm_first,
    }
    masks = f"keep.tgt (Lt,Lt): causal; keep.memory_keys (B,Lm): padding; {KEEP}"
    module = nn.TransformerDecoderLayer(**options, dtype=torch.float64)
    if layers is None:
        golden = Golden(name, "torch.nn.TransformerDecoderLayer", options, masks)
    else:
        options |= {"num_layers": layers, "norm": "LayerNorm", "norm_eps": 1e-3}
        golden = Golden(name, "torch.nn.TransformerDecoder", options, masks, "out.layers.N: the output of layer N")
        module = nn.TransformerDecoder(module, layers, nn.LayerNorm(E, eps=1e-3, dtype=torch.float64))
        record_layers(golden, module)
    golden.parameters(module)
    record_attention_weights(golden, module)
    tgt = golden.input("tgt", golden.normal(B, Lt, E))
    memory = golden.input("memory", golden.normal(B, Lm, E))
    golden.put("in.memory_lengths", np.array(lengths))
    y = module(
        tgt, memory,
        tgt_mask=~golden.keep(".tgt", lower_triangle(Lt)),
        memory_key_padding_mask=~golden.keep(".memory_keys", padding(lengths, Lm)),
    )
    golden.backward(y=y)
    return golden


def transformer_cases():
    # Every pair of norm order, activation and padding, in four of the eight combinations.
    pre, post = {"norm_first": True}, {"norm_first": False}
    relu, gelu = {"activation": "relu", "eps": 1e-5}, {"activation": "gelu", "eps": 1e-3}
    yield encoder_layer("encoder_layer_post_norm_relu", 2, 7, 16, 4, 24, **post, **relu)
    yield encoder_layer("encoder_layer_post_norm_gelu_padding", 3, 6, 16, 2, 20, **post, **gelu, lengths=[4, 6, 2])
    yield encoder_layer("encoder_layer_pre_norm_relu_padding", 3, 6, 16, 4, 20, **pre, **relu, lengths=[6, 1, 5])
    yield encoder_layer("encoder_layer_pre_norm_gelu", 2, 9, 16, 2, 24, **pre, **gelu)
    yield encoder(
        "encoder_pre_norm", 2, 7, 16, 2, 20, 2, norm_first=True, activation="gelu", lengths=[7, 3], final_norm=True
    )
    yield encoder(
        "encoder_post_norm_no_final_norm", 2, 5, 16, 4, 20, 2, norm_first=False, activation="relu", lengths=[3, 5],
        final_norm=False,
    )
    yield decoder("decoder_layer_post_norm_relu", 2, 7, 9, 16, 4, 24, **post, **relu, lengths=[9, 5])
    yield decoder("decoder_layer_pre_norm_gelu", 3, 6, 5, 16, 2, 20, **pre, **gelu, lengths=[2, 5, 4])
    yield decoder(
        "decoder_pre_norm", 2, 6, 5, 16, 2, 20, layers=2, norm_first=True, activation="gelu", eps=1e-4, lengths=[5, 3]
    )


# ---- small layers --------------------------------------------------------------------------------------------------


def layer(name, module_name, module, options, x, notes=""):
    golden = Golden(name, module_name, options, notes=notes)
    module = golden.parameters(module)
    golden.backward(y=module(golden.input("x", x(golden))))
    return golden


def activation(name, function, module_name, options):
    golden = Golden(name, module_name, options, notes="in.x runs over [-7, 7], small values and far tails")
    grid = np.concatenate([np.linspace(-7, 7, 113), [2.0**-12, -(2.0**-12), 1e-3, -1e-3, 0.0, 10, -10, 12, -12, 20, -20,
                                                     38, -38, 100, -100]])
    golden.backward(y=function(golden.input("x", representable(grid).reshape(8, 16))))
    return golden


def small_layer_cases():
    f64 = {"dtype": torch.float64}

    def plain(golden):
        return golden.normal(2, 5, 24)

    def with_offset(golden):
        # Rows of mean 1000 and of tiny spread, where the textbook E[x^2] - E[x]^2 and a wrong eps both show.
        x = golden.normal(2, 5, 24)
        return torch.stack([x[0], torch.cat([x[1, :2] + 1000, x[1, 2:] * 2.0**-7])]).float().double()

    yield layer("layer_norm", "torch.nn.LayerNorm", nn.LayerNorm(24, **f64),
                {"normalized_shape": [24], "eps": 1e-5}, plain)
    yield layer("layer_norm_eps", "torch.nn.LayerNorm", nn.LayerNorm(24, eps=1e-3, **f64),
                {"normalized_shape": [24], "eps": 1e-3}, plain)
    yield layer("layer_norm_offset", "torch.nn.LayerNorm", nn.LayerNorm(24, eps=1e-12, **f64),
                {"normalized_shape": [24], "eps": 1e-12}, with_offset,
                "in.x[1,:2] has mean 1000, in.x[1,2:] is tiny; in.x is exact in float, not in half")
    yield layer("layer_norm_no_bias", "torch.nn.LayerNorm", nn.LayerNorm(24, bias=False, **f64),
                {"normalized_shape": [24], "eps": 1e-5, "bias": False}, plain)
    yield layer("rms_norm", "torch.nn.RMSNorm", nn.RMSNorm(24, eps=1e-5, **f64),
                {"normalized_shape": [24], "eps": 1e-5}, plain)
    yield layer("linear", "torch.nn.Linear", nn.Linear(24, 13, **f64),
                {"in_features": 24, "out_features": 13, "bias": True}, plain)
    yield layer("linear_no_bias", "torch.nn.Linear", nn.Linear(24, 17, bias=False, **f64),
                {"in_features": 24, "out_features": 17, "bias": False}, plain)

    yield activation("gelu_erf", F.gelu, "torch.nn.functional.gelu", {"approximate": "none"})
    yield activation("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), "torch.nn.functional.gelu",
                     {"approximate": "tanh"})
    yield activation("silu", F.silu, "torch.nn.functional.silu", {})
    yield activation("relu", F.relu, "torch.nn.functional.relu", {})

    embedding = Golden("embedding", "torch.nn.Embedding", {"num_embeddings": 11, "embedding_dim": 16},
                       notes="in.ids repeats some rows, whose gradients add up, and leaves others out")
    module = embedding.parameters(nn.Embedding(11, 16, **f64))
    ids = torch.tensor([[3, 0, 10, 3, 7], [5, 5, 5, 1, 0]])
    embedding.put("in.ids", ids)
    embedding.backward(y=module(ids))
    yield embedding


# ---- recurrent layers ----------------------------------------------------------------------------------------------


def recurrent(name, kind, B, L, inputs, hidden, *, layers, bidirectional, lengths=None):
    options = {"input_size": inputs, "hidden_size": hidden, "num_layers": layers, "bidirectional": bidirectional,
               "batch_first": True}
    if kind is nn.RNN:
        options["nonlinearity"] = "tanh"
    golden = Golden(
        name, f"torch.nn.{kind.__name__}", options, "in.lengths (B): packed sequences" if lengths else "none",
        "in.h_0 and out.h_n are (layers * directions, B, hidden), c_0 and c_n too (LSTM only)"
        + ("; out.y is 0 past a sequence's end, h_n and c_n are taken at its own end" if lengths else ""),
    )
    module = golden.parameters(kind(**options, dtype=torch.float64))
    x = golden.input("x", golden.normal(B, L, inputs))
    shape = (layers * (2 if bidirectional else 1), B, hidden)
    names = ("h", "c") if kind is nn.LSTM else ("h",)
    initial = [golden.input(state + "_0", golden.normal(*shape, scale=0.5)) for state in names]
    sequence = x
    if lengths:
        golden.put("in.lengths", np.array(lengths))
        sequence = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    y, final = module(sequence, tuple(initial) if kind is nn.LSTM else initial[0])
    if lengths:
        y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=L)
    states = dict(zip((state + "_n" for state in names), final if kind is nn.LSTM else (final,)))
    golden.backward(y=y, **states)
    return golden


def recurrent_cases():
    for name, kind in (("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru", nn.GRU)):
        yield recurrent(f"{name}_1_layer", kind, 2, 7, 5, 6, layers=1, bidirectional=False)
        yield recurrent(f"{name}_1_layer_packed", kind, 3, 7, 5, 6, layers=1, bidirectional=False, lengths=[4, 7, 1])
        yield recurrent(f"{name}_2_layers", kind, 2, 5, 5, 6, layers=2, bidirectional=False)
        yield recurrent(f"{name}_bidirectional", kind, 2, 6, 5, 6, layers=1, bidirectional=True)
        yield recurrent(
            f"{name}_2_layers_bidirectional_packed", kind, 3, 6, 5, 6, layers=2, bidirectional=True, lengths=[2, 6, 5]
        )


# ---- positions -----------------------------------------------------------------------------------------------------


def rotary(name, interleaved, D, width, base, positions):
    """Rotary position embedding, Su et al. 2021: pair i of the first `width` coordinates turns by the angle
    position * base^(-2i / width). Pairs are (2i, 2i + 1) if interleaved, else (i, i + width / 2)."""
    options = {"interleaved": interleaved, "rotary_dim": width, "head_dim": D, "base": base}
    golden = Golden(name, "formula in numpy: rotary position embedding", options,
                    notes="in.positions (L); coordinates from rotary_dim on are left alone")
    half = width // 2
    angles = np.outer(positions, base ** (-2.0 * np.arange(half) / width))
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = (2 * np.arange(half), 2 * np.arange(half) + 1) if interleaved else (
        np.arange(half), np.arange(half) + half)

    def turn(x, sin):
        y = x.copy()
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., second] * cos + x[..., first] * sin
        return y

    x, dout = (golden.normal(2, 2, len(positions), D).numpy() for _ in range(2))
    golden.put("in.positions", np.array(positions))
    golden.put("in.x", x)
    golden.put("out.y", turn(x, sin))
    golden.put("dout.y", dout)
    golden.put("grad.in.x", turn(dout, -sin))
    return golden


def sinusoidal(name, length, width, base, layout, spacing):
    """Sinusoidal positions, Vaswani et al. 2017, section 3.5. An odd width has one sine more than cosines."""
    options = {"length": length, "width": width, "base": base, "layout": layout, "spacing": spacing}
    golden = Golden(name, "formula in numpy: sinusoidal position table", options,
                    notes="layout interleaved: column 2i is sin, 2i + 1 is cos; halves: all sines, then all cosines; "
                          "frequency i is base^(-2i / width), or base^(-i / (width / 2 - 1)) with spacing endpoint")
    pairs = np.arange((width + 1) // 2)
    exponent = pairs / (width // 2 - 1) if spacing == "endpoint" else 2.0 * pairs / width
    angles = np.outer(np.arange(length), float(base) ** -exponent)
    sines, cosines = np.sin(angles), np.cos(angles[:, : width // 2])
    if layout == "interleaved":
        table = np.empty((length, width))
        table[:, 0::2], table[:, 1::2] = sines, cosines
    else:
        table = np.concatenate([sines, cosines], axis=1)
    golden.put("out.table", table)
    return golden


def position_cases():
    near, far = [0, 1, 2, 3, 4, 5, 6], [0, 1, 7, 100, 4095, 100000]
    yield rotary("rotary_half_split", False, 16, 16, 10000.0, near)
    yield rotary("rotary_half_split_far", False, 16, 16, 500000.0, far)
    yield rotary("rotary_half_split_partial", False, 12, 8, 10000.0, near)
    yield rotary("rotary_interleaved", True, 16, 16, 10000.0, near)
    yield rotary("rotary_interleaved_far", True, 16, 16, 500000.0, far)
    yield rotary("rotary_interleaved_partial", True, 12, 6, 10000.0, near)
    yield sinusoidal("sinusoidal_even", 20, 16, 10000, "interleaved", "standard")
    yield sinusoidal("sinusoidal_odd", 20, 29, 10000, "interleaved", "standard")
    yield sinusoidal("sinusoidal_base", 12, 10, 100, "interleaved", "standard")
    yield sinusoidal("sinusoidal_halves", 20, 16, 10000, "halves", "standard")
    yield sinusoidal("sinusoidal_halves_endpoint", 20, 16, 10000, "halves", "endpoint")


# ---- training ------------------------------------------------------------------------------------------------------

TEXT = (
    "it was a bright cold day in april and the clocks were striking ten. "
    "the wind ran along the street and the street ran down to the sea. "
    "nobody on the beach had a watch, so nobody knew that the day was new."
)
STEPS, BATCH, CONTEXT, WIDTH = 10, 3, 10, 16


class CharacterModel(nn.Module):
    """A causal Pre-LN transformer that predicts the next character."""

    def __init__(self, vocabulary):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 20, 0.0, "gelu", batch_first=True, norm_first=True)
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position.weight
        return self.head(self.encoder(x, mask=~lower_triangle(CONTEXT)))


def cross_entropy(logits, tokens):
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def training_cases():
    alphabet = sorted(set(TEXT))
    options = {"vocabulary": len(alphabet), "context": CONTEXT, "width": WIDTH, "nhead": 2, "dim_feedforward": 20,
               "activation": "gelu", "num_layers": 2, "norm_first": True, "layer_norm_eps": 1e-5, "dropout": 0.0,
               "alphabet": "".join(alphabet)}
    model_notes = (
        "logits = head(encoder(embedding[tokens] + position)), causal; loss: mean cross entropy of the next token over "
        "batch and context"
    )
    start = Golden("training_start", "CharacterModel in generate.py", options, "causal",
                   f"{model_notes}. tokens (steps, B, context + 1): inputs are [..., :-1], targets [..., 1:]. "
                   "param.*: initial parameters of all training_* cases; logits, loss and grad.param.* are those of "
                   "step 0")
    text = np.array([alphabet.index(character) for character in TEXT])
    offsets = start.rng.integers(0, len(text) - CONTEXT, (STEPS, BATCH))
    batches = torch.as_tensor(text[offsets[..., None] + np.arange(CONTEXT + 1)])
    start.put("in.tokens", batches)
    model = start.parameters(CharacterModel(len(alphabet)).double())
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    logits = model(batches[0, :, :-1])
    loss = cross_entropy(logits, batches[0])
    loss.backward()
    start.put("out.logits", logits)
    start.put("out.loss", loss)
    for name, parameter in model.named_parameters():
        start.put("grad.param." + name, parameter.grad)
    yield start

    # The gradient of a key bias is zero up to rounding. Adam's L2 decay and AdamW's larger eps keep the optimizer from
    # blowing that rounding up to a visible step.
    optimizers = {
        "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "nesterov": False,
                                  "weight_decay": 0.01}),
        "adam": (torch.optim.Adam, {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.01}),
        "adamw": (torch.optim.AdamW, {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-5, "weight_decay": 0.1}),
    }

    def train(optimizer, settings, dtype):
        model = CharacterModel(len(alphabet)).to(dtype)
        model.load_state_dict(initial)
        optimizer = optimizer(model.parameters(), **settings, foreach=False)
        losses = []
        for tokens in batches:
            optimizer.zero_grad()
            loss = cross_entropy(model(tokens[:, :-1]), tokens)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return model, losses

    for name, (optimizer, settings) in optimizers.items():
        golden = Golden(f"training_{name}", f"torch.optim.{optimizer.__name__}", settings, "causal",
                        "parameters and tokens to start from are in training_start.safetensors. out.loss[i] is the "
                        "loss of step i before its update; out.loss_float32 the same trained in float32; final.* are "
                        "the parameters after the last step")
        model, losses = train(optimizer, settings, torch.float64)
        _, losses32 = train(optimizer, settings, torch.float32)
        assert losses[-1] < 0.9 * losses[0], f"{name} does not learn: {losses}"
        golden.put("out.loss", np.array(losses))
        golden.put("out.loss_float32", np.array(losses32, np.float32))
        for parameter, value in model.state_dict().items():
            golden.put("final." + parameter, value)
        yield golden


def mlp_training(name, optimizer, settings, smoothing=0.0):
    """Ten steps of linear2(gelu(linear1(x))) on random classes, some of which are ignored."""
    options = {"linear1": [8, 12], "activation": "gelu", "linear2": [12, 5], "label_smoothing": smoothing,
               "ignore_index": -100, "optimizer": f"torch.optim.{optimizer.__name__}"} | settings
    golden = Golden(f"mlp_training_{name}", "Sequential(Linear, GELU, Linear) in generate.py", options,
                    notes="param.*: initial parameters; in.x (steps, B, 8), in.targets (steps, B); out.logits, "
                          "grad.out.logits and grad.param.* are those of step 0; out.loss (steps) before each update; "
                          "final.*: the parameters after the last step")
    model = nn.ModuleDict({"linear1": nn.Linear(8, 12), "linear2": nn.Linear(12, 5)}).double()
    golden.parameters(model)
    golden.leaves.clear()
    x = golden.normal(STEPS, 6, 8)
    targets = torch.as_tensor(golden.rng.integers(0, 5, (STEPS, 6)))
    targets[::2, 3] = -100
    golden.put("in.x", x)
    golden.put("in.targets", targets)
    trained = optimizer(model.parameters(), **settings, foreach=False)
    losses = []
    for step in range(STEPS):
        trained.zero_grad()
        logits = model["linear2"](F.gelu(model["linear1"](x[step])))
        logits.retain_grad()
        loss = F.cross_entropy(logits, targets[step], label_smoothing=smoothing)
        loss.backward()
        if step == 0:
            golden.put("out.logits", logits)
            golden.put("grad.out.logits", logits.grad)
            for parameter_name, parameter in model.named_parameters():
                golden.put("grad.param." + parameter_name, parameter.grad.clone())
        trained.step()
        losses.append(loss.item())
    golden.put("out.loss", np.array(losses))
    for parameter_name, value in model.state_dict().items():
        golden.put("final." + parameter_name, value)
    return golden


def mlp_training_cases():
    adam = {"lr": 0.02, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.03}
    yield mlp_training("sgd", torch.optim.SGD, {"lr": 0.2})
    yield mlp_training("sgd_momentum", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02})
    yield mlp_training("sgd_nesterov", torch.optim.SGD, {"lr": 0.1, "momentum": 0.8, "nesterov": True}, smoothing=0.1)
    yield mlp_training("adam", torch.optim.Adam, adam, smoothing=0.2)
    yield mlp_training("adamw", torch.optim.AdamW, adam)


# ---- main ----------------------------------------------------------------------------------------------------------


def all_cases():
    for family in (
        sdpa_cases, multi_head_attention_cases, transformer_cases, small_layer_cases, recurrent_cases, position_cases,
        training_cases, mlp_training_cases,
    ):
        yield from family()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the stored files instead of writing them")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent / "torch")
    arguments = parser.parse_args()

    # One thread and no vendor-chosen kernels: the order of every sum, and so every last bit, is the same each time.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.mkldnn.enabled = False

    made = {golden.name + ".safetensors": golden.content() for golden in all_cases()}
    stored = {path.name: path for path in arguments.output.glob("*.safetensors")}
    if arguments.check:
        faults = [f"{name}: is in one place only" for name in sorted(made.keys() ^ stored.keys())]
        for name in sorted(made.keys() & stored.keys()):
            faults += [f"{name}: {fault}" for fault in differences(made[name], stored[name].read_bytes())]
        print("\n".join(faults) if faults else f"{len(made)} files hold what PyTorch {TORCH_VERSION} gives")
        return 1 if faults else 0

    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in stored.keys() - made.keys():
        stored[name].unlink()
    for name, content in made.items():
        (arguments.output / name).write_bytes(content)
    print(f"{len(made)} files, {sum(map(len, made.values()))} bytes in {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
