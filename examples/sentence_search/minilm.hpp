// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <Eigen/Core>

#include <heed/core/context.hpp>
#include <heed/core/tensor.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/norm.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/transformer.hpp>

namespace sentence_search {

// One row a text, each of norm 1: the product of two rows is their cosine, high where the texts mean the same.
using Embeddings = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// all-MiniLM-L6-v2: a BERT encoder of 6 Post-LN blocks of 12 heads, trained so that the mean of its output vectors
// tells the meaning of a sentence. Reimers, Gurevych: "Sentence-BERT", 2019; Wang et al.: "MiniLM", 2020.
class MiniLm {
 public:
  static constexpr int kWidth = 384;
  static constexpr int kLayers = 6;
  static constexpr int kHeads = 12;
  // The ids of a text that the model was trained to embed. Positions go to 512, and so may embed().
  static constexpr std::size_t kMaxLength = 256;

  // Reads model.safetensors, named as Hugging Face's files are. Throws heed::FormatError, which says what does not fit.
  explicit MiniLm(const std::filesystem::path& model_directory);

  // One embedding of kWidth numbers for each text, given by its token ids, 1 to 512 of them. on_done(n) is called
  // whenever n further tokens are done. Texts of any lengths are computed one after the other in one sequence, without
  // padding. Throws heed::ValueError for a text without ids, with too many, or with ids outside the vocabulary.
  Embeddings embed(std::span<const std::vector<int>> texts, heed::Context& context,
                   const std::function<void(std::size_t)>& on_done = {}) const;

  // Names for observers of embed(): the normalized embeddings of the tokens, a block, and its attention layer.
  static std::string embeddings_name() { return "norm"; }
  static std::string block_name(int layer) { return "layers." + std::to_string(layer); }
  static std::string attention_name(int layer) { return block_name(layer) + ".self_attn"; }

  // The parameters, named as the code here names its layers.
  template <class F>
  void visit(std::string_view, F&& f) {
    words_.visit("words", f);
    positions_.visit("positions", f);
    norm_.visit("norm", f);
    encoder_.visit("", f);
  }

 private:
  // Hidden states y (1, L, E) of texts one after the other: ids (1, L), the position of each token in its text, and
  // where each text begins, with L at the end.
  void forward(heed::TensorView<const int, 2> ids, heed::IntSpan positions, heed::IntSpan offsets,
               heed::TensorView<float, 3> y, heed::Context& context) const;

  heed::Embedding<float> words_;
  heed::LearnedPositions<float> positions_;
  heed::LayerNorm<float> norm_;
  heed::Encoder<float> encoder_;
};

}  // namespace sentence_search
