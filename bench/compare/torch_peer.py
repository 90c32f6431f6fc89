# SPDX-License-Identifier: MIT
"""PyTorch: scaled_dot_product_attention, its math backend, compiled formulas, flex_attention, torch.nn's modules."""

import contextlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import peer


def compiled(function):
    """Weights become constants, which the compiler may lay out as its matrix products read them."""
    torch._inductor.config.freezing = True
    return torch.compile(function, dynamic=False)


def variant(function, *inputs, context=torch.inference_mode):
    def call():
        with context():
            return function(*inputs)

    return call, lambda output: output.float().numpy()


# --- Attention --------------------------------------------------------------------------------------------------------


def mask_predicate(saved):
    """Whether query i of sample b sees key j, as a function that works on tensors too; None when all see all."""
    kind = saved.metadata["mask"]
    if kind == "causal":
        return lambda b, h, i, j: j <= i
    if kind == "window":
        width = int(saved.metadata["window"])
        return lambda b, h, i, j: (j <= i) & (i < j + width)
    if kind == "padding":
        lengths = torch.tensor(saved.integers("lengths"))
        return lambda b, h, i, j: j < lengths[b]
    return None


def attention(saved):
    k, v = saved["k"], saved["v"]
    q = saved["q"].to(k.dtype)
    B, H, Lq, D = q.shape
    G, Lk = k.shape[1:3]
    causal = saved.metadata["mask"] == "causal"
    grouped = G != H
    predicate = mask_predicate(saved)
    visible = None
    if predicate:
        b, i, j = torch.arange(B)[:, None, None, None], torch.arange(Lq)[:, None], torch.arange(Lk)
        visible = predicate(b, 0, i, j)

    def sdpa(q, k, v):
        mask = None if causal else visible
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped)

    def formula(q, k, v):
        if grouped:
            k, v = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
        scores = q @ k.transpose(-1, -2) * D**-0.5
        if visible is not None:
            scores = scores.masked_fill(~visible, float("-inf"))
        return scores.softmax(-1) @ v

    @contextlib.contextmanager
    def math_only():
        with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH):
            yield

    yield "sdpa", lambda: variant(sdpa, q, k, v)
    yield "math", lambda: variant(sdpa, q, k, v, context=math_only)
    yield "compile", lambda: variant(compiled(formula), q, k, v, context=torch.no_grad)
    if predicate:
        samples = B if saved.metadata["mask"] == "padding" else None

        def flex():
            blocks = create_block_mask(predicate, samples, None, Lq, Lk, device="cpu")
            function = compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks, enable_gqa=grouped))
            return variant(function, q, k, v, context=torch.no_grad)

        yield "flex", flex


