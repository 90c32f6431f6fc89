// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <heed/core/context.hpp>
#include <heed/nn/kv_cache.hpp>

#include "llama.hpp"
#include "sampling.hpp"

namespace generate {

// Texts that a model writes on, side by side: their cache of keys and values, and their tokens so far.
class Session {
 public:
  // Room for `capacity` tokens of each text, or without end, where each token sees the last `window` tokens and the
  // first four; capacity or window is 0.
  Session(const Llama& model, heed::Index texts, heed::Index capacity, heed::Index window);

  // Adds tokens to each text; none to one whose list is empty. Throws heed::ValueError when they do not fit.
  void add(const std::vector<std::vector<int>>& tokens, heed::Context& context);
  // The logits (V) of what follows a text.
  heed::TensorView<const float, 1> logits(heed::Index text) const { return logits_.view()[text]; }
  // All tokens of a text.
  const std::vector<int>& tokens(std::size_t text) const { return tokens_[text]; }
  heed::Index texts() const { return static_cast<heed::Index>(tokens_.size()); }
  // Tokens that still fit.
  heed::Index room(heed::Index text) const;

 private:
  const Llama& model_;
  heed::Index capacity_;
  heed::KvCache<float> kv_;
  std::vector<std::vector<int>> tokens_;
  heed::Tensor<float, 2> logits_, computed_;
};

// Why a text ended.
enum class End { Token, Count, Room, Stopped };

// Writes on: chooses tokens of each text and calls put(text, id) for each, until its end token, or `count` tokens, or
// stop() returns true. An end token is chosen but not put, and not added to the text.
std::vector<End> write_on(Session& session, std::vector<Sampler>& samplers, int end_token, int count,
                          heed::Context& context, const std::function<void(std::size_t, int)>& put,
                          const std::function<bool()>& stop);

}  // namespace generate
