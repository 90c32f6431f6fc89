// SPDX-License-Identifier: MIT
#include "session.hpp"

#include <algorithm>
#include <limits>

namespace generate {

using heed::Index;
using heed::TensorView;

Session::Session(const Llama& model, Index texts, Index capacity, Index window)
    : model_(model),
      capacity_(capacity),
      kv_(model, {.batch = texts, .capacity = capacity, .window = window, .sinks = window > 0 ? 4 : 0}),
      tokens_(static_cast<std::size_t>(texts)),
      logits_(texts, model.config().vocab_size),
      computed_(texts, model.config().vocab_size) {}

Index Session::room(Index text) const {
  return capacity_ > 0 ? capacity_ - kv_.length(text) : std::numeric_limits<Index>::max();
}

void Session::add(const std::vector<std::vector<int>>& tokens, heed::Context& context) {
  std::vector<int> counts;
  Index longest = 0;
  for (const auto& list : tokens) {
    counts.push_back(static_cast<int>(list.size()));
    longest = std::max(longest, static_cast<Index>(list.size()));
  }
  heed::Tensor<int, 2> ids(texts(), longest);
  std::fill_n(ids.data(), ids.size(), 0);
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    std::copy(tokens[b].begin(), tokens[b].end(), ids.data() + static_cast<Index>(b) * longest);
  }
  model_.step(ids, kv_.step(counts), computed_, context);
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    if (tokens[b].empty()) continue;
    tokens_[b].insert(tokens_[b].end(), tokens[b].begin(), tokens[b].end());
    const TensorView<const float, 1> row = computed_.view()[static_cast<Index>(b)];
    std::copy_n(row.data(), row.size(), &logits_(static_cast<Index>(b), 0));
  }
}

std::vector<End> write_on(Session& session, std::vector<Sampler>& samplers, int end_token, int count,
                          heed::Context& context, const std::function<void(std::size_t, int)>& put,
                          const std::function<bool()>& stop) {
  const auto texts = static_cast<std::size_t>(session.texts());
  std::vector<End> ends(texts, End::Count);
  std::vector<bool> done(texts, false);
  for (int i = 0; i < count; ++i) {
    std::vector<std::vector<int>> next(texts);
    bool any = false;
    for (std::size_t b = 0; b < texts; ++b) {
      if (done[b]) continue;
      const TensorView<const float, 1> logits = session.logits(static_cast<Index>(b));
      const int id = samplers[b].next({logits.data(), static_cast<std::size_t>(logits.size())}, session.tokens(b));
      if (id == end_token) {
        ends[b] = End::Token;
        done[b] = true;
        continue;
      }
      put(b, id);
      if (session.room(static_cast<Index>(b)) < 1) {
        ends[b] = End::Room;
        done[b] = true;
        continue;
      }
      next[b] = {id};
      any = true;
    }
    if (!any) break;
    if (stop()) {
      for (std::size_t b = 0; b < texts; ++b) {
        if (!done[b]) ends[b] = End::Stopped;
      }
      break;
    }
    if (i + 1 < count) session.add(next, context);
  }
  return ends;
}

}  // namespace generate
