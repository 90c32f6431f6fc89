// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Argument checks shared by all kinds of attention; `function` names the caller in messages. The masks of linear and
/// segmented attention: Causal, Padding, or both joined with &.

#include <heed/attention/common/call.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Checks of one public function; `function` begins every message.
struct CallChecks {
  const char* function;

  /// The shape of a call on q (B, H, Lq, Dk), k (B, G, Lk, Dk), v (B, G, Lk, Dv).
  AttentionShape shape(const Extents<4>& q, const Extents<4>& k, const Extents<4>& v) const {
    fits_int(q, "q");
    fits_int(k, "k");
    fits_int(v, "v");
    HEED_CHECK(k[0] == q[0], ShapeError, function, ": k has B = ", k[0], " but q has B = ", q[0], "; k is ", k,
               " and q is ", q, " as (B, heads, L, D)");
    HEED_CHECK(v[0] == q[0], ShapeError, function, ": v has B = ", v[0], " but q has B = ", q[0], "; v is ", v,
               " and q is ", q, " as (B, heads, L, D)");
    HEED_CHECK(k[3] == q[3], ShapeError, function, ": k has Dk = ", k[3], " but q has Dk = ", q[3],
               "; queries and keys need one width");
    HEED_CHECK(v[1] == k[1], ShapeError, function, ": v has G = ", v[1], " heads but k has G = ", k[1]);
    HEED_CHECK(v[2] == k[2], ShapeError, function, ": v has Lk = ", v[2], " rows but k has Lk = ", k[2],
               "; each key needs one value");
    HEED_CHECK(q[1] == 0 || (k[1] > 0 && q[1] % k[1] == 0), ShapeError, function, ": q has H = ", q[1],
               " heads but k has G = ", k[1], "; H must be a multiple of G, query head h reads key head h / (H/G)");
    HEED_CHECK(q[3] > 0, ShapeError, function, ": q and k have Dk = 0, so there are no scores; Dk must be at least 1");
    const auto i = [](Index n) { return static_cast<int>(n); };
    return {i(q[0]), i(q[1]), i(k[1]), i(q[2]), i(k[2]), i(q[3]), i(v[3])};
  }

  template <class A>
  void options(const AttentionOptions& o, const AttentionShape& shape) const {
    HEED_CHECK(!o.scale || detail::is_finite(static_cast<A>(*o.scale)), ValueError, function, ": scale = ", *o.scale,
               " must be finite in the type that scores are computed in");
    HEED_CHECK(o.dropout >= 0 && o.dropout <= 1, ValueError, function, ": dropout = ", o.dropout,
               " must be a probability between 0 and 1");
    HEED_CHECK(o.sinks.empty() || o.sinks.size() == static_cast<std::size_t>(shape.H), ShapeError, function, ": ",
               o.sinks.size(), " sinks but H = ", shape.H, "; give one for each query head");
  }

  template <class T, int Rank>
  void extents(const TensorView<T, Rank>& view, const Extents<Rank>& wanted, const char* name) const {
    HEED_CHECK(view.extents() == wanted, ShapeError, function, ": ", name, " is ", view.extents(),
               " but the call needs ", wanted);
  }

  template <class T, class X>
  void no_alias(const TensorView<T, 4>& output, const TensorView<X, 4>& input, const char* output_name,
                const char* input_name) const {
    HEED_CHECK(!may_overlap(output, input), ValueError, function, ": ", output_name, " overlaps ", input_name,
               " in memory; it needs separate memory");
  }

  /// An output (of extents `wanted`) must not overlap q, k or v.
  template <class Out, class Q, class S>
  void output(const TensorView<Out, 4>& out, const Extents<4>& wanted, const char* name, const TensorView<Q, 4>& q,
              const TensorView<S, 4>& k, const TensorView<S, 4>& v) const {
    extents(out, wanted, name);
    no_alias(out, q, name, "q");
    no_alias(out, k, name, "k");
    no_alias(out, v, name, "v");
  }

  /// The gradients of a backward pass, from a cache with the inputs and the output of its forward. Gradients without
  /// data are not wanted and not checked.
  template <class T>
  void gradients(const AttentionGradients<T>& to, const AttentionCache<T>& cache,
                 const TensorView<const T, 4>& dout) const {
    const auto gradient = [&](const TensorView<T, 4>& d, const TensorView<const T, 4>& of, const char* name) {
      if (!d.data()) return;
      output(d, of.extents(), name, cache.q(), cache.k(), cache.v());
      no_alias(d, cache.out(), name, "out");
      no_alias(d, dout, name, "dout");
    };
    gradient(to.dq, cache.q(), "dq");
    gradient(to.dk, cache.k(), "dk");
    gradient(to.dv, cache.v(), "dv");
    no_alias(to.dq, to.dk, "dq", "dk");
    no_alias(to.dq, to.dv, "dq", "dv");
    no_alias(to.dk, to.dv, "dk", "dv");
  }

  void fits_int(const Extents<4>& extents, const char* name) const {
    for (const Index e : extents) {
      HEED_CHECK(e >= 0 && e <= std::numeric_limits<int>::max(), ShapeError, function, ": ", name, " is ", extents,
                 " but extents must lie between 0 and 2147483647; split the call");
    }
  }
};

template <class M>
inline constexpr bool is_sequence_mask_v =
    std::is_same_v<M, NoMask> || std::is_same_v<M, Causal> || std::is_same_v<M, Padding>;
template <class A, class B>
inline constexpr bool is_sequence_mask_v<And<A, B>> = is_sequence_mask_v<A> && is_sequence_mask_v<B>;

/// Causal and Padding, taken apart.
struct SequenceMask {
  std::optional<Causal> causal;
  std::optional<Padding> padding;

  explicit SequenceMask(const NoMask&) {}
  explicit SequenceMask(const Causal& mask) : causal(mask) {}
  explicit SequenceMask(const Padding& mask) : padding(mask) {}
  template <Mask A, Mask B>
  explicit SequenceMask(const And<A, B>& both) : SequenceMask(both.a) {
    const SequenceMask other(both.b);
    if (other.causal) causal = other.causal;
    if (other.padding) padding = other.padding;
  }
  template <Mask M>
  explicit SequenceMask(const M&) {
    static_assert(
        is_sequence_mask_v<M>,
        "heed: linear and segmented attention take the masks Causal, Padding(lengths), or both joined with &; "
        "another mask needs softmax attention");
  }

  /// Checks the mask against a call of queries and keys of one sequence and binds the padding.
  SequenceMask bind(const char* function, const AttentionShape& s) const {
    SequenceMask bound = *this;
    if (causal) {
      HEED_CHECK(s.Lq == s.Lk, ShapeError, function, ": causal needs as many queries as keys, but Lq = ", s.Lq,
                 " and Lk = ", s.Lk, "; to continue after earlier keys, keep a LinearAttentionState");
      bound.causal = causal->bind(s);
      for (int b = 0; b < s.B; ++b) {
        const Index first = bound.causal->range(b, 0, 0).end - 1;
        HEED_CHECK(first == 0, ValueError, function, ": Causal puts the first query of sample ", b, " at position ",
                   first, " but this kind of attention starts at 0; leave out the alignment");
      }
    }
    if (padding) bound.padding = heed::bind(*padding, s);
    return bound;
  }
};

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