def attention_step(saved):
    """Forward and backward; the output is dq, dk and dv along the first dimension."""
    inputs = [saved[name].requires_grad_() for name in "qkv"]
    dout = saved["dout"]
    causal = saved.metadata["mask"] == "causal"

    def sdpa(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def formula(q, k, v):
        L, D = q.shape[-2:]
        scores = q @ k.transpose(-1, -2) * D**-0.5
        if causal:
            scores = scores.masked_fill(~torch.ones(L, L, dtype=torch.bool).tril(), float("-inf"))
        return scores.softmax(-1) @ v

    def variant(function):
        return lambda: torch.autograd.grad(function(*inputs), inputs, dout), lambda grads: torch.cat(grads).numpy()

    yield "sdpa", lambda: variant(sdpa)
    yield "math", lambda: variant(formula)

    def compiled_formula():
        torch._inductor.config.freezing = False  # for inference only
        return variant(torch.compile(formula, dynamic=False))

    yield "compile", compiled_formula


# --- Layers -----------------------------------------------------------------------------------------------------------


class SelfAttention(torch.nn.Module):
    """Parameters as in torch.nn.MultiheadAttention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.in_proj_weight = torch.nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = torch.nn.Parameter(torch.empty(3 * width))
        self.out_proj = torch.nn.Linear(width, width)

    def forward(self, x, visible=None, rotate=None):
        """Causal where queries and keys are rotated."""
        B, L, E = x.shape
        qkv = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = qkv.view(B, L, 3, self.heads, E // self.heads).permute(2, 0, 3, 1, 4)
        if rotate:
            q, k = rotate(q), rotate(k)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=rotate is not None)
        return self.out_proj(attended.transpose(1, 2).reshape(B, L, E))


class EncoderLayer(torch.nn.Module):
    """Post-LN; parameters as in torch.nn.TransformerEncoderLayer."""

    def __init__(self, width, heads, hidden, eps=1e-5):
        super().__init__()
        self.self_attn = SelfAttention(width, heads)
        self.linear1, self.linear2 = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)
        self.norm1, self.norm2 = torch.nn.LayerNorm(width, eps), torch.nn.LayerNorm(width, eps)

    def forward(self, x, visible=None):
        x = self.norm1(x + self.self_attn(x, visible))
        return self.norm2(x + self.linear2(F.gelu(self.linear1(x))))


def parameters(saved):
    return {name[len("param.") :]: saved[name] for name in saved.names if name.startswith("param.")}


def layer(saved, own, library):
    """own: a module of the operators above; library: torch.nn's, called so that it takes its fast path."""
    x = saved["x"]
    for module in [own] + [library] * (library is not None):
        module.load_state_dict(parameters(saved))
        module.eval()
    yield "eager", lambda: variant(own, x)
    yield "compile", lambda: variant(compiled(own), x, context=torch.no_grad)
    if isinstance(library, torch.nn.MultiheadAttention):
        yield "module", lambda: variant(lambda x: library(x, x, x, need_weights=False)[0], x)
    elif library is not None:
        yield "module", lambda: variant(library, x)


def multi_head_attention(saved):
    width, heads = saved["x"].shape[-1], int(saved.metadata["heads"])
    yield from layer(saved, SelfAttention(width, heads), torch.nn.MultiheadAttention(width, heads, batch_first=True))


def encoder_layer(saved):
    width, heads = saved["x"].shape[-1], int(saved.metadata["heads"])
    hidden = saved["param.linear1.weight"].shape[0]
    library = torch.nn.TransformerEncoderLayer(width, heads, hidden, activation="gelu", batch_first=True)
    yield from layer(saved, EncoderLayer(width, heads, hidden), library)


def linear(saved):
    out, width = saved["param.weight"].shape
    yield from layer(saved, torch.nn.Linear(width, out), None)


def lstm_module(saved):
    hidden, width = saved["param.weight_hh_l0"].shape[1], saved["x"].shape[-1]
    module = torch.nn.LSTM(width, hidden, batch_first=True)
    module.load_state_dict(parameters(saved))
    return module


def lstm(saved):
    module = lstm_module(saved)
    yield "module", lambda: variant(lambda x: module(x)[0], saved["x"])


def lstm_step(saved):
    """Forward and backward; the output is dx, the gradients of the parameters are formed too."""
    module, x, dy = lstm_module(saved), saved["x"].requires_grad_(), saved["dy"]
    inputs = [x, *module.parameters()]
    yield "module", lambda: (lambda: torch.autograd.grad(module(x)[0], inputs, dy), lambda grads: grads[0].numpy())


# --- A step of training -----------------------------------------------------------------------------------------------


class PreNormLayer(EncoderLayer):
    def forward(self, x, rotate):
        x = x + self.self_attn(self.norm1(x), rotate=rotate)
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class CharLm(torch.nn.Module):
    """A small GPT with rotary positions; parameters as in examples/train_char_lm."""

    def __init__(self, state, heads, length):
        super().__init__()
        vocabulary, width = state["embedding.weight"].shape
        hidden = state["blocks.layers.0.linear1.bias"].shape[0]
        depth = sum(name.endswith("linear1.bias") for name in state)
        layers = torch.nn.ModuleList(PreNormLayer(width, heads, hidden) for _ in range(depth))
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.blocks = torch.nn.ModuleDict({"layers": layers, "norm": torch.nn.LayerNorm(width)})
        self.head = torch.nn.Linear(width, vocabulary)
        self.load_state_dict(state)
        half = width // heads // 2
        angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rotate(self, x):
        first, second = x.chunk(2, -1)
        return torch.cat([first * self.cos - second * self.sin, second * self.cos + first * self.sin], -1)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.blocks["layers"]:
            x = layer(x, self.rotate)
        return self.head(self.blocks["norm"](x))


def char_lm_step(saved):
    """The output is the logits after a step."""
    ids, targets = saved["ids"].long(), saved["targets"].long()

    def variant(compiles):
        model = CharLm(parameters(saved), int(saved.metadata["heads"]), ids.shape[1])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

        def loss_of(ids, targets):
            return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())

        if compiles:
            torch._inductor.config.freezing = False  # for inference only
            loss_of = torch.compile(loss_of, dynamic=False)

        def call():
            loss = loss_of(ids, targets)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        def logits(_):
            with torch.inference_mode():
                return model(ids).numpy()

        return call, logits

    yield "eager", lambda: variant(False)
    yield "compile", lambda: variant(True)


