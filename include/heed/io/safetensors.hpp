// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// Reads and writes safetensors files, the common format of published weights.
///
///     const heed::SafeTensors file = heed::SafeTensors::open("model.safetensors");
///     const heed::Tensor<float, 2> weight = file.read<float, 2>("embeddings.weight");
///     heed::save_safetensors("copy.safetensors", {{"embeddings.weight", weight}}, {{"made by", "me"}});

#include <set>

#include <heed/core/simd.hpp>
#include <heed/io/atomic_file.hpp>
#include <heed/io/file.hpp>
#include <heed/io/safetensors_header.hpp>

HEED_NAMESPACE_BEGIN

/// Floating-point types of tensors in files: float, double, half, bfloat16.
template <class T>
concept FloatElement = std::is_same_v<T, float> || std::is_same_v<T, double> || is_narrow_v<T>;

namespace detail {

/// Calls f(S{}) with the C++ type S of a stored type.
template <class F>
auto with_float_type(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::F64:
      return f(double{});
    case Dtype::F16:
      return f(half{});
    case Dtype::BF16:
      return f(bfloat16{});
    default:
      return f(float{});
  }
}
template <class F>
auto with_integer_type(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::I64:
      return f(std::int64_t{});
    case Dtype::I32:
      return f(std::int32_t{});
    case Dtype::I16:
      return f(std::int16_t{});
    case Dtype::I8:
      return f(std::int8_t{});
    case Dtype::U64:
      return f(std::uint64_t{});
    case Dtype::U32:
      return f(std::uint32_t{});
    case Dtype::U16:
      return f(std::uint16_t{});
    default:
      return f(std::uint8_t{});
  }
}

/// Calls f(block, first, count) for blocks of elements, copied since the bytes may be unaligned. Stops if f returns
/// false.
template <class S, class F>
bool for_each_block(std::span<const std::byte> bytes, F&& f) {
  std::array<S, 512> block;
  const std::size_t size = bytes.size() / sizeof(S);
  for (std::size_t first = 0; first < size; first += block.size()) {
    const std::size_t count = std::min(block.size(), size - first);
    std::memcpy(static_cast<void*>(block.data()), bytes.data() + first * sizeof(S), count * sizeof(S));
    if (!f(block.data(), first, count)) return false;
  }
  return true;
}

/// True if T can represent every S.
template <class S, class T>
inline constexpr bool is_widening_v =
    std::is_same_v<S, T> || std::is_same_v<T, double> || (std::is_same_v<T, float> && is_narrow_v<S>);

template <class T>
bool is_infinite(T x) {
  return magnitude_bits(static_cast<double>(x)) == magnitude_bits(infinity<double>());
}

/// The first finite element that would become infinite in T.
template <class T, class S>
std::optional<double> first_beyond(std::span<const std::byte> bytes) {
  std::optional<double> beyond;
  if constexpr (!is_widening_v<S, T>) {
    for_each_block<S>(bytes, [&](const S* block, std::size_t, std::size_t count) {
      const S* found =
          std::find_if(block, block + count, [](S x) { return is_infinite(static_cast<T>(x)) && !is_infinite(x); });
      if (found != block + count) beyond = static_cast<double>(*found);
      return !beyond;
    });
  }
  return beyond;
}

}  // namespace detail

