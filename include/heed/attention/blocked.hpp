// SPDX-License-Identifier: MIT
#pragma once
#include <heed/attention/reference.hpp>
#include <heed/core/context.hpp>
HEED_NAMESPACE_BEGIN
namespace detail {
template <class T, class S, class M>
void blocked_attention(const AttentionCall<T, S>& call, const M& modifier, Context& context) {
  reference_attention(call, modifier, context.workspace());
}
}  // namespace detail
HEED_NAMESPACE_END
