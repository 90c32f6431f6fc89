// SPDX-License-Identifier: MIT
#include "common/any_mask.hpp"

#include <algorithm>
#include <vector>

#include <heed/mask/bool_mask.hpp>
#include <heed/mask/sparse.hpp>

namespace heed_test {

namespace {

using heed::AttentionShape;

std::string text_of(const std::vector<int>& list) {
  std::string text = "{";
  for (std::size_t i = 0; i < list.size(); ++i) text += (i ? ", " : "") + std::to_string(list[i]);
  return text + "}";
}

/// n numbers between low and high.
std::shared_ptr<std::vector<int>> random_list(int n, int low, int high, Random& random) {
  auto list = std::make_shared<std::vector<int>>(static_cast<std::size_t>(n));
  for (int& x : *list) x = random.integer(low, high);
  return list;
}

Place whole(const AttentionShape& s) { return {0, 0, s.Lq, s.Lk}; }

/// An alignment that fits the shape, and the position of each query by its definition.
struct RandomAlignment {
  enum class Kind { Square, TopLeft, BottomRight, From } kind;
  std::shared_ptr<std::vector<int>> first;
  std::function<int(const Place& own, int b, int q)> position;
  std::string text;

  /// Without a name only where `square`: sequences of a mask around it may have other lengths.
  RandomAlignment(const AttentionShape& s, bool square, Random& random) {
    switch (random.integer(s.Lq == s.Lk && square ? 0 : 1, 3)) {
      case 0:
        kind = Kind::Square;
        position = [](const Place&, int, int q) { return q; };
        break;
      case 1:
        kind = Kind::TopLeft;
        position = [](const Place& own, int, int q) { return own.key + q - own.query; };
        text = "top_left";
        break;
      case 2:
        kind = Kind::BottomRight;
        position = [](const Place& own, int, int q) { return own.key + own.keys - (own.query + own.queries - q); };
        text = "bottom_right";
        break;
      default:
        kind = Kind::From;
        first = random_list(s.B, 0, s.Lk + 2, random);
        position = [list = first](const Place&, int b, int q) { return (*list)[static_cast<std::size_t>(b)] + q; };
        text = "from " + text_of(*first);
    }
  }