# --- MiniLM -----------------------------------------------------------------------------------------------------------


class MiniLm(torch.nn.Module):
    def __init__(self, weights, heads):
        super().__init__()
        embeddings = "embeddings."
        self.words = weights[embeddings + "word_embeddings.weight"]
        self.positions = (
            weights[embeddings + "position_embeddings.weight"] + weights[embeddings + "token_type_embeddings.weight"][0]
        )
        width = self.words.shape[1]
        self.norm = torch.nn.LayerNorm(width, 1e-12)
        self.norm.load_state_dict({n: weights[f"{embeddings}LayerNorm.{n}"] for n in ("weight", "bias")})
        self.layers = torch.nn.ModuleList()
        while (prefix := f"encoder.layer.{len(self.layers)}.") + "output.dense.weight" in weights:
            names = {
                "self_attn.out_proj": "attention.output.dense",
                "norm1": "attention.output.LayerNorm",
                "linear1": "intermediate.dense",
                "linear2": "output.dense",
                "norm2": "output.LayerNorm",
            }
            state = {
                f"{ours}.{n}": weights[f"{prefix}{name}.{n}"]
                for ours, name in names.items()
                for n in ("weight", "bias")
            }
            for n in ("weight", "bias"):
                parts = [weights[f"{prefix}attention.self.{part}.{n}"] for part in ("query", "key", "value")]
                state[f"self_attn.in_proj_{n}"] = torch.cat(parts)
            layer = EncoderLayer(width, heads, state["linear1.bias"].shape[0], eps=1e-12)
            layer.load_state_dict(state)
            self.layers.append(layer)
        self.eval()

    def forward(self, ids, lengths=None):
        """ids (B, L), lengths (B) or None where nothing is padding."""
        x = self.norm(F.embedding(ids, self.words) + self.positions[: ids.shape[1]])
        keep = None if lengths is None else torch.arange(ids.shape[1]) < lengths[:, None]
        for layer in self.layers:
            x = layer(x, None if keep is None else keep[:, None, None, :])
        if keep is None:
            mean = x.mean(1)
        else:
            mean = (x * keep[:, :, None]).sum(1) / lengths[:, None]
        return F.normalize(mean, dim=-1)


