// SPDX-License-Identifier: MIT
// Calls from every part of the library, as a program of a user makes them: attention of each storage type, a model that
// is trained, saved and loaded, and the pages of its heads. It is compiled with flags, macros and compilers that are
// not those of this build. EVERY_HEADER is a file that includes all headers.

#if defined(EVERY_HEADER)
#include EVERY_HEADER
#endif

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <heed/heed.hpp>
#include <heed/inspect.hpp>

namespace {

int mistakes = 0;

void expect(bool holds, const char* claim) {
  if (holds) return;
  std::printf("it does not hold that %s\n", claim);
  ++mistakes;
}

template <class T>
void attention_of() {
  const int B = 2, H = 2, L = 5, D = 4;
  heed::Tensor<T, 4> q(B, H, L, D), k(B, H, L, D), v(B, H, L, D);
  for (heed::Index i = 0; i < q.size(); ++i) {
    q.data()[i] = static_cast<T>(0.1 * static_cast<double>(i % 7));
    k.data()[i] = static_cast<T>(0.1 * static_cast<double>(i % 5));
    v.data()[i] = static_cast<T>(1);
  }
  const std::vector<int> lengths{5, 3};
  const auto mask = heed::Causal{} & heed::Padding(lengths) & (heed::Window(2, 0) | heed::GlobalTokens(1));
  const auto out = heed::attention(q, k, v, mask, heed::Scale{0.5}, heed::Alibi(H));
  expect((std::abs)(static_cast<double>(out(1, 1, 4, 3)) - 1) < 1e-2, "equal values have themselves as average");

  heed::AnyMask any = heed::Causal{};
  any = heed::NoMask{};
  expect(heed::to_string(any, 2, 2) == "##\n##\n", "an empty mask shows all keys");
}

struct Model : heed::Module<Model> {
  heed::Embedding<float> embedding{{.vocab_size = 12, .embed_dim = 8}};
  heed::EncoderLayer<float> block{
      {.embed_dim = 8, .num_heads = 2, .norm_placement = heed::NormPlacement::Pre, .rotary = {}}};
  heed::LSTM<float> lstm{{.input_size = 8, .hidden_size = 8}};
  heed::Linear<float> head{8, 12};

  static void members(auto&& f) {
    f("embedding", &Model::embedding);
    f("block", &Model::block);
    f("lstm", &Model::lstm);
    f("head", &Model::head);
  }
};

void training() {
  const int B = 2, L = 6;
  Model model;
  heed::Random random(1);
  model.initialize(random);
  heed::AdamW<float> optimizer(model, {.learning_rate = 1e-2});
  heed::Context context;
  heed::Tensor<int, 2> ids(B, L), targets(B, L);
  for (int b = 0; b < B; ++b) {
    for (int l = 0; l < L; ++l) ids(b, l) = targets(b, l) = (3 * b + l) % 12;
  }
  heed::Tensor<float, 3> x(B, L, 8), h(B, L, 8), y(B, L, 8), dy(B, L, 8), dh(B, L, 8), dx(B, L, 8);
  heed::Tensor<float, 3> logits(B, L, 12), dlogits(B, L, 12);
  heed::Embedding<float>::Cache embedding;
  heed::EncoderLayer<float>::Cache block;
  heed::LSTM<float>::Cache lstm;
  heed::Linear<float>::Cache head;
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    model.embedding.forward(ids, x, embedding, context);
    model.block.forward(x, heed::Causal{}, h, block, context);
    model.lstm.forward(h, y, lstm, context);
    model.head.forward(y, logits, head, context);
    last = heed::cross_entropy(logits, targets, dlogits, context).value;
    model.head.backward(dlogits, dy, head, context);
    model.lstm.backward(dy, dh, lstm, context);
    model.block.backward(dh, dx, block, context);
    model.embedding.backward(dx, embedding, context);
    optimizer.step(context, {.clip = 1});
    if (step == 0) first = last;
  }
  expect(last < 0.8 * first, "training lowers the loss");

  const std::string path = "calls.safetensors";
  heed::save_parameters(model, path);
  Model again;
  heed::load_parameters(again, path);
  expect(again.head.weight.matrix()(11, 7) == model.head.weight.matrix()(11, 7),
         "a saved weight is loaded with the same bits");

  const heed::Recorder recorder = heed::record(context, [&] { model.block.forward(x, heed::Causal{}, h, context); });
  expect(!heed::attention_html(recorder).empty(), "a page has text");
  expect(!heed::diagnose(recorder).json().empty(), "a diagnosis has text");
}

struct Numbers : heed::Module<Numbers> {
  heed::Linear<float> first{3, 4}, second{4, 2};
  static void members(auto&& f) {
    f("first", &Numbers::first);
    f("second", &Numbers::second);
  }
};

/// Files with the same bytes on every machine: nothing in them depends on the last bits of a function.
void files() {
  Numbers numbers;
  for (auto* linear : {&numbers.first, &numbers.second}) {
    auto weight = linear->weight.mutable_matrix();
    for (int i = 0; i < weight.extent(0); ++i) {
      for (int j = 0; j < weight.extent(1); ++j) weight(i, j) = static_cast<float>(i - 2 * j) / 8;
    }
    auto bias = linear->bias.mutable_value();
    for (int i = 0; i < bias.extent(0); ++i) bias(i) = static_cast<float>(i) / 4;
  }
  for (int times = 0; times < 2; ++times) heed::save_parameters(numbers, "numbers.safetensors");
  heed::AdamW<float> optimizer(numbers, {.learning_rate = 0.25});
  heed::Context context;
  context.seed = 0x123456789abcdefu;
  heed::save_checkpoint("state.safetensors", numbers, optimizer, context);
  Numbers again;
  heed::AdamW<float> its_optimizer(again, {.learning_rate = 0.25});
  heed::load_checkpoint("state.safetensors", again, its_optimizer, context);
  expect(again.second.weight.matrix()(1, 3) == -0.625f, "a state is loaded with the same numbers");
}

}  // namespace

int main() {
  attention_of<float>();
  attention_of<double>();
  attention_of<heed::half>();
  attention_of<heed::bfloat16>();
  training();
  files();
  return mistakes;
}
