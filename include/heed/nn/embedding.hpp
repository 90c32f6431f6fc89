// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Embedding: one row of a table for each id; and the output head that shares the table.

#include <heed/core/integers.hpp>
#include <heed/nn/linear.hpp>

HEED_NAMESPACE_BEGIN

/// An Eigen vector of integers, or an expression of that kind.
template <class A>
concept EigenIntVector = EigenDense<A> && A::IsVectorAtCompileTime != 0 && Integer<typename A::Scalar>;

/// Options of Embedding.
struct EmbeddingOptions {
  Index vocab_size = 0;            ///< V, the number of ids
  Index embed_dim = 0;             ///< E
  double scale = 1;                ///< y = scale · weight[id]; Vaswani et al. (2017) take √E
  std::optional<Index> padding{};  ///< the id whose row initialize() leaves zero and gets no gradient
};

/// y[b, l] = scale · weight[ids[b, l]]; ids (B, L) of any integer type, weight (V, E), y (B, L, E). Load weights or
/// call initialize() before the first use.
///
///   Eigen::MatrixXf x = embedding(std::vector{101, 7592, 102});   // (L, E)
///   heed::Tensor<float, 3> x = embedding(ids);                    // ids a Tensor<std::int64_t, 2> (B, L)
///
/// project() is the tied output head of a language model, logits = x·weightᵀ. The weight is one parameter: counted,
/// saved and stepped once, with the sum of the gradients of both uses.
/// Press, Wolf: "Using the Output Embedding to Improve Language Models", 2017.
///
///   Eigen::MatrixXf logits = embedding.project(h);                // h (L, E), logits (L, V)
template <class T>
class Embedding : public Module<Embedding<T>> {
 public:
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;  ///< plain Eigen results
  /// Memory of a forward that backward() needs: its ids, borrowed.
  struct Cache {
    IntView ids{};
  };
  /// Memory of a project() that project_backward() needs: its x, borrowed.
  struct ProjectCache {
    TensorView<const T, 3> x{};  ///< (B, L, E)
  };

  /// Throws ShapeError for a vocabulary or width below 1, ValueError for a padding id outside the vocabulary.
  explicit Embedding(const EmbeddingOptions& options) : options_(options) {
    HEED_CHECK(options.vocab_size >= 1 && options.embed_dim >= 1, ShapeError, name(),
               ": vocab_size = ", options.vocab_size, " and embed_dim = ", options.embed_dim, " must be at least 1");
    HEED_CHECK(!options.padding || (*options.padding >= 0 && *options.padding < options.vocab_size), ValueError, name(),
               ": padding = ", options.padding.value_or(0), " is outside the vocabulary of ", options.vocab_size,
               " ids");
    weight = Parameter<T>(options.vocab_size, options.embed_dim);
  }

  Parameter<T> weight;  ///< (V, E)

  /// The list of members, for Module.
  static void members(auto&& f) { f("weight", &Embedding::weight); }
  /// The layer in error texts.
  static constexpr std::string_view name() { return "heed::Embedding"; }
  const EmbeddingOptions& options() const { return options_; }  ///< as constructed

  /// Normal numbers, and zeros in the padding row.
  void initialize(Random& random, std::string_view name = "", double stddev = 1) {
    init::normal(weight, random(detail::join(name, "weight")), stddev);
    if (options_.padding) std::fill_n(weight.mutable_matrix()[*options_.padding].data(), options_.embed_dim, T(0));
  }

  /// Lays the weight out for project(), in the same bits: worth its time where that is called often. With `release`
  /// rows are looked up there too, and the table itself is freed.
  void pack_head(const PackOptions& options = {})
  requires LayerScalar<T>
  {
    packed_.pack(weight, 0, options_.vocab_size);
    if (options.release && !weight.quantized()) weight.release();
  }
  /// See Module::quantize().
  void quantize(WeightFormat format) { weight.quantize(format); }