def minilm(saved):
    model = MiniLm(load_file(saved.metadata["model"]), int(saved.metadata["heads"]))
    texts = [torch.tensor(ids) for ids in saved.texts()]
    lengths = torch.tensor([len(text) for text in texts])
    padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    if (lengths == lengths[0]).all():
        inputs = (padded,)
    else:
        inputs = (padded, lengths)
        yield "one-by-one", lambda: variant(lambda: torch.cat([model(text[None]) for text in texts]))
    yield "eager", lambda: variant(model, *inputs)
    yield "compile", lambda: variant(compiled(model), *inputs, context=torch.no_grad)


# --- A language model -------------------------------------------------------------------------------------------------


class Llama:
    """One step of a model of Llama's kind after `past` tokens, whose keys and values are kept."""

    def __init__(self, saved, dtype):
        self.weights = {n.removeprefix("param."): saved[n].to(dtype) for n in saved.names if n.startswith("param.")}
        self.heads, self.kv_heads = int(saved.metadata["heads"]), int(saved.metadata["kv_heads"])
        self.width = self.weights["norm.weight"].shape[0]
        self.head_dim = self.width // self.heads
        self.past = len(saved.integers("past"))
        self.length = self.past + len(saved.integers("ids"))
        self.layers = sum(n.endswith("norm1.weight") for n in self.weights)
        pairs = torch.arange(self.head_dim // 2, dtype=torch.float64)
        angles = torch.arange(self.length)[:, None] * float(saved.metadata["theta"]) ** (-2 * pairs / self.head_dim)
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        size = (self.layers, 2, 1, self.kv_heads, self.length, self.head_dim)
        self.cache = torch.zeros(size, dtype=dtype)

    def turn(self, x, first):
        cos, sin = self.cos[first : first + x.shape[2]], self.sin[first : first + x.shape[2]]
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

    def norm(self, x, name):
        return F.rms_norm(x, (self.width,), self.weights[name], 1e-5)

    def __call__(self, ids, first):
        w, count = self.weights, ids.shape[1]
        x = F.embedding(ids, w["tokens.weight"])
        sizes = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        for i in range(self.layers):
            layer = f"layers.{i}."
            qkv = F.linear(self.norm(x, layer + "norm1.weight"), w[layer + "self_attn.in_proj_weight"]).split(sizes, -1)
            q, k, v = (part.view(1, count, -1, self.head_dim).transpose(1, 2) for part in qkv)
            keys, values = self.cache[i]
            keys[:, :, first : first + count] = self.turn(k, first)
            values[:, :, first : first + count] = v
            y = F.scaled_dot_product_attention(
                self.turn(q, first), keys[:, :, : first + count], values[:, :, : first + count], is_causal=count > 1,
                enable_gqa=True
            )
            x = x + F.linear(y.transpose(1, 2).flatten(2), w[layer + "self_attn.out_proj.weight"])
            h = self.norm(x, layer + "norm2.weight")
            h = F.silu(F.linear(h, w[layer + "gate.weight"])) * F.linear(h, w[layer + "linear1.weight"])
            x = x + F.linear(h, w[layer + "linear2.weight"])
        return F.linear(self.norm(x[:, -1], "norm.weight"), w["tokens.weight"])[0]


def llama_step(saved):
    if "weights" not in saved.metadata:
        return  # weights in few bits
    model = Llama(saved, getattr(torch, saved.metadata["weights"]))
    past, ids = (torch.tensor([saved.integers(name)]) for name in ("past", "ids"))
    with torch.inference_mode():
        if model.past:
            model(past, 0)
    yield "eager", lambda: variant(lambda: model(ids, model.past))


def made_anew(make):
    """Without what was compiled for the workload before."""

    def variants(saved, threads):
        torch._dynamo.reset()
        torch.set_num_threads(threads)
        yield from make(saved)

    return variants


if __name__ == "__main__":
    kinds = (attention, attention_step, multi_head_attention, encoder_layer, linear, lstm, lstm_step, char_lm_step)
    makers = {kind.__name__: made_anew(kind) for kind in (*kinds, minilm, llama_step)}
    about = f"PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    peer.serve(about, "pt", makers, lambda output: output.float().numpy())
