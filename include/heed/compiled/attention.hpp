// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The kernels that heed::compiled holds: matrix products, and softmax attention, forward, backward and decode.
///
/// HEED_USES_COMPILED: 1 in a translation unit that takes its instances from heed::compiled, else 0.
///
/// The CMake target heed::compiled defines HEED_COMPILED, and its build writes <heed_compiled_abi.hpp>, which defines
/// HEED_COMPILED_<tag> for the tag of the namespace that it was compiled in. A translation unit with another tag (other
/// instruction set, Eigen or exceptions) instantiates what it needs, as without heed::compiled: slower to compile,
/// never wrong.

#include <heed/attention/softmax/select.hpp>
#include <heed/core/gemm.hpp>

#if defined(HEED_COMPILED)
#include <heed_compiled_abi.hpp>
#define HEED_COMPILED_FOR_(tag) HEED_COMPILED_##tag
#define HEED_COMPILED_FOR(tag) HEED_COMPILED_FOR_(tag)
#if HEED_COMPILED_FOR(HEED_ABI)
#define HEED_USES_COMPILED 1
#endif
#endif

#if !defined(HEED_USES_COMPILED)
/// 1 where the instances of heed::compiled are used, else 0.
#define HEED_USES_COMPILED 0
#endif

/// The instances in src/attention.cpp, with `declaration` = template or extern template.
#define HEED_COMPILED_ATTENTION(declaration)                                                         \
  declaration void multiply<float>(const Product<float>&, Context&);                                 \
  declaration void multiply<double>(const Product<double>&, Context&);                               \
  HEED_COMPILED_FORWARD(declaration, float, float);                                                  \
  HEED_COMPILED_FORWARD(declaration, float, half);                                                   \
  HEED_COMPILED_FORWARD(declaration, float, bfloat16);                                               \
  HEED_COMPILED_FORWARD(declaration, double, double);                                                \
  declaration void softmax_attention_backward<float>(const AttentionBackwardCall<float>&, Context&); \
  declaration void softmax_attention_backward<double>(const AttentionBackwardCall<double>&, Context&)
/// The part of it for queries in T, keys and values in S.
#define HEED_COMPILED_FORWARD(declaration, T, S)                                                           \
  declaration void run_softmax<T, S>(const AttentionTensors<T, S>&, const AttentionShape&, const MaskRef&, \
                                     const ModifierRef<T>&, const AttentionOptions&, const DropoutPattern&, Context&)

#if HEED_USES_COMPILED
namespace heed::detail {
HEED_COMPILED_ATTENTION(extern template);
}  // namespace heed::detail
#endif

#include <heed/core/restore_macros.hpp>
