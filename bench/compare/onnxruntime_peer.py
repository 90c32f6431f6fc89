# SPDX-License-Identifier: MIT
"""ONNX Runtime: its fused attention operators, the standard one, and graphs of fused operators for whole layers."""

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

import peer

ONNX_TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.bool_): TensorProto.BOOL,
}


class Graph:
    """Nodes one after the other; tensors are known by name."""

    def __init__(self):
        self.nodes, self.initializers, self.inputs = [], [], []

    def input(self, name, array, shape=None):
        shape = array.shape if shape is None else shape
        self.inputs.append(helper.make_tensor_value_info(name, ONNX_TYPES[array.dtype], shape))
        return name

    def constant(self, array):
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, operator, *inputs, outputs=1, domain="com.microsoft", **attributes):
        names = [f"value_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def onnx(self, operator, *inputs, **attributes):
        return self.add(operator, *inputs, domain="", **attributes)

    def session(self, outputs, threads):
        """outputs: names of a type, with their numbers of dimensions."""
        infos = [helper.make_tensor_value_info(name, type, [None] * rank) for name, type, rank in outputs]
        graph = helper.make_graph(self.nodes, "graph", self.inputs, infos, self.initializers)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Between two calls it is another process's turn.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def bound_call(session, feeds, in_place=None):
    """A call that copies nothing; in_place: outputs that are written over an input."""
    binding = session.io_binding()
    values = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for name, array in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        if in_place and output.name in in_place:
            binding.bind_ortvalue_output(output.name, values[in_place[output.name]])
        else:
            binding.bind_output(output.name, "cpu")

    def call():
        session.run_with_iobinding(binding)
        return binding

    return call, lambda binding: binding.get_outputs()[0].numpy()


# --- Attention --------------------------------------------------------------------------------------------------------


def merge_heads(x):
    B, H, L, D = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, L, H * D)


