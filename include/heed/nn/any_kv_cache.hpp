// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// AnyKvCache: the keys and values of earlier tokens as layers use them, whatever they are stored in; KvStep, one call.
/// Programs make a KvCache (nn/kv_cache.hpp).

#include <vector>

#include <heed/attention/any_attention.hpp>
#include <heed/nn/positional.hpp>

HEED_NAMESPACE_BEGIN

/// The side of a batch's rows on which shorter samples are padded.
enum class PaddingSide {
  Right,  ///< sample b is the first rows
  Left    ///< sample b is the last rows
};

/// The extents of keys and values in each attention layer of a model. Models have kv_shape().
struct KvShape {
  Index num_layers = 1;      ///< attention layers that share the lengths of the cache
  Index num_kv_heads = 0;    ///< G
  Index head_dim = 0;        ///< Dk
  Index value_head_dim = 0;  ///< Dv
};

/// Options of KvCache.
struct KvCacheOptions {
  Index batch = 1;     ///< B
  Index capacity = 0;  ///< tokens that each sample can hold; with a window, where nothing ends, leave it 0
  Index window = 0;    ///< a query sees its own and the window - 1 tokens before it, and older ones are dropped; 0: all
  Index sinks = 0;     ///< the first tokens, which a window keeps (Xiao et al.: "StreamingLLM", 2023)
};

template <class T>
class AnyKvCache;

/// A cache in one call: the tokens that the call adds to each sample, and the layer that is called. Made implicitly
/// from a cache, to whose samples every row of x is then added; see AnyKvCache::step() and stored().
template <class T>
class KvStep {
 public:
  /// No cache.
  KvStep() = default;
  /// Every row of x is a token.
  KvStep(AnyKvCache<T>& cache) : cache_(&cache) {}

  /// False without a cache.
  explicit operator bool() const { return cache_ != nullptr; }
  /// The same call in the i-th layer after this one, of a cache for several: a model of two stacks gives the second
  /// kv.step().layer(first.size()).
  KvStep layer(Index i) const {
    KvStep step = *this;
    step.layer_ += i;
    return step;
  }
  AnyKvCache<T>& cache() const { return *cache_; }  ///< the cache
  Index layer() const { return layer_; }            ///< the layer that is called
  bool appends() const { return appends_; }         ///< false for stored()
  PaddingSide side() const { return side_; }        ///< where the rows of shorter samples are padded
  /// The tokens of sample b among L rows.
  Index count(Index b, Index length) const { return counts_ ? (*counts_)[b] : length; }
  /// The row of sample b's first token.
  Index first_row(Index b, Index length) const { return side_ == PaddingSide::Left ? length - count(b, length) : 0; }
  /// The positions of L rows, which go on from the lengths of the cache: for LearnedPositions, SinusoidalPositions and
  /// RotaryEmbedding. They borrow from the cache: valid until its next call.
  Positions positions(Index length) const;

 private:
  friend class AnyKvCache<T>;
  AnyKvCache<T>* cache_ = nullptr;
  std::optional<IntSpan> counts_{};
  PaddingSide side_ = PaddingSide::Right;
  Index layer_ = 0;
  bool appends_ = true;
};

/// The keys and values of earlier tokens, for B samples of different lengths; layers take it whatever it stores them
/// in. KvCache makes one. Keys are stored as attention reads them, normalized and turned by their positions.
template <class T>
class AnyKvCache {
 public:
  AnyKvCache(AnyKvCache&&) noexcept = default;             ///< steps that refer to the other one end
  AnyKvCache& operator=(AnyKvCache&&) noexcept = default;  ///< steps that refer to either end
  virtual ~AnyKvCache() = default;

  const KvShape& shape() const { return shape_; }             ///< of the model
  const KvCacheOptions& options() const { return options_; }  ///< as constructed
  Index batch() const { return options_.batch; }              ///< B
  /// Tokens of sample b so far, also those that a window has dropped.
  Index length(Index b = 0) const { return lengths_[checked(b)]; }
  /// Of all samples.
  const std::vector<int>& lengths() const& { return lengths_; }
  void lengths() const&& = delete;
  /// Bytes of keys and values.
  virtual std::size_t bytes() const = 0;