  /// The mask M with this alignment; the rest of its arguments follow.
  template <class M, class... Rest>
  M make(Rest... rest) const {
    switch (kind) {
      case Kind::Square:
        return M(rest...);
      case Kind::TopLeft:
        return M::top_left(rest...);
      case Kind::BottomRight:
        return M::bottom_right(rest...);
      default:
        return M::from(*first, rest...);
    }
  }
};

MaskCase random_causal(const AttentionShape& s, bool square, Random& random) {
  const RandomAlignment a(s, square, random);
  return MaskCase(
      "Causal " + a.text, a.make<heed::Causal>(), whole(s),
      [p = a.position](const Place& own, int b, int, int q, int k) { return k <= p(own, b, q); }, a.first);
}

MaskCase random_window(const AttentionShape& s, bool square, Random& random) {
  const RandomAlignment a(s, square, random);
  const int left = random.integer(0, 6), right = random.integer(0, 6);
  return MaskCase(
      "Window(" + std::to_string(left) + ", " + std::to_string(right) + ") " + a.text,
      a.make<heed::Window>(left, right), whole(s),
      [p = a.position, left, right](const Place& own, int b, int, int q, int k) {
        return p(own, b, q) - left <= k && k <= p(own, b, q) + right;
      },
      a.first);
}

MaskCase random_strided(const AttentionShape& s, bool square, Random& random) {
  const RandomAlignment a(s, square, random);
  const int stride = random.integer(1, 9), local = random.integer(0, 4);
  return MaskCase(
      "Strided(" + std::to_string(stride) + ", " + std::to_string(local) + ") " + a.text,
      a.make<heed::Strided>(stride, local), whole(s),
      [p = a.position, stride, local](const Place& own, int b, int, int q, int k) {
        return (k - own.key) % stride == 0 || std::abs(k - p(own, b, q)) <= local;
      },
      a.first);
}

MaskCase random_padding(const AttentionShape& s, Random& random) {
  const auto end = random_list(s.B, 0, s.Lk, random);
  const auto at = [](const auto& list, int b) { return (*list)[static_cast<std::size_t>(b)]; };
  switch (random.integer(0, 2)) {
    case 0:
      return MaskCase(
          "Padding(" + text_of(*end) + ")", heed::Padding(*end),
          [end, at](int b, int, int, int k) { return k < at(end, b); }, end);
    case 1: {
      const auto begin = random_list(s.B, 0, s.Lk, random);
      for (int b = 0; b < s.B; ++b) {
        auto& x = (*begin)[static_cast<std::size_t>(b)];
        x = std::min(x, at(end, b));
      }
      const auto both = std::make_shared<std::pair<decltype(begin), decltype(end)>>(begin, end);
      return MaskCase(
          "Padding(" + text_of(*begin) + ", " + text_of(*end) + ")", heed::Padding(*begin, *end),
          [begin, end, at](int b, int, int, int k) { return at(begin, b) <= k && k < at(end, b); }, both);
    }
    default: {
      const auto queries = random_list(s.B, 0, s.Lq, random);
      const auto both = std::make_shared<std::pair<decltype(queries), decltype(end)>>(queries, end);
      const MaskCase padding(
          "Padding::queries_and_keys(" + text_of(*queries) + ", " + text_of(*end) + ")",
          heed::Padding::queries_and_keys(*queries, *end),
          [queries, end, at](int b, int, int q, int k) { return q < at(queries, b) && k < at(end, b); }, both);
      return padding.with_sequences([queries, end, at](int b, int) { return Place{0, 0, at(queries, b), at(end, b)}; },
                                    false);
    }
  }
}

/// Offsets from 0 to `length` with `sequences` parts, some of them empty.
std::vector<int> random_offsets(int sequences, int length, Random& random) {
  std::vector<int> offsets{0, length};
  for (int i = 1; i < sequences; ++i) offsets.push_back(random.integer(0, length));
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

MaskCase random_packed(const AttentionShape& s, Random& random) {
  const int sequences = random.integer(1, 4);
  const auto both = std::make_shared<std::pair<std::vector<int>, std::vector<int>>>();
  both->first = random_offsets(sequences, s.Lq, random);
  const bool cross = s.Lq != s.Lk || random.chance(0.5);
  both->second = cross ? random_offsets(sequences, s.Lk, random) : both->first;
  // The sequence of a position: how many sequences have ended by then.
  const auto sequence = [](const std::vector<int>& offsets, int position) {
    std::size_t i = 0;
    while (offsets[i + 1] <= position) ++i;
    return i;
  };
  const auto truth = [both, sequence](int, int, int q, int k) {
    const std::size_t i = sequence(both->first, q);
    return both->second[i] <= k && k < both->second[i + 1];
  };
  const auto place = [both, sequence](int, int q) {
    const std::size_t i = sequence(both->first, q);
    const auto& [queries, keys] = *both;
    return Place{queries[i], keys[i], queries[i + 1] - queries[i], keys[i + 1] - keys[i]};
  };
  if (!cross) {
    return MaskCase("Packed(" + text_of(both->first) + ")", heed::DocumentMask(both->first), truth, both)
        .with_sequences(place, true);
  }
  return MaskCase("Packed(" + text_of(both->first) + ", " + text_of(both->second) + ")",
                  heed::DocumentMask(both->first, both->second), truth, both)
      .with_sequences(place, true);
}

MaskCase random_global(const AttentionShape& s, Random& random) {
  if (random.chance(0.5)) {
    const int count = random.integer(0, 3);
    return MaskCase(
        "GlobalTokens(" + std::to_string(count) + ")", heed::GlobalTokens(count), whole(s),
        [count](const Place& own, int, int, int q, int k) { return q - own.query < count || k - own.key < count; });
  }
  const auto positions = std::make_shared<std::vector<int>>();
  for (int i = 0; i < std::max(s.Lq, s.Lk) + 1; ++i) {
    if (random.chance(0.15)) positions->push_back(i);
  }
  const auto listed = [positions](int i) {
    return std::find(positions->begin(), positions->end(), i) != positions->end();
  };
  return MaskCase(
      "GlobalTokens(" + text_of(*positions) + ")", heed::GlobalTokens(*positions),
      [listed](int, int, int q, int k) { return listed(q) || listed(k); }, positions);
}

template <class Element>
MaskCase random_dense(const AttentionShape& s, Random& random) {
  heed::Extents<4> extents{s.B, s.H, s.Lq, s.Lk};
  for (auto& e : extents) {
    if (random.chance(0.25)) e = 1;
  }
  const auto matrix = std::make_shared<heed::Tensor<Element, 4>>(extents);
  const double density = random.pick({0.0, 0.1, 0.5, 0.9, 1.0});
  // Any number but 0 means true in a matrix of unsigned char.
  for (Index i = 0; i < matrix->size(); ++i) {
    matrix->data()[i] = random.chance(density) ? static_cast<Element>(random.pick({1, 2, 128, 255})) : Element{0};
  }
  const auto at = [matrix](int b, int h, int q, int k) {
    const auto& e = matrix->extents();
    return (*matrix)(e[0] == 1 ? 0 : b, e[1] == 1 ? 0 : h, e[2] == 1 ? 0 : q, e[3] == 1 ? 0 : k) != Element{0};
  };
  const std::string text = "(density " + std::to_string(density) + ")";
  if (random.chance(0.5)) return MaskCase("BoolMask::keep" + text, heed::BoolMask::keep(*matrix), at, matrix);
  return MaskCase(
      "BoolMask::ignore" + text, heed::BoolMask::ignore(*matrix),
      [at](int b, int h, int q, int k) { return !at(b, h, q, k); }, matrix);
}

MaskCase random_function(const AttentionShape&, Random& random) {
  const int period = random.integer(1, 5), phase = random.integer(0, 4);
  if (random.chance(0.5)) {
    const auto f = [period, phase](int q, int k) { return (2 * q + k + phase) % period == 0; };
    return MaskCase("mask(q, k)", heed::mask(f), [f](int, int, int q, int k) { return f(q, k); });
  }
  const auto f = [period, phase](int b, int h, int q, int k) { return (b + 3 * h + 2 * q + k + phase) % period != 0; };
  return MaskCase("mask(b, h, q, k)", heed::mask(f), f);
}

/// `square`: the mask is not part of an expression.
MaskCase random_leaf(const AttentionShape& s, bool square, Random& random) {
  switch (random.integer(0, 9)) {
    case 0:
      return MaskCase("NoMask", heed::NoMask{}, [](int, int, int, int) { return true; });
    case 1:
      return random_causal(s, square, random);
    case 2:
      return random_window(s, square, random);
    case 3:
      return random_padding(s, random);
    case 4:
      return random_packed(s, random);
    case 5:
      return random_strided(s, square, random);
    case 6:
      return random_global(s, random);
    case 7:
      return random_dense<bool>(s, random);
    case 8:
      return random_dense<unsigned char>(s, random);
    default:
      return random_function(s, random);
  }
}

MaskCase random_tree(const AttentionShape& s, int depth, Random& random) {
  if (depth == 0 || random.chance(0.3)) return random_leaf(s, false, random);
  const int sign = random.integer(0, 2);
  const MaskCase a = random_tree(s, depth - 1, random);
  if (sign == 2) return !a;
  const MaskCase b = random_tree(s, depth - 1, random);
  return sign == 0 ? a & b : a | b;
}

}  // namespace

MaskCase random_leaf(const AttentionShape& s, Random& random) { return random_leaf(s, true, random); }

MaskCase random_mask(const AttentionShape& s, Random& random) {
  return random.chance(0.6) ? random_leaf(s, random) : random_tree(s, random.integer(1, 3), random);
}

MaskCase random_sequences(const AttentionShape& s, Random& random) {
  MaskCase mask = random.chance(0.7) ? random_packed(s, random) : random_padding(s, random);
  for (int i = random.integer(1, 3); i > 0; --i) {
    const MaskCase more = random_tree(s, random.integer(0, 2), random);
    mask = random.chance(0.5) ? mask & more : more & mask;
  }
  return mask;
}

TruthTable::TruthTable(const AttentionShape& s, const Truth& truth)
    : heads_(static_cast<std::size_t>(s.H)),
      queries_(static_cast<std::size_t>(s.Lq)),
      keys_(static_cast<std::size_t>(s.Lk)) {
  visible_.reserve(static_cast<std::size_t>(s.B) * heads_ * queries_ * keys_);
  for (int b = 0; b < s.B; ++b) {
    for (int h = 0; h < s.H; ++h) {
      for (int q = 0; q < s.Lq; ++q) {
        for (int k = 0; k < s.Lk; ++k) visible_.push_back(truth(b, h, q, k));
      }
    }
  }
}

}  // namespace heed_test
