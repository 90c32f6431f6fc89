# SPDX-License-Identifier: MIT
"""llama.cpp, by its Python binding: the same GGUF file, whose weights it multiplies with activations of 8 bits."""


import llama_cpp
import numpy as np

import peer


def llama_step(saved, threads):
    if saved.metadata.get("weights"):
        return  # its weights are those of the file
    past, ids = saved.integers("past"), saved.integers("ids")
    model = llama_cpp.Llama(
        saved.metadata["model"], n_ctx=len(past) + len(ids) + 8, n_batch=512, n_ubatch=512, n_threads=threads,
        n_threads_batch=threads, verbose=False
    )
    if past:
        model.eval(past)

    def call():
        model.n_tokens = len(past)  # what came after is forgotten
        model.eval(ids)

    def logits(_):
        return np.ctypeslib.as_array(model._ctx.get_logits(), shape=(model.n_vocab(),)).copy()

    yield "q", lambda: (call, logits)


if __name__ == "__main__":
    peer.serve(f"llama.cpp (llama-cpp-python {llama_cpp.__version__})", "np", {"llama_step": llama_step}, np.asarray)
