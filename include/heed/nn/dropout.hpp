// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Dropout as a layer.

#include <heed/nn/layer.hpp>
#include <heed/nn/rows.hpp>

HEED_NAMESPACE_BEGIN

/// Options of Dropout.
struct DropoutOptions {
  double probability = 0.5;  ///< that an element is dropped
};

/// While context.training, y = x / (1 - probability) where an element is kept and 0 where it is dropped; otherwise y =
/// x. x and y (B, L, E); y may be x. No parameters. Srivastava et al.: "Dropout: a simple way to prevent neural
/// networks from overfitting", 2014.
///
/// The choice is a function of the context's seed, of the stream number that each call takes from the context, and of
/// (b, l, e): it is the same at any thread count, and again in the backward.
template <class T>
class Dropout : public Layer<Dropout<T>> {
 public:
  using Scalar = T;                       ///< type of parameters and values
  static constexpr bool kInPlace = true;  ///< y may be x

  /// The choice of a forward: which elements it dropped; nothing when it dropped none. Nothing of x is kept: y may be
  /// x.
  struct Cache {
    Extents<3> extents{};
    std::optional<DropoutPattern> pattern{};
  };

  /// Throws ValueError unless 0 <= probability <= 1.
  explicit Dropout(const DropoutOptions& options) : options_(options) {
    HEED_CHECK(options.probability >= 0 && options.probability <= 1, ValueError, name(),
               ": probability = ", options.probability, " must be between 0 and 1");
  }

  static constexpr std::string_view name() { return "heed::Dropout"; }  ///< the layer in error texts
  const DropoutOptions& options() const { return options_; }            ///< as constructed

  /// The layer without checks, for layers made of it.
  void run(const TensorView<const T, 3>& x, const TensorView<T, 3>& y, Cache* cache, Context& context) const {
    run(x, {}, y, cache, context);
    context.observe(y);
  }
  /// y = residual + layer(x), which no observer is shown; y may be x, but not the residual.
  void run(const TensorView<const T, 3>& x, const TensorView<const T, 3>& residual, const TensorView<T, 3>& y,
           Cache* cache, Context& context) const {
    std::optional<DropoutPattern> pattern;
    if (acts(context)) pattern.emplace(context.seed, context.next_stream(), options_.probability);
    if (cache) *cache = {x.extents(), pattern};
    drop(x, residual, y, pattern, context);
  }
  /// dx = dy / (1 - probability) where the forward kept an element and 0 elsewhere; dx may be dy.
  void run_backward(const TensorView<const T, 3>& dy, const TensorView<T, 3>& dx, const Cache& cache,
                    Context& context) const {
    if (dx.data()) drop(dy, {}, dx, cache.pattern, context);
  }
  /// True when a call with this context drops elements.
  bool acts(const Context& context) const { return context.training && options_.probability > 0; }

 private:
  /// to = residual + the kept elements of `from`; a residual without data counts as 0.
  void drop(const TensorView<const T, 3>& from, const TensorView<const T, 3>& residual, const TensorView<T, 3>& to,
            const std::optional<DropoutPattern>& pattern, Context& context) const {
    using A = accumulate_t<T>;
    using V = Vec<A>;
    const Index width = from.extent(2);
    const V factor = options_.probability < 1 ? static_cast<A>(1 / (1 - options_.probability)) : A(0);
    if (!pattern && !residual.data() && from.data() == to.data()) return;
    detail::transform_rows(from, to, context, [&](Index b, Index l, const T* x, T* y) {
      const auto add_residual = [&] {
        if (!residual.data()) return;
        const TensorView<const T, 1> row = residual[b][l];
        for (Index e = 0; e < width; ++e) y[e] = static_cast<T>(static_cast<A>(y[e]) + static_cast<A>(row(e)));
      };
      if (!pattern) {
        if (x != y) std::copy_n(x, width, y);
        return add_residual();
      }
      const std::uint32_t row = pattern->query_word(static_cast<int>(b), 0, static_cast<int>(l));
      // A block of known length becomes vector instructions.
      constexpr int block = 64;
      for (Index e = 0; e < width; e += block) {
        typename V::Word keeps[block];
        for (int i = 0; i < block; ++i) {
          keeps[i] = pattern->keeps(row, DropoutPattern::key_word(static_cast<int>(e) + i)) ? 1 : 0;
        }
        const Index count = std::min<Index>(block, width - e);
        for (Index i = 0; i < count; i += V::size) {
          const V kept = detail::load_lanes(x + e + i, count - i) * factor;
          const V mask = V::lanes_with(V::load_words(keeps + i), 1);
          detail::store_lanes<T>(select(mask, kept, V(A(0))), y + e + i, count - i);
        }
      }
      add_residual();
    });
  }

  DropoutOptions options_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