  /// ids of one sequence (a vector, array, span or Eigen vector of integers) give (L, E).
  template <class Ids>
  requires(std::is_constructible_v<IntSpan, const Ids&> && !AnyTensor<Ids>)
  Matrix operator()(const Ids& ids, Context& context) const {
    return of_list(ids, context);
  }
  /// @overload
  template <EigenIntVector Ids>
  requires(!EigenDirect<Ids>)
  Matrix operator()(const Ids& ids, Context& context) const {
    const Workspace::Frame frame(context.workspace());
    const IntView view(detail::read_as<2>(ids, context.workspace()));
    return of_list(Ids::ColsAtCompileTime == 1 ? view.transpose() : view, context);
  }
  /// ids (B, L), a tensor, a view or an Eigen matrix, give (B, L, E); a tensor (L) gives (L, E).
  template <class Ids>
  requires(std::is_constructible_v<IntView, const Ids&> &&
           (AnyTensor<Ids> || !std::is_constructible_v<IntSpan, const Ids&>))
  auto operator()(const Ids& ids, Context& context) const {
    const IntView view(ids);
    constexpr bool is_list = std::is_constructible_v<IntSpan, const Ids&>;
    auto y = detail::make_result<Tensor<T, is_list ? 2 : 3>, T, 3>(
        Extents<3>{view.extent(0), view.extent(1), options_.embed_dim});
    run(view, detail::write_as<3>(y), context);
    return y;
  }
  /// The same with a context of its own.
  template <class Ids>
  requires(std::is_constructible_v<IntView, const Ids&> || EigenIntVector<Ids>)
  auto operator()(const Ids& ids) const {
    Context context;
    return (*this)(ids, context);
  }

  /// ids (B, L) and y (B, L, E), or (L) and (L, E), of any strides. Throws ShapeError when y does not fit, ValueError
  /// for an id outside [0, V).
  template <class Ids, TensorLike Y>
  requires std::is_constructible_v<IntView, const Ids&>
  void forward(const Ids& ids, Y&& y, Context& context) const {
    run(IntView(ids), detail::write_as<3>(y), context);
  }
  /// forward() that a backward() can follow; ids must live, unchanged, until then.
  template <class Ids, TensorLike Y>
  requires std::is_constructible_v<IntView, Ids>
  void forward(Ids&& ids, Y&& y, Cache& cache, Context& context) const {
    cache.ids = IntView(std::forward<Ids>(ids));
    run(cache.ids, detail::write_as<3>(y), context);
  }
  /// weight.grad[ids[b, l]] += scale · dy[b, l], except for the padding id; ids have no gradient. Throws ShapeError
  /// when dy does not fit the forward.
  template <TensorLike DY>
  void backward(const DY& dy, const Cache& cache, Context& context) {
    const Workspace::Frame frame(context.workspace());
    const TensorView<const T, 3> errors = detail::read_as<3>(dy, context.workspace());
    const Extents<3> expected{cache.ids.extent(0), cache.ids.extent(1), options_.embed_dim};
    HEED_CHECK(errors.extents() == expected, ShapeError, name(), ": dy ", errors.extents(), " does not fit the y ",
               expected, " of the forward with this cache");
    const Index padding = options_.padding.value_or(-1);
    detail::scatter_add<T>(errors, static_cast<accumulate_t<T>>(options_.scale), weight.grad_matrix(), context,
                           [&](Index b, Index l) {
                             const Index id = cache.ids(b, l);
                             return id == padding ? Index{-1} : id;
                           });
  }

  /// logits (B, L, V) = x (B, L, E) · weightᵀ, without `scale`; for x (L, E) they are (L, V). The result is a matrix
  /// for plain Eigen, else a Tensor of the rank of x. Throws ShapeError for an x of another width.
  template <TensorLike X>
  auto project(const X& x, Context& context) const {
    detail::check_elements<T, X>();
    return detail::apply<T>(
        options_.vocab_size, context,
        [&](const TensorView<const T, 3>& in, const TensorView<T, 3>& out) { project(in, out, context); }, x);
  }
  /// The same with a context of its own.
  template <TensorLike X>
  auto project(const X& x) const {
    Context context;
    return project(x, context);
  }
  /// The same bits into logits of any strides. Throws ShapeError when they do not fit x, ValueError when they share
  /// memory.
  template <TensorLike X, TensorLike Y>
  requires(!std::is_same_v<std::remove_cvref_t<Y>, Context>)
  void project(const X& x, Y&& logits, Context& context) const {
    detail::check_elements<T, X>();
    const Workspace::Frame frame(context.workspace());
    run_project(detail::read_as<3>(x, context.workspace()), detail::write_as<3>(logits), context);
  }
  /// project() that a project_backward() can follow: x must live, unchanged, until then.
  template <TensorLike X, TensorLike Y>
  void project(const X& x, Y&& logits, ProjectCache& cache, Context& context) const {
    detail::check_elements<T, X>();
    const Workspace::Frame frame(context.workspace());
    cache.x = detail::read_as<3>(x, context.workspace());
    run_project(cache.x, detail::write_as<3>(logits), context);
  }
  /// weight.grad += dlogitsᵀ·x, the row of the padding id included, and dx = dlogits·weight unless dx is kNotWanted.
  /// Throws ShapeError when dlogits or dx do not fit the project() with this cache, ValueError when dx shares memory
  /// with x or dlogits.
  template <TensorLike DY, class DX>
  void project_backward(const DY& dlogits, DX&& dx, const ProjectCache& cache, Context& context) {
    detail::check_elements<T, DY>();
    const Workspace::Frame frame(context.workspace());
    const TensorView<const T, 3> errors = detail::read_as<3>(dlogits, context.workspace());
    const TensorView<T, 3> to = detail::gradient_view<T>(dx);
    const Extents<3> expected{cache.x.extent(0), cache.x.extent(1), options_.vocab_size};
    detail::check_backward(project_name(), cache.x, expected, errors, to);
    detail::check_cache(name(), "embed_dim", cache.x.extent(2), options_.embed_dim);
    detail::linear_backward_parameters<T>(cache.x, errors, weight.grad_matrix(), nullptr, context);
    if (to.data()) detail::linear_backward_input<T>(errors, weight.matrix(), {}, to, context);
  }

