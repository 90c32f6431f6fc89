// SPDX-License-Identifier: MIT
// A const tensor gives only views of const elements.
// expect: conversion from .* to non-scalar type|no viable conversion

#include <heed/core/tensor.hpp>

#ifdef MUST_NOT_COMPILE
heed::TensorView<float, 2> writable(const heed::Tensor<float, 2>& x) {
#else
heed::TensorView<float, 2> writable(heed::Tensor<float, 2>& x) {
#endif
  const heed::TensorView<float, 2> view = x;
  return view;
}
