#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes official.safetensors, a file of the official library for the reader's test (safetensors 0.8.0, NumPy 2.4.6).

    python3 make_official.py
"""

import pathlib

import numpy as np
from safetensors.numpy import save_file

tensors = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3) / 4,
    "double": np.array([0.1, -2.5e300, np.inf, np.nan]),
    "half": np.array([[1.5], [-65504.0]], dtype=np.float16),
    "position_ids": np.arange(5, dtype=np.int64).reshape(1, 5) - 2,
    "keep": np.array([True, False, True]),
    "bytes": np.array([0, 255], dtype=np.uint8),
    "empty": np.zeros((0, 7), dtype=np.float32),
    "scalar": np.array(42.0, dtype=np.float32),
    'Schlüssel "1"\n\U0001F511': np.array([7], dtype=np.int16),
}
save_file(tensors, pathlib.Path(__file__).with_name("official.safetensors"), {"made by": "safetensors", "π": "\\/\t"})
