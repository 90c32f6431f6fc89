// SPDX-License-Identifier: MIT
// A view keeps its number of dimensions: a (L, E) sequence is not a (B, L, E) batch.
// expect: conversion from .* to non-scalar type|no viable conversion

#include <heed/core/tensor.hpp>

heed::TensorView<const float, 3> batch(const heed::TensorView<const float, 2>& sequence) {
#ifdef MUST_NOT_COMPILE
  const heed::TensorView<const float, 3> view = sequence;
#else
  const heed::TensorView<const float, 3> view = sequence.unsqueeze();
#endif
  return view;
}