/// An open, validated safetensors file, or the files of one model with their index. Several threads may read from one
/// object.
class SafeTensors {
 public:
  /// Maps the file into memory (or reads it if mapping is not supported) and validates the header. A path that ends in
  /// .json is an index: all files that it names, next to it, are opened as if they were one. A directory means its
  /// model.safetensors.index.json or its model.safetensors. While the object
  /// exists, replace the file only by renaming another over it, as save_safetensors() does; never truncate it.
  /// Throws FormatError, with the tensor and the reason, if the file cannot be opened, is truncated or inconsistent.
  /// Tensors of a type that heed does not read, such as C64, have names, shapes and bytes; only reading them throws.
  static SafeTensors open(const std::string& path) {
    if (const std::string index = path + "/model.safetensors.index.json"; detail::can_be_opened(index))
      return open_index(index);
    if (const std::string inside = path + "/model.safetensors"; detail::can_be_opened(inside)) return open(inside);
    if (path.ends_with(".json")) return open_index(path);
    SafeTensors tensors(path);
    detail::MappedFile file = detail::MappedFile::open(path);
    const std::span<const std::byte> bytes = file.bytes();
    tensors.add(std::move(file), bytes, path);
    return tensors;
  }
  /// Reads bytes in memory, which must outlive the object. `name` replaces the path in messages. Throws as open() does.
  static SafeTensors from_memory(std::span<const std::byte> bytes, std::string_view name = "(memory)") {
    SafeTensors tensors(name);
    tensors.add({}, bytes, name);
    return tensors;
  }

  /// Views of the other object stay valid.
  SafeTensors(SafeTensors&&) noexcept = default;
  /// Views of the other object stay valid, those of this one do not.
  SafeTensors& operator=(SafeTensors&&) noexcept = default;

  /// The names of all tensors, in the order of their data.
  const std::vector<std::string>& names() const& { return header_.names; }
  /// The same of a temporary object, as a copy.
  std::vector<std::string> names() const&& { return header_.names; }
  /// True if there is a tensor of this name.
  bool contains(std::string_view name) const { return header_.tensors.find(name) != header_.tensors.end(); }
  /// The free text that the writer of the file added.
  const Metadata& metadata() const& { return header_.metadata; }
  /// The same of a temporary object, as a copy.
  Metadata metadata() const&& { return header_.metadata; }
  /// The path in quotes, for messages.
  const std::string& file() const& { return file_; }
  /// The same of a temporary object, as a copy.
  std::string file() const&& { return file_; }

  /// Type and shape. Throws FormatError if there is no tensor of this name, as the functions below do.
  const TensorInfo& info(std::string_view name) const& {
    const auto entry = header_.tensors.find(name);
    if (entry == header_.tensors.end()) {
      std::string some;
      for (std::size_t i = 0; i < std::min<std::size_t>(3, names().size()); ++i) {
        some += (i ? ", " : "; it has ") + detail::in_quotes(names()[i]);
      }
      detail::raise<FormatError>("heed::SafeTensors: file ", file_, " has no tensor ", detail::in_quotes(name), some,
                                 names().size() > 3 ? " and " + std::to_string(names().size() - 3) + " more" : "");
    }
    return entry->second;
  }
  /// The same of a temporary object, as a copy.
  TensorInfo info(std::string_view name) const&& { return info(name); }
  /// The stored type.
  Dtype dtype(std::string_view name) const { return info(name).dtype; }
  /// The extents.
  const std::vector<Index>& shape(std::string_view name) const& { return info(name).shape; }
  /// The same of a temporary object, as a copy.
  std::vector<Index> shape(std::string_view name) const&& { return info(name).shape; }
  /// The stored bytes: row-major, little endian, possibly unaligned. A temporary object has none.
  std::span<const std::byte> bytes(std::string_view name) const& { return bytes_of(info(name)); }
  void bytes(std::string_view name) const&& = delete;

  /// A view of the tensor in the file, without a copy; nothing if it is stored as another type or not aligned for T.
  /// The object must outlive the view, and a temporary one has none. Throws FormatError if the rank differs.
  template <class T, int Rank>
  std::optional<TensorView<const T, Rank>> view(std::string_view name) const& {
    static_assert(!std::is_same_v<T, bool>, "heed: the bytes of a BOOL are unchecked; use read_integers<bool, Rank>");
    const TensorInfo& tensor = info(name);
    const Extents<Rank> extents = extents_of<Rank>(name, tensor);
    const std::byte* data = bytes_of(tensor).data();
    if (tensor.dtype != detail::dtype_of<T>() || reinterpret_cast<std::uintptr_t>(data) % alignof(T) != 0) {
      return std::nullopt;
    }
    return TensorView<const T, Rank>(reinterpret_cast<const T*>(data), extents);
  }
  template <class T, int Rank>
  void view(std::string_view name) const&& = delete;

