// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The parts of an attention call beyond q, k and v: a mask, a score modifier, Scale or AttentionOptions, an Attention
/// value, a cache, a Context. Functions recognize parts by type, so they may come in any order, each at most once:
///
///   attention(q, k, v, Causal{}, context)
///   attention(q, k, v, SoftCap(30), Scale{0.1})

#include <concepts>
#include <type_traits>

#include <heed/attention/common/call.hpp>
#include <heed/mask/modifier.hpp>

HEED_NAMESPACE_BEGIN

/// The factor of the scores, as a part of a call: attention(q, k, v, Scale{0.1}).
struct Scale {
  double value;  ///< must be finite
};

namespace detail {

template <class P>
inline constexpr bool is_attention_value_v = false;
template <class P>
inline constexpr bool is_cache_v = false;
template <class P>
inline constexpr bool is_state_v = false;

// The kinds of parts.
struct IsMask {
  template <class P>
  static constexpr bool is = Mask<P>;
};
struct IsModifier {
  template <class P>
  static constexpr bool is = Modifier<P>;
};
struct IsScale {
  template <class P>
  static constexpr bool is = std::is_same_v<P, Scale>;
};
struct IsOptions {
  template <class P>
  static constexpr bool is = std::is_same_v<P, AttentionOptions>;
};
/// Attention, LinearAttention, SegmentedAttention or AnyAttention.
struct IsValue {
  template <class P>
  static constexpr bool is = is_attention_value_v<P>;
};
struct IsCache {
  template <class P>
  static constexpr bool is = is_cache_v<P>;
};
/// The running state of linear attention.
struct IsState {
  template <class P>
  static constexpr bool is = is_state_v<P>;
};
struct IsContext {
  template <class P>
  static constexpr bool is = std::is_same_v<P, Context>;
};

/// How many of the parts are of a kind.
template <class Kind, class... P>
inline constexpr int count_v = (0 + ... + static_cast<int>(Kind::template is<std::remove_cvref_t<P>>));

/// The part of a kind; `fallback` if there is none.
template <class Kind, class Default>
constexpr Default& pick(Default& fallback) {
  return fallback;
}
template <class Kind, class Default, class First, class... Rest>
constexpr auto& pick(Default& fallback, First& first, Rest&... rest) {
  if constexpr (Kind::template is<std::remove_cvref_t<First>>)
    return first;
  else
    return pick<Kind>(fallback, rest...);
}
template <class Kind, class Default, class... P>
using pick_t = std::remove_cvref_t<decltype(pick<Kind>(std::declval<Default&>(), std::declval<P&>()...))>;

/// The context of a call that gives none; nothing if a context is among the parts.
struct NoContext {};
template <class... P>
using OwnContext = std::conditional_t<count_v<IsContext, P...> == 0, Context, NoContext>;

/// The parts that Attention holds.
template <class... P>
inline constexpr bool are_terms_v =
    count_v<IsMask, P...> + count_v<IsModifier, P...> + count_v<IsScale, P...> + count_v<IsOptions, P...> ==
    sizeof...(P);

template <class... P>
consteval void check_terms() {
  static_assert(count_v<IsMask, P...> <= 1, "heed: two masks were given; combine them with & or |");
  static_assert(count_v<IsModifier, P...> <= 1, "heed: two score modifiers were given; chain them with then(a, b)");
  static_assert(count_v<IsScale, P...> + count_v<IsOptions, P...> <= 1,
                "heed: the scale was given twice; give Scale or AttentionOptions once");
}

/// Compile-time checks of the parts of a call, one sentence for each mistake.
template <class... P>
consteval void check_parts() {
  constexpr int known = count_v<IsMask, P...> + count_v<IsModifier, P...> + count_v<IsScale, P...> +
                        count_v<IsOptions, P...> + count_v<IsValue, P...> + count_v<IsCache, P...> +
                        count_v<IsState, P...> + count_v<IsContext, P...>;
  static_assert(known == sizeof...(P),
                "heed: an argument is not a part of an attention call: a mask, a score modifier, Scale{…}, "
                "AttentionOptions{…}, an Attention value, a cache or a Context. A matrix of bool becomes a mask by "
                "BoolMask::keep(m), a matrix of numbers a modifier by Bias(m)");
  check_terms<P...>();
  static_assert(count_v<IsValue, P...> <= 1, "heed: two Attention values were given; give one");
  static_assert(
      count_v<IsValue, P...> == 0 ||
          count_v<IsMask, P...> + count_v<IsModifier, P...> + count_v<IsScale, P...> + count_v<IsOptions, P...> == 0,
      "heed: an Attention value was given and, next to it, a part that belongs into it: write "
      "Attention(mask, modifier, Scale{…})");
  static_assert(count_v<IsCache, P...> <= 1 && count_v<IsState, P...> <= 1, "heed: two caches were given; give one");
  static_assert(count_v<IsContext, P...> <= 1, "heed: two contexts were given; give one");
}

inline constexpr NoMask kNoMask{};
inline constexpr NoModifier kNoModifier{};

template <class... P>
AttentionOptions options_of(const P&... parts) {
  AttentionOptions none;
  AttentionOptions options = pick<IsOptions>(none, parts...);
  if constexpr (count_v<IsScale, P...> == 1) options.scale = pick<IsScale>(none, parts...).value;
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
      : mask(detail::pick<detail::IsMask>(detail::kNoMask, parts...)),
        modifier(detail::pick<detail::IsModifier>(detail::kNoModifier, parts...)),
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
Attention(const P&...)
    -> Attention<detail::pick_t<detail::IsMask, NoMask, P...>, detail::pick_t<detail::IsModifier, NoModifier, P...>>;

namespace detail {

template <class M, class F>
inline constexpr bool is_attention_value_v<Attention<M, F>> = true;

/// The Attention value of a call: the one given, or one made of the other parts.
template <class... P>
decltype(auto) attention_of(const P&... parts) {
  if constexpr (count_v<IsValue, P...> == 1)
    return pick<IsValue>(kNoMask, parts...);
  else
    return Attention(pick<IsMask>(kNoMask, parts...), pick<IsModifier>(kNoModifier, parts...), options_of(parts...));
}

}  // namespace detail

HEED_NAMESPACE_END