  /// A call whose x (B, L, E) has counts[b] tokens of sample b, 0 to L; the other rows are padding, of which y holds
  /// nothing of use. The list is borrowed. Throws ShapeError unless it has B numbers.
  KvStep<T> step(IntSpan counts, PaddingSide side = PaddingSide::Right) {
    HEED_CHECK(counts.size() == batch(), ShapeError, kName, ": ", counts.size(),
               " counts but the cache has B = ", batch(), "; give one for each sample");
    KvStep<T> step(*this);
    step.counts_ = counts;
    step.side_ = side;
    return step;
  }
  /// A call in which every row of x is a token.
  KvStep<T> step() { return KvStep<T>(*this); }
  /// A call that adds nothing: its queries see what is stored. For cross-attention, see MultiHeadAttention::append().
  KvStep<T> stored() {
    KvStep<T> step(*this);
    step.appends_ = false;
    return step;
  }

  /// Forgets all but the first `length` tokens of sample b: what came after them has no effect on later calls. Throws
  /// ShapeError for a sample that there isn't, ValueError for a length that is negative or more than there are, and
  /// after a window has dropped tokens that would be seen again.
  void truncate(Index b, Index length) {
    const std::size_t sample = checked(b);
    HEED_CHECK(length >= 0 && length <= lengths_[sample], ValueError, kName, ": sample ", b, " has ", lengths_[sample],
               " tokens and can't be truncated to ", length);
    HEED_CHECK(length == 0 || length == lengths_[sample] || !has_dropped(sample), ValueError, kName, ": sample ", b,
               " can't be truncated to ", length, " tokens, since the window has dropped tokens that would be seen ",
               "again; clear it, or make the window larger than the sequence");
    if (length == lengths_[sample]) return;
    lengths_[sample] = static_cast<int>(length);
    places_[sample] = {0, length};
  }
  /// Forgets the last `count` tokens of every sample, and a call that did not finish. Throws as truncate(), and then
  /// nothing has changed.
  void rewind(Index count) {
    for (Index b = 0; b < batch(); ++b) {
      HEED_CHECK(count >= 0 && count <= length(b), ValueError, kName, ": sample ", b, " has ", length(b),
                 " tokens and can't be rewound by ", count);
      HEED_CHECK(count == length(b) || !(has_dropped(at(b)) && (count > 0 || next_layer_ > 0)), ValueError, kName,
                 ": sample ", b,
                 " can't be rewound, since the window has dropped tokens that would be seen again; "
                 "clear it, or make the window larger than the sequence");
    }
    for (Index b = 0; b < batch(); ++b) truncate(b, length(b) - count);
    next_layer_ = 0;
  }
  /// Forgets sample b.
  void clear(Index b) { truncate(b, 0); }
  /// Forgets all samples, and a call that did not finish.
  void clear() {
    for (Index b = 0; b < batch(); ++b) truncate(b, 0);
    next_layer_ = 0;
  }
  /// Sample `to` becomes the first `length` tokens of sample `from`. Throws as truncate() of `from`.
  void copy_prefix(Index from, Index to, Index length) {
    const std::size_t source = checked(from), target = checked(to);
    HEED_CHECK(length >= 0 && length <= lengths_[source], ValueError, kName, ": sample ", from, " has ",
               lengths_[source], " tokens, so a prefix of ", length, " can't be copied");
    HEED_CHECK(!has_dropped(source), ValueError, kName, ": a prefix of sample ", from,
               " can't be copied, since the window has dropped its tokens; make the window larger than the sequence");
    if (source == target) return truncate(from, length);
    for (Index layer = 0; layer < shape_.num_layers; ++layer) copy_rows(layer, {from, 0}, {to, 0}, length);
    lengths_[target] = static_cast<int>(length);
    places_[target] = {0, length};
  }