def split_heads(heads):
    return lambda y: y.reshape(*y.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def attention(saved, threads):
    if saved.dtype("k") == "BF16":
        return  # numpy has no such type, and the CPU operators take none
    k, v = saved["k"], saved["v"]
    q = saved["q"].astype(k.dtype)
    B, H, Lq, D = q.shape
    G, Lk = k.shape[1:3]
    mask, type = saved.metadata["mask"], ONNX_TYPES[k.dtype]
    lengths = np.array(saved.integers("lengths"), np.int32) if mask == "padding" else None
    to_heads = split_heads(H)

    def multi_head():
        graph, feeds = Graph(), {"q": merge_heads(q), "k": merge_heads(k), "v": merge_heads(v)}
        inputs = [graph.input(name, array) for name, array in feeds.items()]
        if lengths is not None:
            feeds["lengths"] = lengths
            inputs += ["", graph.input("lengths", lengths)]
        out = graph.add("MultiHeadAttention", *inputs, num_heads=H, unidirectional=int(mask == "causal"))
        call, get = bound_call(graph.session([(out, type, 3)], threads), feeds)
        return call, lambda outputs: to_heads(get(outputs))

    def standard():
        graph, feeds = Graph(), {"q": q, "k": k, "v": v}
        i, j = np.arange(Lq)[:, None], np.arange(Lk)
        if mask == "padding":
            feeds["visible"] = np.broadcast_to(j < lengths[:, None, None, None], (B, 1, Lq, Lk))
        if mask == "window":
            feeds["visible"] = (j <= i) & (i < j + int(saved.metadata["window"]))
        inputs = [graph.input(name, array) for name, array in feeds.items()]
        out = graph.onnx("Attention", *inputs, is_causal=int(mask == "causal"))
        return bound_call(graph.session([(out, type, 4)], threads), feeds)

    def grouped():
        """A step of generation when there is one query, with the last key as the new one; else a causal prompt."""
        step = Lq == 1
        new, past = slice(Lk - Lq, Lk), slice(0, Lk if step else 0)
        feeds = {
            "q": merge_heads(q),
            "k": merge_heads(k[:, :, new]),
            "v": merge_heads(v[:, :, new]),
            "past_k": k[:, :, past],
            "past_v": v[:, :, past],
            "last": np.full(B, Lk - 1, np.int32),
            "total": np.array([Lk], np.int32),
        }
        graph = Graph()
        inputs = [graph.input(name, array) for name, array in feeds.items()]
        window = int(saved.metadata.get("window", -1))
        names = graph.add(
            "GroupQueryAttention", *inputs, outputs=3, num_heads=H, kv_num_heads=G, local_window_size=window
        )
        session = graph.session([(names[0], type, 3), (names[1], type, 4), (names[2], type, 4)], threads)
        in_place = {names[1]: "past_k", names[2]: "past_v"} if step else None
        call, get = bound_call(session, feeds, in_place)
        return call, lambda outputs: to_heads(get(outputs))

    if G == H and mask != "window":
        yield "MultiHeadAttention", multi_head
    yield "Attention", standard
    if Lq == 1 or mask in ("causal", "window"):
        yield "GroupQueryAttention", grouped


# --- Layers -----------------------------------------------------------------------------------------------------------


class Layers:
    """Layers with the parameters of one prefix, whose names are PyTorch's; weights are (out, in)."""

    def __init__(self, graph, parameters, heads, fused, eps=1e-5):
        self.graph, self.parameters, self.heads, self.fused, self.eps = graph, parameters, heads, fused, eps

    def constant(self, name):
        return self.graph.constant(self.parameters[name])

    def product(self, x, weight):
        return self.graph.onnx("MatMul", x, self.graph.constant(weight.T))

    def attend(self, x, prefix, lengths=""):
        """Attention without the bias of its output projection."""
        weight, bias = self.parameters[prefix + "in_proj_weight"], self.parameters[prefix + "in_proj_bias"]
        bias = self.graph.constant(bias)
        if self.fused:  # one operator for projections and attention
            inputs = [x, self.graph.constant(weight.T), bias, lengths]
            attended = self.graph.add("Attention", *inputs, num_heads=self.heads)
        else:
            q, k, v = (self.product(x, part) for part in np.split(weight, 3))
            attended = self.graph.add("MultiHeadAttention", q, k, v, bias, lengths, num_heads=self.heads)
        return self.product(attended, self.parameters[prefix + "out_proj.weight"])

    def norm_of_sum(self, x, skip, prefix, bias):
        scale, shift = self.constant(prefix + "weight"), self.constant(prefix + "bias")
        return self.graph.add("SkipLayerNormalization", x, skip, scale, shift, bias, epsilon=self.eps)

    def encoder_layer(self, x, prefix="", lengths=""):
        attended = self.attend(x, prefix + "self_attn.", lengths)
        x = self.norm_of_sum(attended, x, prefix + "norm1.", self.constant(prefix + "self_attn.out_proj.bias"))
        hidden = self.product(x, self.parameters[prefix + "linear1.weight"])
        hidden = self.graph.add("BiasGelu", hidden, self.constant(prefix + "linear1.bias"))
        y = self.product(hidden, self.parameters[prefix + "linear2.weight"])
        return self.norm_of_sum(y, x, prefix + "norm2.", self.constant(prefix + "linear2.bias"))


def layer(saved, threads, fused, build):
    x = saved["x"]
    graph = Graph()
    parameters = {name[len("param.") :]: saved[name] for name in saved.names if name.startswith("param.")}
    layers = Layers(graph, parameters, int(saved.metadata.get("heads", 0)), fused)
    out = build(graph, layers, graph.input("x", x))
    return bound_call(graph.session([(out, TensorProto.FLOAT, 3)], threads), {"x": x})


def multi_head_attention(saved, threads):
    def build(graph, layers, x):
        return graph.onnx("Add", layers.attend(x, ""), layers.constant("out_proj.bias"))

    yield "Attention", lambda: layer(saved, threads, True, build)
    yield "MultiHeadAttention", lambda: layer(saved, threads, False, build)


def encoder_layer(saved, threads):
    def build(graph, layers, x):
        return layers.encoder_layer(x)

    yield "Attention", lambda: layer(saved, threads, True, build)
    yield "MultiHeadAttention", lambda: layer(saved, threads, False, build)


def linear(saved, threads):
    def build(graph, layers, x):
        return graph.onnx("Add", layers.product(x, layers.parameters["weight"]), layers.constant("bias"))

    yield "MatMul", lambda: layer(saved, threads, False, build)


def lstm(saved, threads):
    """The operator takes and gives (L, B, E), and the gates in another order."""

    def weights(*names):
        gates = [np.split(saved[f"param.{name}_l0"], 4) for name in names]
        return np.concatenate([of_one[gate] for of_one in gates for gate in (0, 3, 1, 2)])[None]

    def operator():
        graph, x = Graph(), saved["x"].transpose(1, 0, 2)
        arrays = weights("weight_ih"), weights("weight_hh"), weights("bias_ih", "bias_hh")
        constants = [graph.constant(array) for array in arrays]
        y = graph.onnx("LSTM", graph.input("x", x), *constants, hidden_size=arrays[1].shape[-1])
        call, get = bound_call(graph.session([(y, TensorProto.FLOAT, 4)], threads), {"x": x})
        return call, lambda outputs: get(outputs)[:, 0].transpose(1, 0, 2)

    yield "LSTM", operator


# --- MiniLM -----------------------------------------------------------------------------------------------------------


def minilm_parameters(weights):
    """Those of the encoder under PyTorch's names, one prefix for each layer."""
    names = {
        "attention.output.dense": "self_attn.out_proj",
        "attention.output.LayerNorm": "norm1",
        "intermediate.dense": "linear1",
        "output.dense": "linear2",
        "output.LayerNorm": "norm2",
    }
    parameters, layers = {}, 0
    while (prefix := f"encoder.layer.{layers}.") + "output.dense.weight" in weights:
        for n in ("weight", "bias"):
            for name, ours in names.items():
                parameters[f"{layers}.{ours}.{n}"] = weights[f"{prefix}{name}.{n}"]
            parts = [weights[f"{prefix}attention.self.{part}.{n}"] for part in ("query", "key", "value")]
            parameters[f"{layers}.self_attn.in_proj_{n}"] = np.concatenate(parts)
        layers += 1
    return parameters, layers


def minilm_session(saved, threads, fused, has_padding):
    weights = load_file(saved.metadata["model"])
    parameters, count = minilm_parameters(weights)
    graph = Graph()
    layers = Layers(graph, parameters, int(saved.metadata["heads"]), fused, eps=1e-12)
    ids = graph.input("ids", np.zeros(0, np.int64), ["B", "L"])
    share = graph.input("share", np.zeros(0, np.float32), ["B", 1, "L"])
    lengths = graph.input("lengths", np.zeros(0, np.int32), ["B"]) if has_padding else ""
    words, positions, types, scale, shift = (
        weights["embeddings." + name]
        for name in (
            "word_embeddings.weight",
            "position_embeddings.weight",
            "token_type_embeddings.weight",
            "LayerNorm.weight",
            "LayerNorm.bias",
        )
    )
    length = graph.onnx("Shape", ids, start=1, end=2)
    zero = graph.constant(np.zeros(1, np.int64))
    places = graph.onnx("Slice", graph.constant(positions + types[0]), zero, length, zero)
    x = graph.onnx("Add", graph.onnx("Gather", graph.constant(words), ids), places)
    x = graph.onnx("LayerNormalization", x, graph.constant(scale), graph.constant(shift), epsilon=1e-12)
    for i in range(count):
        x = layers.encoder_layer(x, f"{i}.", lengths)
    mean = graph.onnx("MatMul", share, x)  # (B, 1, E)
    mean = graph.onnx("Squeeze", mean, graph.constant(np.ones(1, np.int64)))
    out = graph.onnx("LpNormalization", mean, axis=-1, p=2)
    return graph.session([(out, TensorProto.FLOAT, 2)], threads)


def minilm(saved, threads):
    texts = saved.texts()
    lengths = np.array([len(text) for text in texts], np.int32)
    is_ragged = bool((lengths != lengths[0]).any())

    def feeds(texts, has_padding):
        lengths = np.array([len(text) for text in texts], np.int32)
        longest = int(lengths.max())
        ids = np.zeros((len(texts), longest), np.int64)
        for row, text in zip(ids, texts):
            row[: len(text)] = text
        # The mean over a text is a product with 1/length for each of its tokens.
        share = (np.arange(longest) < lengths[:, None, None]) / lengths[:, None, None]
        arrays = {"ids": ids, "share": share.astype(np.float32)}
        return arrays | {"lengths": lengths} if has_padding else arrays

    def batch(fused):
        session = minilm_session(saved, threads, fused, has_padding=is_ragged)
        return bound_call(session, feeds(texts, has_padding=is_ragged))

    def one_by_one():
        session = minilm_session(saved, threads, fused=True, has_padding=False)
        calls = [bound_call(session, feeds([text], has_padding=False)) for text in texts]
        return lambda: [call() for call, _ in calls], lambda outputs: np.concatenate(
            [get(output) for (_, get), output in zip(calls, outputs)]
        )

    yield "Attention", lambda: batch(True)
    yield "MultiHeadAttention", lambda: batch(False)
    if is_ragged:
        yield "one-by-one", one_by_one


if __name__ == "__main__":
    makers = {f.__name__: f for f in (attention, multi_head_attention, encoder_layer, linear, lstm, minilm)}
    about = f"ONNX Runtime {ort.__version__}, whatever this processor has"
    peer.serve(about, "np", makers, np.asarray)