 private:
  static constexpr std::string_view project_name() { return "heed::Embedding::project"; }
  void run_project(const TensorView<const T, 3>& x, const TensorView<T, 3>& logits, Context& context) const {
    static_assert(LayerScalar<T>);
    detail::check_layer_shapes(project_name(), x, logits, options_.embed_dim, options_.vocab_size);
    detail::linear<T>(x, weight, packed_, logits, Epilogue<T, 3>{}, context);
    context.observe(logits);
  }

  Matrix of_list(const IntView& ids, Context& context) const {
    Matrix y(ids.size(), options_.embed_dim);
    run(ids, view_of(y).unsqueeze(), context);
    return y;
  }
  void run(const IntView& ids, const TensorView<T, 3>& y, Context& context) const {
    using A = accumulate_t<T>;
    const Extents<3> expected{ids.extent(0), ids.extent(1), options_.embed_dim};
    HEED_CHECK(y.extents() == expected, ShapeError, name(), ": y ", y.extents(), " does not fit ids ", ids.extents(),
               "; make it ", expected);
    for (Index b = 0; b < ids.extent(0); ++b) {
      for (Index l = 0; l < ids.extent(1); ++l) {
        const Index id = ids(b, l);
        HEED_CHECK(id >= 0 && id < options_.vocab_size, ValueError, name(), ": id ", ids.text(b, l), " at position ", l,
                   " of sample ", b, " is outside the vocabulary of V = ", options_.vocab_size, " ids");
      }
    }
    const bool has_table = !is_packed_only() && !weight.quantized();
    const TensorView<const T, 2> table = has_table ? weight.matrix() : TensorView<const T, 2>{};
    const A scale = static_cast<A>(options_.scale);
    const Index length = ids.extent(1), width = options_.embed_dim;
    const Workspace::Frame frame(context.workspace());
    const Index workers = has_table ? 0 : context.executor().concurrency();
    const TensorView<T, 2> rows = context.workspace().template tensor<T, 2>({workers, width});
    detail::parallel_for_rows(context, ids.extent(0) * length, width, [&](Index first, Index last, int worker) {
      for (Index r = first; r < last; ++r) {
        const Index b = r / length, l = r % length;
        const T* from = has_table ? table[ids(b, l)].data() : read_row(ids(b, l), rows[worker].data());
        T* to = y[b][l].data();
        if (scale == A(1) && y.has_dense_rows()) {
          std::copy_n(from, width, to);
        } else {
          for (Index e = 0; e < width; ++e) to[e * y.stride(2)] = static_cast<T>(scale * static_cast<A>(from[e]));
        }
      }
    });
    context.observe(y);
  }

  /// True when the table is in the panels of pack_head() alone.
  bool is_packed_only() const {
    if constexpr (LayerScalar<T>) return weight.released() && packed_.current(weight);
    return false;
  }
  /// A row that is not in the table, in `to`.
  const T* read_row(Index id, T* to) const {
    if constexpr (std::is_same_v<T, float>) {
      if (const QuantizedMatrix* quantized = weight.quantized()) {
        quantized->read_row(id, to);
        return to;
      }
    }
    if constexpr (LayerScalar<T>) packed_.current(weight)->read_column(id, to);
    return to;
  }

  EmbeddingOptions options_;
  struct NotPacked {};
  std::conditional_t<LayerScalar<T>, detail::PackedRows<T>, NotPacked> packed_;
};

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