  /// Copies a tensor and converts it from the stored floating-point type to T: read<float, 2>("weight"). A scalar reads
  /// as rank 1. Throws FormatError if the rank differs, the tensor contains integers, or a finite number exceeds T.
  template <FloatElement T, int Rank>
  Tensor<T, Rank> read(std::string_view name) const {
    Tensor<T, Rank> tensor(extents_of<Rank>(name, info(name)));
    read_into(name, std::span<T>(tensor.data(), static_cast<std::size_t>(tensor.size())));
    return tensor;
  }
  /// Copies a tensor into `to` in row-major order. Throws as read() does, and FormatError if `to` has another size;
  /// nothing is written then.
  template <FloatElement T>
  void read_into(std::string_view name, std::span<T> to) const {
    const TensorInfo& tensor = info(name);
    require_readable<T>(name);
    HEED_CHECK(to.size() == element_count(tensor), FormatError, where(name), "has shape ",
               detail::shape_text(tensor.shape), ", but `to` has ", to.size(),
               " elements; allocate as many as info(name).shape requires");
    const std::span<const std::byte> bytes = bytes_of(tensor);
    detail::with_float_type(tensor.dtype, [&]<class S>(S) {
      if constexpr (std::is_same_v<S, T>) {
        if (!bytes.empty()) std::memcpy(static_cast<void*>(to.data()), bytes.data(), bytes.size());
      } else {
        detail::for_each_block<S>(bytes, [&](const S* block, std::size_t first, std::size_t count) {
          detail::convert_row(block, 1, static_cast<Index>(count), to.data() + first);
          return true;
        });
      }
    });
  }
  /// Throws the FormatError that read<T>() would throw, except for a wrong rank.
  template <FloatElement T>
  void require_readable(std::string_view name) const {
    const TensorInfo& tensor = info(name);
    HEED_CHECK(is_float(tensor.dtype), FormatError, where(name), "holds ", dtype_name(tensor),
               is_integer(tensor.dtype) ? ", not floating-point numbers; read it with read_integers" : kNotRead);
    const std::optional<double> beyond =
        detail::with_float_type(tensor.dtype, [&]<class S>(S) { return detail::first_beyond<T, S>(bytes_of(tensor)); });
    HEED_CHECK(!beyond, FormatError, where(name), "is ", to_string(tensor.dtype), " and holds ", *beyond, ", which ",
               to_string(detail::dtype_of<T>()), " cannot represent; read it as a wider type");
  }

