// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The parts of an attention call beyond q, k and v: a mask, a score modifier, Scale or AttentionOptions, an Attention
/// value, a cache, a Context. Functions recognize parts by type, so they may come in any order, each at most once:
///
///   attention(q, k, v, Causal{}, context)
///   attention(q, k, v, SoftCap(30), Scale{0.1})

#include <heed/attention/common/call.hpp>

HEED_NAMESPACE_BEGIN

/// The factor of the scores, as a part of a call: attention(q, k, v, Scale{0.1}).
struct Scale {
  double value;  ///< must be finite
};

namespace detail {

/// The kinds of parts. Value is Attention, LinearAttention, SegmentedAttention or AnyAttention; State is the running
/// state of linear attention; KeyValues, a layer's cache of keys and values.
enum class Part {
  None,
  Mask,
  Modifier,
  Scale,
  Options,
  Value,
  Cache,
  State,
  KeyValues,
  Context,
  FeatureMap,
  Segment,
  Pooling
};
template <class P>
inline constexpr Part kind_v = Mask<P>                               ? Part::Mask
                               : Modifier<P>                         ? Part::Modifier
                               : std::is_same_v<P, Scale>            ? Part::Scale
                               : std::is_same_v<P, AttentionOptions> ? Part::Options
                               : std::is_same_v<P, Context>          ? Part::Context
                                                                     : Part::None;

/// The number of parts of a kind.
template <Part Kind, class... P>
inline constexpr int count_v = (0 + ... + static_cast<int>(kind_v<std::remove_cvref_t<P>> == Kind));

/// The part of a kind; `fallback` if there is none.
template <Part Kind, class Default>
constexpr Default& pick(Default& fallback) {
  return fallback;
}
template <Part Kind, class Default, class First, class... Rest>
constexpr auto& pick(Default& fallback, First& first, Rest&... rest) {
  if constexpr (kind_v<std::remove_cvref_t<First>> == Kind)
    return first;
  else
    return pick<Kind>(fallback, rest...);
}
template <Part Kind, class Default, class... P>
using pick_t = std::remove_cvref_t<decltype(pick<Kind>(std::declval<Default&>(), std::declval<P&>()...))>;

/// The context of a call that gives none; nothing if a context is among the parts.
struct NoContext {};
template <class... P>
using OwnContext = std::conditional_t<count_v<Part::Context, P...> == 0, Context, NoContext>;

/// True for parts that Attention holds.
template <class... P>
inline constexpr bool are_terms_v = ((kind_v<P> == Part::Mask || kind_v<P> == Part::Modifier ||
                                      kind_v<P> == Part::Scale || kind_v<P> == Part::Options) &&
                                     ...);

template <class... P>
consteval void check_terms() {
  static_assert(count_v<Part::Mask, P...> <= 1, "heed: two masks were given; combine them with & or |");
  static_assert(count_v<Part::Modifier, P...> <= 1, "heed: two score modifiers were given; chain them with then(a, b)");
  static_assert(count_v<Part::Scale, P...> + count_v<Part::Options, P...> <= 1,
                "heed: the scale was given twice; give Scale or AttentionOptions once");
}

/// Compile-time checks of the parts of a call, one sentence for each mistake.
template <class... P>
consteval void check_parts() {
  static_assert(((kind_v<std::remove_cvref_t<P>> != Part::None) && ...),
                "heed: an argument is not a part of an attention call: a mask, a score modifier, Scale{…}, "
                "AttentionOptions{…}, an Attention value, a cache or a Context. A matrix of bool becomes a mask by "
                "BoolMask::keep(m), a matrix of numbers a modifier by Bias(m)");
  check_terms<P...>();
  static_assert(count_v<Part::Value, P...> <= 1, "heed: two Attention values were given; give one");
  static_assert(count_v<Part::Value, P...> == 0 || !(are_terms_v<std::remove_cvref_t<P>> || ...),
                "heed: an Attention value was given and, next to it, a part that belongs into it: write "
                "Attention(mask, modifier, Scale{…})");
  static_assert(
      count_v<Part::Cache, P...> <= 1 && count_v<Part::State, P...> <= 1 && count_v<Part::KeyValues, P...> <= 1,
      "heed: two caches were given; give one");
  static_assert(count_v<Part::Context, P...> <= 1, "heed: two contexts were given; give one");
}

inline constexpr NoMask kNoMask{};
inline constexpr NoModifier kNoModifier{};

template <class... P>
AttentionOptions options_of(const P&... parts) {
  AttentionOptions none;
  AttentionOptions options = pick<Part::Options>(none, parts...);
  if constexpr (count_v<Part::Scale, P...> == 1) options.scale = pick<Part::Scale>(none, parts...).value;
  return options;
}

}  // namespace detail

/// Softmax attention as a value: a mask, a score modifier and options. A call, a cache and a layer carry it. Made of
/// its parts in any order, each at most once:
///
///   heed::Attention attention(Causal{} & Padding(lengths), Alibi(8), Scale{0.1});
///   y = layer(x, attention, context);
template <Mask MaskType, Modifier ModifierType>
class Attention {
 public:
  /// Of parts in any order, each at most once.
  template <class... P>
  requires(detail::are_terms_v<P...>)
  explicit Attention(const P&... parts)
      : mask(detail::pick<detail::Part::Mask>(detail::kNoMask, parts...)),
        modifier(detail::pick<detail::Part::Modifier>(detail::kNoModifier, parts...)),
        options(detail::options_of(parts...)) {
    detail::check_terms<P...>();
  }
  /// Of mask, modifier and options.
  Attention(const MaskType& the_mask, const ModifierType& the_modifier, const AttentionOptions& the_options)
      : mask(the_mask), modifier(the_modifier), options(the_options) {}

  MaskType mask;             ///< the pairs that take part
  ModifierType modifier;     ///< changes scores
  AttentionOptions options;  ///< scale, dropout, sinks
};
/// Attention(parts...) takes its types from the parts.
template <class... P>
Attention(const P&...) -> Attention<detail::pick_t<detail::Part::Mask, NoMask, P...>,
                                    detail::pick_t<detail::Part::Modifier, NoModifier, P...>>;

namespace detail {

template <class M, class F>
inline constexpr Part kind_v<Attention<M, F>> = Part::Value;

/// The Attention value of a call: the one given, or one made of the other parts.
template <class... P>
decltype(auto) attention_of(const P&... parts) {
  if constexpr (count_v<Part::Value, P...> == 1)
    return pick<Part::Value>(kNoMask, parts...);
  else
    return Attention(pick<Part::Mask>(kNoMask, parts...), pick<Part::Modifier>(kNoModifier, parts...),
                     options_of(parts...));
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
