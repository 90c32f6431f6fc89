// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Random numbers that are a function of (seed, stream, counter): the same at any thread count and in any order.

#include <array>
#include <cmath>
#include <cstdint>

#include <heed/core/config.hpp>

HEED_NAMESPACE_BEGIN

/// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011):
/// four 32-bit words for each (seed, stream, counter).
class Philox {
 public:
  /// Streams of one seed are independent of each other.
  constexpr explicit Philox(std::uint64_t seed, std::uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  /// The four words of a counter.
  constexpr std::array<std::uint32_t, 4> operator()(std::uint64_t counter) const {
    std::array<std::uint32_t, 4> c{low(counter), high(counter), low(stream_), high(stream_)};
    std::uint32_t k0 = low(seed_), k1 = high(seed_);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53u} * c[0], b = std::uint64_t{0xCD9E8D57u} * c[2];
      c = {high(b) ^ c[1] ^ k0, low(b), high(a) ^ c[3] ^ k1, low(a)};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return c;
  }

  /// Uniform in [0, 1), 53 bits.
  constexpr double uniform(std::uint64_t counter) const {
    const auto w = (*this)(counter);
    return static_cast<double>(((std::uint64_t{w[0]} << 32) | w[1]) >> 11) * 0x1p-53;
  }

  /// Standard normal (Box-Muller).
  double normal(std::uint64_t counter) const {
    const auto w = (*this)(counter);
    const double u = (static_cast<double>(((std::uint64_t{w[0]} << 32) | w[1]) >> 11) + 0.5) * 0x1p-53;
    const double v = static_cast<double>(((std::uint64_t{w[2]} << 32) | w[3]) >> 11) * 0x1p-53;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586476925 * v);
  }

 private:
  static constexpr std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
  static constexpr std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

  std::uint64_t seed_, stream_;
};

/// Which attention weights dropout keeps: a function of (seed, stream, b, h, q, k), so that forward, backward and
/// recomputation agree without storing a mask. A hash rather than Philox: it runs once for every pair.
/// The mixer is lowbias32 (Chris Wellons, "Prospecting for hash functions", 2018).
class DropoutPattern {
 public:
  /// Drops with the given probability, 0 <= probability <= 1.
  DropoutPattern(std::uint64_t seed, std::uint64_t stream, double probability)
      : low_(static_cast<std::uint32_t>(seed) ^ mix(static_cast<std::uint32_t>(stream))),
        high_(static_cast<std::uint32_t>(seed >> 32) ^ mix(static_cast<std::uint32_t>(stream >> 32) + 0x9e3779b9u)),
        drop_below_(static_cast<std::uint64_t>(std::ldexp(probability, 32))),
        probability_(probability) {}

  /// The probability that a weight is dropped.
  double probability() const { return probability_; }
  /// The part of the hash that belongs to a query.
  std::uint32_t query_word(int b, int h, int q) const {
    const std::uint32_t head = mix(static_cast<std::uint32_t>(h) + mix(static_cast<std::uint32_t>(b) + high_));
    return mix(low_ ^ mix(static_cast<std::uint32_t>(q) ^ head));
  }
  /// The part that belongs to a key.
  static std::uint32_t key_word(int k) { return static_cast<std::uint32_t>(k) * 0x9e3779b9u; }
  /// Whether the weight of this query and key stays.
  bool keeps(std::uint32_t query_word, std::uint32_t key_word) const {
    return mix(query_word + key_word) >= drop_below_;
  }

 private:
  static std::uint32_t mix(std::uint32_t x) {
    x ^= x >> 16;
    x *= 0x21f0aaadu;
    x ^= x >> 15;
    x *= 0x735a2d97u;
    x ^= x >> 15;
    return x;
  }
  std::uint32_t low_, high_;
  std::uint64_t drop_below_;
  double probability_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