  /// Copies a tensor of integers or booleans: read_integers<int, 2>("position_ids"). Throws FormatError if the rank
  /// differs, the tensor contains floating-point numbers, or a value exceeds I.
  template <std::integral I, int Rank>
  Tensor<I, Rank> read_integers(std::string_view name) const {
    const TensorInfo& tensor = info(name);
    Tensor<I, Rank> result(extents_of<Rank>(name, tensor));
    HEED_CHECK(is_integer(tensor.dtype), FormatError, where(name), "holds ", dtype_name(tensor),
               is_float(tensor.dtype) ? ", not integers; read it with read" : kNotRead);
    detail::with_integer_type(tensor.dtype, [&]<class S>(S) {
      detail::for_each_block<S>(bytes_of(tensor), [&](const S* block, std::size_t first, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
          HEED_CHECK(tensor.dtype != Dtype::Bool || block[i] <= 1, FormatError, where(name), "is BOOL, but element ",
                     first + i, " is ", block[i], "; booleans are 0 or 1");
          HEED_CHECK(fits<I>(block[i]), FormatError, where(name), "holds ", block[i], " at element ", first + i,
                     ", which the requested integer type cannot represent; use a wider one");
          result.data()[first + i] = static_cast<I>(block[i]);
        }
        return true;
      });
    });
    return result;
  }

 private:
  /// One file with its data.
  struct Shard {
    detail::MappedFile memory;
    std::string file;
    std::span<const std::byte> data;
  };

  explicit SafeTensors(std::string_view path) : file_(detail::in_quotes(path, path.size())) {}

  static SafeTensors open_index(const std::string& path) {
    SafeTensors tensors(path);
    const detail::MappedFile index = detail::MappedFile::open(path);
    const std::string_view text{reinterpret_cast<const char*>(index.bytes().data()), index.bytes().size()};
    const Metadata files = detail::HeaderParser(text, tensors.file_).parse_index();
    const std::string directory = path.substr(0, path.find_last_of('/') + 1);
    std::map<std::string, std::size_t, std::less<>> opened;
    for (const auto& [name, file] : files) {
      // The index may be malicious; its files are next to it.
      constexpr std::string_view outside("/\\\0", 3);
      HEED_CHECK(!file.empty() && file.find_first_of(outside) == std::string::npos, FormatError,
                 "heed::SafeTensors: file ", tensors.file_, ", tensor ", detail::in_quotes(name), ": its file ",
                 detail::in_quotes(file), " must be a name without directories");
      if (!opened.try_emplace(file, tensors.shards_.size()).second) continue;
      detail::MappedFile memory = detail::MappedFile::open(directory + file);
      const std::span<const std::byte> bytes = memory.bytes();
      tensors.add(std::move(memory), bytes, directory + file);
    }
    for (const auto& [name, file] : files) {
      const auto entry = tensors.header_.tensors.find(name);
      HEED_CHECK(entry != tensors.header_.tensors.end() && entry->second.shard == opened.find(file)->second,
                 FormatError, "heed::SafeTensors: file ", tensors.file_, ", tensor ", detail::in_quotes(name),
                 ": the index says that it is in ", detail::in_quotes(file), ", but it is in ",
                 entry == tensors.header_.tensors.end() ? "no file" : tensors.shards_[entry->second.shard].file);
    }
    return tensors;
  }

  void add(detail::MappedFile memory, std::span<const std::byte> bytes, std::string_view path) {
    Shard shard{std::move(memory), detail::in_quotes(path, path.size()), {}};
    auto [header, data_begin] =
        detail::read_header({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, shard.file);
    shard.data = bytes.subspan(static_cast<std::size_t>(data_begin));
    for (auto& [name, info] : header.tensors) {
      info.shard = shards_.size();
      const auto [entry, is_new] = header_.tensors.try_emplace(name, std::move(info));
      HEED_CHECK(is_new, FormatError, "heed::SafeTensors: tensor ", detail::in_quotes(name), " is in two files of ",
                 file_, ": ", shards_[entry->second.shard].file, " and ", shard.file);
    }
    header_.names.insert(header_.names.end(), header.names.begin(), header.names.end());
    header_.metadata.merge(header.metadata);
    shards_.push_back(std::move(shard));
  }

  static constexpr const char* kNotRead =
      ", which heed does not read; convert it to F64, F32, F16, BF16, I8 to I64, U8 to U64 or BOOL, or take "
      "bytes(name)";
  std::string where(std::string_view name) const {
    return "heed::SafeTensors: file " + shards_[info(name).shard].file + ", tensor " + detail::in_quotes(name) +
           ": it ";
  }
  std::span<const std::byte> bytes_of(const TensorInfo& tensor) const {
    return shards_[tensor.shard].data.subspan(static_cast<std::size_t>(tensor.begin),
                                              static_cast<std::size_t>(tensor.end - tensor.begin));
  }
  static std::size_t element_count(const TensorInfo& tensor) {
    return static_cast<std::size_t>((tensor.end - tensor.begin) / size_of(tensor.dtype));
  }

  template <int Rank>
  Extents<Rank> extents_of(std::string_view name, const TensorInfo& tensor) const {
    if (Rank == 1 && tensor.shape.empty()) return Extents<Rank>{1};
    HEED_CHECK(tensor.shape.size() == static_cast<std::size_t>(Rank), FormatError, where(name), "has shape ",
               detail::shape_text(tensor.shape), ", not rank ", Rank, "; read it with rank ", tensor.shape.size());
    Extents<Rank> extents{};
    std::copy(tensor.shape.begin(), tensor.shape.end(), extents.begin());
    HEED_CHECK(
        std::all_of(extents.begin(), extents.end(), [](Index e) { return e <= std::numeric_limits<int>::max(); }),
        FormatError, where(name), "has shape ", detail::shape_text(tensor.shape),
        ", but an extent of a heed tensor is at most 2147483647; use bytes(name)");
    return extents;
  }

  template <std::integral I, class S>
  static bool fits(S value) {
    // std::in_range does not accept bool.
    if constexpr (std::is_signed_v<S>) {
      if (value < 0) {
        return std::is_signed_v<I> && std::int64_t{value} >= static_cast<std::int64_t>(std::numeric_limits<I>::min());
      }
    }
    return static_cast<std::uint64_t>(value) <= static_cast<std::uint64_t>(std::numeric_limits<I>::max());
  }

  std::string file_;
  detail::SafeTensorsHeader header_;
  std::vector<Shard> shards_;
};

