// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Observer: an interface that sees the outputs and attention weights of layers while they run; FiniteObserver finds
/// the first output that is not finite.

#include <heed/core/parallel.hpp>
#include <heed/core/scalar.hpp>
#include <heed/core/tensor.hpp>

HEED_NAMESPACE_BEGIN

/// A read-only tensor whose element type and rank are known at run time, as an observer receives it.
class ObservedTensor {
 public:
  /// Borrows a view of at most four dimensions.
  template <class T, int Rank>
  ObservedTensor(TensorView<const T, Rank> view) : data_(view.data()), rank_(Rank), read_(&read_as<T>) {
    static_assert(Rank <= 4);
    for (int d = 0; d < Rank; ++d) {
      extents_[static_cast<std::size_t>(d)] = view.extent(d);
      strides_[static_cast<std::size_t>(d)] = view.stride(d);
    }
  }
  int rank() const { return rank_; }                                           ///< number of dimensions
  Index extent(int d) const { return extents_[static_cast<std::size_t>(d)]; }  ///< size of dimension d
  /// The element at as many indices as the rank, as double.
  template <class... I>
  double operator()(I... i) const {
    Index at = 0;
    std::size_t d = 0;
    ((at += static_cast<Index>(i) * strides_[d++]), ...);
    return read_(data_, at);
  }

 private:
  template <class T>
  static double read_as(const void* data, Index at) {
    return static_cast<double>(static_cast<const T*>(data)[at]);
  }
  const void* data_;
  int rank_;
  double (*read_)(const void*, Index);
  Extents<4> extents_{}, strides_{};
};

/// The mask of a call, as an observer receives it: true where key k is visible to query q of head h of sample b.
using ObservedMask = FunctionRef<bool(int b, int h, int q, int k)>;

/// Receives the outputs of layers and, if it asks, attention weights. Names are the paths of the layers, such as
/// "layers.0.self_attn". Calls come from the thread that called the layer, in the order of the computation; views end
/// with the call.
class Observer {
 public:
  virtual ~Observer() = default;
  /// The output of a layer, (B, L, E).
  virtual void output(std::string_view name, const ObservedTensor& value) {
    static_cast<void>(name);
    static_cast<void>(value);
  }
  /// True asks for the weights of this attention layer, which take L×L memory.
  virtual bool wants_weights(std::string_view name) {
    static_cast<void>(name);
    return false;
  }
  /// The mask of a layer whose weights are wanted, with extents (B, H, Lq, Lk); called right before weights().
  virtual void mask(std::string_view name, const Extents<4>& extents, ObservedMask visible) {
    static_cast<void>(name);
    static_cast<void>(extents);
    static_cast<void>(visible);
  }
  /// The attention weights of a layer, (B, H, Lq, Lk), before dropout.
  virtual void weights(std::string_view name, const ObservedTensor& value) {
    static_cast<void>(name);
    static_cast<void>(value);
  }
};

/// Remembers the first output that contains a NaN or an infinity.
class FiniteObserver final : public Observer {
 public:
  /// True once such an output was seen.
  bool found() const { return found_; }
  /// The name of the layer.
  const std::string& layer() const { return layer_; }
  /// The value.
  double value() const { return value_; }
  /// The position of the value in the output, (b, l, e).
  const Extents<3>& index() const { return index_; }
  /// A description: "layers.1.linear1 (output 9 of the pass), nan at (0, 3, 17) of (2, 8, 64)".
  const std::string& place() const { return place_; }

  /// Checks an output (B, L, E) unless one was found before.
  void output(std::string_view name, const ObservedTensor& value) override {
    ++outputs_;
    if (found_ || value.rank() != 3) return;
    for (Index b = 0; b < value.extent(0); ++b) {
      for (Index l = 0; l < value.extent(1); ++l) {
        for (Index e = 0; e < value.extent(2); ++e) {
          if (detail::is_finite(value(b, l, e))) continue;
          found_ = true;
          layer_ = name;
          value_ = value(b, l, e);
          index_ = {b, l, e};
          place_ = detail::concat(name.empty() ? "a layer without a name" : name, " (output ", outputs_,
                                  " of the pass), ", value_, " at ", index_, " of ",
                                  Extents<3>{value.extent(0), value.extent(1), value.extent(2)});
          return;
        }
      }
    }
  }

 private:
  bool found_ = false;
  int outputs_ = 0;
  double value_ = 0;
  Extents<3> index_{};
  std::string layer_, place_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
