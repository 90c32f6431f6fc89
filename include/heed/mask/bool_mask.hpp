// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// BoolMask: a mask from a boolean matrix.

#include <heed/core/arguments.hpp>
#include <heed/mask/concept.hpp>

HEED_NAMESPACE_BEGIN

/// A boolean matrix (Lq, Lk), or (B, H, Lq, Lk) where extents of 1 are broadcast. The function that makes it says what
/// true means: visible for BoolMask::keep(m), hidden for BoolMask::ignore(m). The memory is borrowed.
class BoolMask : public MaskBase {
 public:
  /// Keys are visible where m is true (or not 0). m: an Eigen matrix, Tensor or view of bool or unsigned char.
  template <class M>
  requires TensorLike<std::remove_reference_t<M>>
  static BoolMask keep(M&& m) {
    return BoolMask(view<M>(m), false);
  }
  /// Keys are hidden where m is true (or not 0), the convention of PyTorch's nn.MultiheadAttention.
  template <class M>
  requires TensorLike<std::remove_reference_t<M>>
  static BoolMask ignore(M&& m) {
    return BoolMask(view<M>(m), true);
  }

  /// @{
  /// The interface of a mask, see mask/concept.hpp. bind() throws ShapeError unless each extent equals that of the call
  /// or is 1.
  KeyRange range(int, int, int) const { return kAllKeys; }
  bool visible(int b, int h, int q, int k) const { return (row(b, h, q)[k * strides_[3]] != 0) != ignore_; }
  std::uint64_t word(int b, int h, int q, int k, int n) const {
    const unsigned char* from = row(b, h, q) + k * strides_[3];
    unsigned char bytes[64] = {};
    for (int i = 0; i < n; ++i) bytes[i] = (from[i * strides_[3]] != 0) != ignore_;
    return detail::pack_bits(bytes);
  }
  BoolMask bind(const AttentionShape& s) const {
    const Extents<4> wanted{s.B, s.H, s.Lq, s.Lk};
    BoolMask bound = *this;
    for (std::size_t d = 0; d < 4; ++d) {
      HEED_CHECK(extents_[d] == wanted[d] || extents_[d] == 1, ShapeError, "heed::BoolMask: the mask is ", extents_,
                 " but the call is (B, H, Lq, Lk) = ", wanted, "; each extent must be equal or 1");
      if (extents_[d] == 1) bound.strides_[d] = 0;
    }
    return bound;
  }
  /// @}

 private:
  template <class M>
  static auto view(std::remove_reference_t<M>& m) {
    using Plain = std::remove_cvref_t<M>;
    using Element = scalar_of_t<Plain>;
    static_assert(
        std::is_same_v<Element, bool> || std::is_same_v<Element, unsigned char>,
        "heed::BoolMask takes bool or unsigned char; for numbers that are added to the scores use heed::Bias");
    static_assert(AnyTensor<Plain> || EigenDirect<Plain>,
                  "heed::BoolMask borrows memory: evaluate the expression into a matrix first");
    constexpr bool owns = !detail::is_view_v<Plain>;
    static_assert(std::is_lvalue_reference_v<M> || !owns,
                  "heed::BoolMask borrows memory: store this temporary in a variable first");
    static_assert(rank_of_v<Plain> == 2 || rank_of_v<Plain> == 4, "heed::BoolMask takes (Lq, Lk) or (B, H, Lq, Lk)");
    return detail::with_rank<4>(TensorView<const Element, rank_of_v<Plain>>(view_of(m)));
  }
  template <class Element>
  BoolMask(const TensorView<const Element, 4>& m, bool ignore)
      : data_(reinterpret_cast<const unsigned char*>(m.data())),
        extents_(m.extents()),
        strides_(m.strides()),
        ignore_(ignore) {
    static_assert(sizeof(Element) == 1);
  }
  const unsigned char* row(int b, int h, int q) const {
    return data_ + b * strides_[0] + h * strides_[1] + q * strides_[2];
  }

  const unsigned char* data_;
  Extents<4> extents_, strides_;
  bool ignore_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