/// A tensor and its name in a file: {"weight", tensor}. Borrows the memory of a Tensor, a view or an Eigen matrix with
/// any strides. Eigen vectors become tensors of rank 1, Eigen matrices tensors of rank 2.
class NamedTensor {
 public:
  /// x must outlive the object.
  template <class Argument>
  requires TensorLike<std::remove_reference_t<Argument>>
  NamedTensor(std::string_view name, Argument&& x) : name_(name) {
    using X = std::remove_cvref_t<Argument>;
    static_assert(detail::outlives_v<Argument>,
                  "heed::NamedTensor borrows memory: this temporary would be gone; give it a name");
    static_assert(AnyTensor<X> || EigenDirect<X>, "heed: to save an Eigen expression, evaluate it into a matrix first");
    using T = scalar_of_t<X>;
    static_assert(FloatElement<T> || std::is_integral_v<T>);
    const auto view = view_of(std::as_const(x));
    info_.dtype = detail::dtype_of<T>();
    info_.shape.assign(view.extents().begin(), view.extents().end());
    strides_.assign(view.strides().begin(), view.strides().end());
    if constexpr (EigenDense<X>) {
      if constexpr (X::IsVectorAtCompileTime) {
        info_.shape = {x.size()};
        strides_ = {x.innerStride()};
      }
    }
    data_ = reinterpret_cast<const std::byte*>(view.data());
    is_contiguous_ = view.is_contiguous();
  }

  /// The name in the file.
  std::string_view name() const { return name_; }
  /// Type and shape.
  const TensorInfo& info() const { return info_; }

  /// Calls put(bytes, count) until all elements have been passed in row-major order.
  template <class Put>
  void write(Put&& put) const {
    const std::size_t bytes = static_cast<std::size_t>(size_of(info_.dtype));
    if (std::find(info_.shape.begin(), info_.shape.end(), 0) != info_.shape.end()) return;
    if (is_contiguous_) {
      std::size_t total = bytes;
      for (const Index e : info_.shape) total *= static_cast<std::size_t>(e);
      put(data_, total);
      return;
    }
    // Row by row: `at` counts through the leading dimensions, and the last dimension is gathered.
    const std::size_t last = info_.shape.size() - 1;
    std::vector<std::byte> row(static_cast<std::size_t>(info_.shape[last]) * bytes);
    std::vector<Index> at(last, 0);
    for (;;) {
      Index offset = 0;
      for (std::size_t d = 0; d < last; ++d) offset += at[d] * strides_[d];
      const auto size = static_cast<Index>(bytes);
      for (Index i = 0; i < info_.shape[last]; ++i) {
        std::memcpy(row.data() + i * size, data_ + (offset + i * strides_[last]) * size, bytes);
      }
      put(row.data(), row.size());
      std::size_t d = last;
      while (d > 0 && ++at[d - 1] == info_.shape[d - 1]) at[--d] = 0;
      if (d == 0) return;
    }
  }

