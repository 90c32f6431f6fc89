// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Layer: the public calls of a layer with one input, made from the layer's own body.
///
/// A layer derives from Layer and defines
///   using Scalar = float;                                      the element type
///   struct Cache;                                              the memory of a forward that a backward needs
///   void run(x, y, Cache* cache, context) const                y from x; without a cache nothing is kept
///   void run_backward(dy, dx, cache, context)                  adds to the gradients of parameters, writes dx
///   input_width(E), output_width(E)                            the widths of x and y; by default those of x
///   members(f)                                                 see Module
/// and has
///   y = layer(x), layer(x, context)                            a new result: Eigen for Eigen, else a Tensor
///   forward(x, y, context), forward(x, y, cache, context)      the same bits, into memory of the caller
///   backward(dy, dx, cache, context)
///   visit, initialize, pack                                    see Module
/// x, y, dy and dx are Eigen matrices (L, E), or tensors and views (L, E) or (B, L, E) of any strides; `run` always
/// gets views (B, L, E), checked. Memory that ends with the call comes from the context's workspace: once that is warm,
/// no call but the first form allocates. Const calls on one layer may run in many threads, each with a Context.
///
/// A cache borrows x: it must live, unchanged, until the backward. dx may be kNotWanted where the input needs no
/// gradient. A second backward with one cache gives the same gradients again, and adds them.

#include <heed/nn/module.hpp>

HEED_NAMESPACE_BEGIN

/// An element type that layers with products compute in. half and bfloat16 are storage types: keep weights in them in a
/// file, and load them into a layer of float.
template <class T>
concept LayerScalar = std::same_as<T, float> || std::same_as<T, double>;

namespace detail {

template <class X, class T>
inline constexpr bool has_elements_of_v = std::is_same_v<scalar_of_t<X>, T>;

/// Refuses elements of another type than T.
template <class T, class... X>
constexpr void check_elements() {
  static_assert((has_elements_of_v<X, T> && ...),
                "heed: the elements of an argument are not of the layer's type; "
                "cast it, x.cast<float>() for plain Eigen");
}

/// The convenience call of any layer, T the element type of the result: inputs become views (B, L, width), expressions
/// are evaluated once into the workspace, and forward(x, more..., y) fills a new result (B, L, width) that has the
/// batch and length of x. The result has the rank of x; for plain Eigen it is a matrix.
template <class T, class Forward, TensorLike X, TensorLike... More>
result_t<X, T> apply(Index width, Context& context, Forward&& forward, const X& x, const More&... more) {
  const Workspace::Frame frame(context.workspace());
  const auto x_view = read_as<3>(x, context.workspace());
  auto y = make_result<X, T, 3>(Extents<3>{x_view.extent(0), x_view.extent(1), width});
  forward(x_view, read_as<3>(more, context.workspace())..., write_as<3>(y));
  return y;
}

/// The width of x, its last extent.
template <TensorLike X>
Index width_of(const X& x) {
  if constexpr (AnyTensor<X>)
    return x.extent(rank_of_v<X> - 1);
  else
    return x.cols();
}

/// A gradient's output as a view (B, L, E); kNotWanted gives a view without data.
template <class T, class DX>
TensorView<T, 3> gradient_view(DX&& dx) {
  if constexpr (std::is_same_v<std::remove_cvref_t<DX>, NotWanted>)
    return {};
  else
    return write_as<3>(dx);
}

/// Allowed: a layer's y may be its x, and its dx its dy.
enum class InPlace { Forbidden, Allowed };

template <class T>
void check_width(std::string_view name, std::string_view argument, const TensorView<const T, 3>& x, Index width) {
  HEED_CHECK(x.extent(2) == width, ShapeError, name, ": ", argument, " ", x.extents(), " has width ", x.extent(2),
             " but the layer takes ", width,
             x.extent(2) == 1 && x.extent(1) == width ? "; it is a column vector: transpose it" : "");
}

/// The check of x (B, L, in) and y (B, L, out). Throws ShapeError when an extent differs, ValueError when y shares
/// memory with x; InPlace::Allowed accepts y == x, element by element.
template <class T, class U>
void check_layer_shapes(std::string_view name, const TensorView<const T, 3>& x, const TensorView<U, 3>& y, Index in,
                        Index out, InPlace in_place = InPlace::Forbidden) {
  check_width(name, "x", x, in);
  HEED_CHECK((y.extents() == Extents<3>{x.extent(0), x.extent(1), out}), ShapeError, name, ": y ", y.extents(),
             " does not fit x ", x.extents(), "; make it ", Extents<3>{x.extent(0), x.extent(1), out});
  const bool same = static_cast<const void*>(x.data()) == y.data() && x.strides() == y.strides();
  HEED_CHECK((in_place == InPlace::Allowed && same) || !may_overlap(x, y), ValueError, name,
             ": y shares memory with x; it needs separate memory");
}

/// The check of dy and dx against the extents of x and y in the forward. Throws ShapeError when they don't fit,
/// ValueError when dx shares memory with dy, unless in_place allows it to be dy.
template <class T>
void check_gradient(std::string_view name, const Extents<3>& x, const Extents<3>& y, const TensorView<const T, 3>& dy,
                    const TensorView<T, 3>& dx, InPlace in_place = InPlace::Forbidden) {
  HEED_CHECK(x != Extents<3>{}, ShapeError, name,
             ": the cache holds no forward; call forward(x, y, cache, context) of this layer first");
  HEED_CHECK(dy.extents() == y, ShapeError, name, ": dy ", dy.extents(), " does not fit the y ", y,
             " of the forward with this cache");
  if (!dx.data()) return;
  HEED_CHECK(dx.extents() == x, ShapeError, name, ": dx ", dx.extents(), " does not fit the x ", x,
             " of the forward with this cache; give heed::kNotWanted where no dx is needed");
  const bool same = dy.data() == dx.data() && dy.strides() == dx.strides();
  HEED_CHECK((in_place == InPlace::Allowed && same) || !may_overlap(dy, dx), ValueError, name,
             ": dx shares memory with dy; it needs separate memory");
}
/// The same with the x that a cache borrows, which dx must not overwrite.
template <class T>
void check_backward(std::string_view name, const TensorView<const T, 3>& x, const Extents<3>& y,
                    const TensorView<const T, 3>& dy, const TensorView<T, 3>& dx,
                    InPlace in_place = InPlace::Forbidden) {
  check_gradient(name, x.extents(), y, dy, dx, in_place);
  HEED_CHECK(!dx.data() || !may_overlap(x, dx), ValueError, name,
             ": dx shares memory with x; it needs separate memory");
}

/// Throws ShapeError unless a cache was filled by a layer like this one: `held` is a measure of the layer that filled
/// it, `own` the same of this layer.
template <class A>
void check_cache(std::string_view name, std::string_view measure, const A& held, const A& own) {
  HEED_CHECK(held == own, ShapeError, name, ": the cache holds a forward of another ", name, " with ", measure, " = ",
             held, " but this one has ", measure, " = ", own, "; give the cache to a forward of this layer first");
}

}  // namespace detail