  /// Throws unless the call `step` of a layer `name` with x (B, L, E) fits: ShapeError for another shape, ValueError
  /// for counts outside [0, L], or when a sample would hold more than the capacity. Layers call it before they write.
  void check(std::string_view name, const KvStep<T>& step, const KvShape& layer, Index batch_size, Index length) const {
    const auto same = [&](const char* what, Index held, Index own) {
      HEED_CHECK(held == own, ShapeError, name, ": the KvCache has ", what, " = ", held, " but the layer has ", own,
                 "; make the cache from the model: KvCache<float> kv(model, options)");
    };
    same("num_kv_heads", shape_.num_kv_heads, layer.num_kv_heads);
    same("head_dim", shape_.head_dim, layer.head_dim);
    same("value_head_dim", shape_.value_head_dim, layer.value_head_dim);
    HEED_CHECK(step.layer() >= 0 && step.layer() < shape_.num_layers, ShapeError, name, ": layer ", step.layer(),
               " of a KvCache for ", shape_.num_layers, " layers does not exist; make the cache from the model");
    HEED_CHECK(batch() == batch_size, ShapeError, name, ": x has B = ", batch_size,
               " but the KvCache has B = ", batch(), "; give one sample of x for each of the cache");
    if (!step.appends()) return;
    HEED_CHECK(step.layer() == next_layer_, ValueError, name, ": layer ", step.layer(),
               " is called with a KvCache whose next layer is ", next_layer_,
               "; call all layers of the cache in their order, and after a call that did not finish rewind(0) or "
               "clear() the cache");
    for (Index b = 0; b < batch(); ++b) {
      const Index count = step.count(b, length), held = lengths_[at(b)];
      HEED_CHECK(count >= 0 && count <= length, ValueError, name, ": sample ", b, " has count = ", count, " but x has ",
                 length, " rows; counts are from 0 to L");
      HEED_CHECK(options_.capacity == 0 || held + count <= options_.capacity, ValueError, name, ": sample ", b, " has ",
                 held, " tokens and ", count, " more are added, but the KvCache holds ", options_.capacity,
                 "; make its capacity larger, truncate() it, or give it a window");
      HEED_CHECK(held + count <= kMostTokens, ValueError, name, ": sample ", b, " would have ", held + count,
                 " tokens, more than ", kMostTokens);
    }
  }

  /// Stores k (B, G, L, Dk) and v (B, G, L, Dv), unless the step is stored(), and attends q (B, H, L, Dk) to what each
  /// sample holds, its own tokens included. Rows of out (B, H, L, Dv) that are padding are 0. After the last layer the
  /// lengths grow. For layers, after check(). Throws ValueError for attention that is not softmax attention.
  void attend(const KvStep<T>& step, const detail::LayerAttention<T>& call, const AnyAttention<T>& attention,
              Context& context) {
    HEED_CHECK(attention.has_weights(), ValueError, kName,
               ": only softmax attention reads keys and values from a cache; call linear attention with its state");
    const Index length = call.q.extent(2);
    for (Index b = 0, end; b < batch(); b = end) {
      end = is_uniform(step, length) ? batch() : b + 1;
      attend_samples(step, b, end - b, call, attention, context);
    }
    if (step.appends()) finish_layer(step, length);
  }
  /// Stores k and v, as attend(), without queries.
  void append(const KvStep<T>& step, const TensorView<const T, 4>& k, const TensorView<const T, 4>& v) {
    for (Index b = 0; b < batch(); ++b) {
      const Index count = step.count(b, k.extent(2)), first = step.first_row(b, k.extent(2));
      Place place = places_[at(b)];
      for (Index done = 0, n; done < count; done += n) {
        n = std::min(count - done, piece());
        make_room(step.layer(), b, 1, place, n);
        write_rows(step.layer(), b, place.end(), k.slice(0, b, 1).slice(2, first + done, n),
                   v.slice(0, b, 1).slice(2, first + done, n));
        place.count += n;
        drop(step.layer(), b, 1, place);
      }
      moving_[at(b)] = place;
    }
    finish_layer(step, k.extent(2));
  }

 protected:
  /// A row of a sample.
  struct Row {
    Index sample;  ///< in the batch
    Index row;     ///< in the memory of the sample
  };

