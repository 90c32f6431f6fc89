// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The recurrent layers as one type, for tests that take any of them.

#include <string>
#include <string_view>

#include <heed/compiled/recurrent.hpp>
#include <heed/nn/recurrent.hpp>

namespace recurrent_kinds {

inline constexpr const char* kKinds[] = {"rnn", "rnn_relu", "lstm", "gru"};

template <class T>
heed::Recurrent<T> make(std::string_view kind, const heed::RecurrentOptions& o) {
  if (kind == "lstm") return heed::LSTM<T>(o);
  if (kind == "gru") return heed::GRU<T>(o);
  const auto nonlinearity = kind == "rnn_relu" ? heed::Nonlinearity::Relu : heed::Nonlinearity::Tanh;
  return heed::RNN<T>({o.input_size, o.hidden_size, o.num_layers, o.bidirectional, o.bias, o.dropout, nonlinearity});
}

/// The part after rnn, lstm or gru in the name of a golden file.
inline constexpr const char* kGoldenVariants[] = {"_1_layer", "_1_layer_packed", "_2_layers", "_bidirectional",
                                                  "_2_layers_bidirectional_packed"};

template <class T>
heed::Recurrent<T> golden_layer(std::string_view kind, std::string_view variant) {
  return make<T>(kind, {.input_size = 5,
                        .hidden_size = 6,
                        .num_layers = variant.find("2_layers") != std::string_view::npos ? 2 : 1,
                        .bidirectional = variant.find("bidirectional") != std::string_view::npos});
}

}  // namespace recurrent_kinds