/// Base of a layer with one input; see the head of this file.
template <class Derived>
class Layer : public Module<Derived> {
 public:
  /// The layer in error texts.
  static constexpr std::string_view name() { return "heed::Layer"; }
  /// True for a layer whose y may be x, and dx dy.
  static constexpr bool kInPlace = false;
  /// The width that the layer takes, where x has the given one.
  Index input_width(Index width) const { return width; }
  /// The width of y for an x of the given width.
  Index output_width(Index width) const { return width; }

  /// y = layer(x): a new result, a matrix for plain Eigen, else a Tensor of the rank of x.
  template <TensorLike X>
  auto operator()(const X& x, Context& context) const {
    check<X>();
    using T = scalar_of_t<X>;
    return detail::apply<T>(
        self().output_width(detail::width_of(x)), context,
        [&](const TensorView<const T, 3>& in, const TensorView<T, 3>& out) { forward(in, out, context); }, x);
  }
  /// @overload
  template <TensorLike X>
  auto operator()(const X& x) const {
    Context context;
    return self()(x, context);
  }

  /// Throws ShapeError when y does not fit x or x the layer, ValueError when they share memory (a layer that works in
  /// place allows y to be x).
  template <TensorLike X, TensorLike Y>
  void forward(const X& x, Y&& y, Context& context) const {
    checked(x, y, context, Derived::kInPlace,
            [&](const auto& in, const auto& out) { self().run(in, out, nullptr, context); });
  }
  /// forward() that a backward() can follow: x must live, unchanged, until then.
  template <TensorLike X, TensorLike Y, class Cache>
  void forward(const X& x, Y&& y, Cache& cache, Context& context) const {
    checked(
        x, y, context, Derived::kInPlace && !requires { cache.x; },
        [&](const auto& in, const auto& out) { self().run(in, out, &cache, context); });
  }

  /// Adds to the gradients of the parameters and writes dx, the gradient of x, from dy, that of y; a dx that is
  /// kNotWanted is not computed. Throws ShapeError when dy or dx don't fit the forward with this cache, ValueError when
  /// dx shares memory with x or dy (a layer that works in place allows dx to be dy).
  template <TensorLike DY, class DX, class Cache>
  void backward(const DY& dy, DX&& dx, Cache& cache, Context& context) {
    check<DY>();
    using T = scalar_of_t<DY>;
    const Workspace::Frame frame(context.workspace());
    const TensorView<const T, 3> errors = detail::read_as<3>(dy, context.workspace());
    const TensorView<T, 3> to = detail::gradient_view<T>(dx);
    const auto in_place = Derived::kInPlace ? detail::InPlace::Allowed : detail::InPlace::Forbidden;
    const auto y_of = [&](const Extents<3>& x) { return Extents<3>{x[0], x[1], self().output_width(x[2])}; };
    if constexpr (requires { cache.x; }) {
      detail::check_backward(self().name(), cache.x, y_of(cache.x.extents()), errors, to, in_place);
      detail::check_cache(self().name(), "width of x", cache.x.extent(2), self().input_width(cache.x.extent(2)));
    } else if constexpr (requires { cache.extents; }) {
      detail::check_gradient(self().name(), cache.extents, y_of(cache.extents), errors, to, in_place);
    }
    static_cast<Derived&>(*this).run_backward(errors, to, cache, context);
  }

 private:
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  template <class X>
  static constexpr void check() {
    if constexpr (requires { typename Derived::Scalar; }) detail::check_elements<typename Derived::Scalar, X>();
  }
  template <class X, class Y, class Run>
  void checked(const X& x, Y&& y, Context& context, bool in_place, Run&& run) const {
    check<X>();
    const Workspace::Frame frame(context.workspace());
    const auto in = detail::read_as<3>(x, context.workspace());
    const auto out = detail::write_as<3>(y);
    detail::check_layer_shapes(self().name(), in, out, self().input_width(in.extent(2)),
                               self().output_width(in.extent(2)),
                               in_place ? detail::InPlace::Allowed : detail::InPlace::Forbidden);
    run(in, out);
  }
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