  /// Throws ShapeError for extents that can't be.
  AnyKvCache(const KvShape& shape, const KvCacheOptions& options) : shape_(shape), options_(options) {
    HEED_CHECK(shape.num_layers >= 0 && shape.num_kv_heads >= 1 && shape.head_dim >= 1 && shape.value_head_dim >= 1,
               ShapeError, kName, ": num_layers = ", shape.num_layers,
               " must be at least 0, num_kv_heads = ", shape.num_kv_heads, ", head_dim = ", shape.head_dim,
               " and value_head_dim = ", shape.value_head_dim, " at least 1");
    HEED_CHECK(options.batch >= 0 && options.capacity >= 0 && options.window >= 0 && options.sinks >= 0, ShapeError,
               kName, ": batch = ", options.batch, ", capacity = ", options.capacity, ", window = ", options.window,
               " and sinks = ", options.sinks, " can't be negative");
    HEED_CHECK((options.capacity > 0) != (options.window > 0), ShapeError, kName, ": capacity = ", options.capacity,
               " and window = ", options.window, "; give one of them, the tokens that are kept of each sample");
    HEED_CHECK(options.sinks == 0 || options.window > 0, ShapeError, kName, ": sinks = ", options.sinks,
               " tokens are kept by a window, but window = 0");
    HEED_CHECK(options.capacity <= kMostTokens && options.window <= kMostTokens / 4 && options.sinks <= kMostTokens / 4,
               ShapeError, kName, ": capacity = ", options.capacity, ", window = ", options.window,
               " or sinks = ", options.sinks, " is too large");
    lengths_.resize(at(options.batch));
    places_.resize(at(options.batch));
    moving_.resize(at(options.batch));
    starts_.resize(at(options.batch));
  }

  /// Rows of memory for each sample and head. A window has more than it keeps, so that it moves only now and then.
  Index rows() const { return options_.window > 0 ? options_.sinks + options_.window + piece() : options_.capacity; }

  /// Stores k and v (n samples, G, count, D) from sample b and row `row` on.
  virtual void write_rows(Index layer, Index b, Index row, const TensorView<const T, 4>& k,
                          const TensorView<const T, 4>& v) = 0;
  /// Copies rows of all heads, which may overlap.
  virtual void copy_rows(Index layer, Row from, Row to, Index count) = 0;
  /// The call on `count` stored rows of its samples, which begin with b.
  virtual void attend_rows(Index layer, Row first, Index count, const detail::LayerAttention<T>& call,
                           const AnyAttention<T>& attention, Context& context) const = 0;

 private:
  friend class KvStep<T>;
  static constexpr std::string_view kName = "heed::KvCache";
  static constexpr Index kMostTokens = std::numeric_limits<int>::max();

  /// The rows of a sample that hold its keys, oldest first: the sinks, then the recent ones.
  struct Place {
    Index first = 0, count = 0;
    Index end() const { return first + count; }
    bool operator==(const Place&) const = default;
  };

  static std::size_t at(Index b) { return static_cast<std::size_t>(b); }
  std::size_t checked(Index b) const {
    HEED_CHECK(b >= 0 && b < batch(), ShapeError, kName, ": sample ", b, " of B = ", batch(), " does not exist");
    return at(b);
  }
  bool has_dropped(std::size_t b) const { return places_[b].count < lengths_[b]; }
  /// Tokens that a window takes in at once.
  Index piece() const { return options_.window > 0 ? std::max<Index>(32, options_.window / 4) : kMostTokens; }

  /// True when one call serves all samples: they have the same rows and add the same number.
  bool is_uniform(const KvStep<T>& step, Index length) const {
    for (Index b = 1; b < batch(); ++b) {
      if (places_[at(b)] != places_[0]) return false;
      if (step.appends() && step.count(b, length) != step.count(0, length)) return false;
    }
    return true;
  }

  /// attend() of samples b, ..., b + n - 1, which are alike.
  void attend_samples(const KvStep<T>& step, Index b, Index n, const detail::LayerAttention<T>& call,
                      const AnyAttention<T>& attention, Context& context) {
    const Index length = call.q.extent(2), count = step.appends() ? step.count(b, length) : length;
    const Index first = step.appends() ? step.first_row(b, length) : 0;
    const auto part = [&](const auto& x, Index row, Index rows) { return x.slice(0, b, n).slice(2, row, rows); };
    fill_zeros(part(call.out, 0, first));
    fill_zeros(part(call.out, first + count, length - first - count));
    Place place = places_[at(b)];
    for (Index done = 0, taken; done < count; done += taken) {
      taken = step.appends() ? std::min(count - done, piece()) : count;
      detail::LayerAttention<T> rows = call;
      rows.q = part(call.q, first + done, taken);
      rows.out = part(call.out, first + done, taken);
      if (step.appends()) {
        make_room(step.layer(), b, n, place, taken);
        write_rows(step.layer(), b, place.end(), part(call.k, first + done, taken), part(call.v, first + done, taken));
        place.count += taken;
      }
      rows.continuation = continuation(step, length, b, place.count - taken);
      attend_rows(step.layer(), {b, place.first}, place.count, rows, attention, context);
      drop(step.layer(), b, n, place);
    }
    for (Index i = b; i < b + n; ++i) moving_[at(i)] = place;
  }