 private:
  std::string name_;
  TensorInfo info_;
  std::vector<Index> strides_;
  const std::byte* data_ = nullptr;
  bool is_contiguous_ = true;
};

/// Writes tensors to a file, without converting their types. The file is replaced atomically. Wider types come first,
/// so that every tensor is aligned; tensors of equal width keep their order. Throws ValueError if a name occurs twice,
/// is "__metadata__" or not UTF-8, and FormatError if the file cannot be written.
inline void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                             const Metadata& metadata = {}) {
  constexpr const char* function = "heed::save_safetensors: ";
  std::set<std::string_view> names;
  for (const NamedTensor& tensor : tensors) {
    HEED_CHECK(detail::is_utf8(tensor.name()), ValueError, function, "the name ", detail::in_quotes(tensor.name()),
               " is not valid UTF-8, which the format requires");
    HEED_CHECK(tensor.name() != "__metadata__", ValueError, function,
               "the format reserves the name \"__metadata__\"; choose another");
    HEED_CHECK(names.insert(tensor.name()).second, ValueError, function, "the name ", detail::in_quotes(tensor.name()),
               " is given to two tensors; names must be unique");
  }
  for (const auto& [key, value] : metadata) {
    HEED_CHECK(detail::is_utf8(key) && detail::is_utf8(value), ValueError, function, "the metadata ",
               detail::in_quotes(key), " is not valid UTF-8, which the format requires");
  }

  std::vector<const NamedTensor*> in_order;
  in_order.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) in_order.push_back(&tensor);
  // Not std::stable_sort, for which clang 19 warns of a deprecated function of libstdc++.
  std::sort(in_order.begin(), in_order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const std::uint64_t a_size = size_of(a->info().dtype), b_size = size_of(b->info().dtype);
    return a_size != b_size ? a_size > b_size : a < b;
  });
  std::vector<std::pair<std::string_view, TensorInfo>> listed;
  std::uint64_t end = 0;
  for (const NamedTensor* tensor : in_order) {
    TensorInfo info = tensor->info();
    info.begin = end;
    // Views may repeat elements (stride 0), so even this product is checked.
    const std::optional<std::uint64_t> bytes = detail::checked_bytes(info.dtype, info.shape);
    HEED_CHECK(bytes && end <= static_cast<std::uint64_t>(std::numeric_limits<Index>::max()) - *bytes, ValueError,
               function, "tensor ", detail::in_quotes(tensor->name()), " of shape ", detail::shape_text(info.shape),
               " makes the file larger than 63 bits can address");
    info.end = end += *bytes;
    listed.emplace_back(tensor->name(), std::move(info));
  }
  const std::string header = detail::write_header(listed, metadata);
  HEED_CHECK(header.size() - 8 <= detail::kMaxHeaderBytes, ValueError, function, "names and metadata make a header of ",
             header.size() - 8, " bytes, but a header may have ", detail::kMaxHeaderBytes);

  detail::AtomicFile file(path, "heed::save_safetensors");
  file.write(header.data(), header.size());
  for (const NamedTensor* tensor : in_order) {
    tensor->write([&](const std::byte* bytes, std::size_t count) { file.write(bytes, count); });
  }
  file.commit();
}

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