  /// The place of a call whose first sample is b, and whose queries come after `past` stored tokens.
  detail::Continuation continuation(const KvStep<T>& step, Index length, Index b, Index past) const {
    Index keys = 0;
    for (Index i = 0; i < batch(); ++i) {
      keys = std::max(keys, places_[at(i)].count + (step.appends() ? step.count(i, length) : 0));
    }
    const auto i = [](Index n) { return static_cast<int>(n); };
    detail::Continuation result{i(batch()), i(b), step.appends() ? i(past) : 0, i(step.appends() ? keys : length),
                                i(keys)};
    if (options_.window > 0 && step.appends()) result.recent.emplace(i(options_.window), i(options_.sinks));
    return result;
  }

  /// Moves rows to the front if `count` more do not fit behind them.
  void make_room(Index layer, Index b, Index n, Place& place, Index count) {
    if (options_.window == 0 || place.end() + count <= rows()) return;
    for (Index i = b; i < b + n; ++i) copy_rows(layer, {i, place.first}, {i, 0}, place.count);
    place.first = 0;
  }
  /// Lets go of rows that no later query sees: the sinks move up to the recent ones.
  void drop(Index layer, Index b, Index n, Place& place) {
    const Index most = options_.sinks + options_.window;
    if (options_.window == 0 || place.count <= most) return;
    const Index excess = place.count - most;
    for (Index i = b; options_.sinks > 0 && i < b + n; ++i) {
      copy_rows(layer, {i, place.first}, {i, place.first + excess}, options_.sinks);
    }
    place = {place.first + excess, most};
  }
  void finish_layer(const KvStep<T>& step, Index length) {
    next_layer_ = step.layer() + 1;
    if (next_layer_ < shape_.num_layers) return;
    next_layer_ = 0;
    for (Index b = 0; b < batch(); ++b) lengths_[at(b)] += static_cast<int>(step.count(b, length));
    places_ = moving_;
  }
  static void fill_zeros(const TensorView<T, 4>& x) {
    for (Index b = 0; b < x.extent(0); ++b) {
      for (Index h = 0; h < x.extent(1); ++h) {
        for (Index l = 0; l < x.extent(2); ++l) {
          for (Index d = 0; d < x.extent(3); ++d) x(b, h, l, d) = T(0);
        }
      }
    }
  }

  KvShape shape_;
  KvCacheOptions options_;
  std::vector<int> lengths_;
  std::vector<Index> starts_;           // of the positions of a call
  std::vector<Place> places_, moving_;  // moving_: after the layer that is called
  Index next_layer_ = 0;
};

template <class T>
Positions KvStep<T>::positions(Index length) const {
  for (Index b = 0; b < cache_->batch(); ++b) {
    cache_->starts_[AnyKvCache<T>::at(b)] = cache_->length(b) - first_row(b, length);
  }
  return Positions::padded_left(cache_->starts_);
}

namespace detail {

template <class T>
inline constexpr Part kind_v<KvStep<T>> = Part::KeyValues;
template <class T>
inline constexpr Part kind_v<AnyKvCache<T>> = Part::KeyValues;

/// A layer's attention: to its own keys and values, or to those in a cache, which they join.
template <class T>
void attend(const LayerAttention<T>& call, const AnyAttention<T>& attention, const KvStep<T>& kv, Context& context) {
  if (kv)
    kv.cache().attend(kv, call, attention, context);
  else
    attention.attend(call, context);
}

/// The step among the parts of a layer's call; none without a cache.
template <class T, class... Parts>
KvStep<T> step_of(Parts&... parts) {
  if constexpr (count_v<Part::KeyValues, Parts...> == 1)
    return pick<Part::KeyValues>(kNoMask, parts...);
  else
    return {};
}

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
