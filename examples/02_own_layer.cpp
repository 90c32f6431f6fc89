// SPDX-License-Identifier: MIT
// A layer and a model of your own: a list of members gives them starting values, training, files and packing.
#include <cstdio>

#include <heed/heed.hpp>

using heed::Context;
using heed::Index;
using In = heed::TensorView<const float, 3>;
using Out = heed::TensorView<float, 3>;

// y = up(gelu(down(x))): a bottleneck, which heed does not have.
struct Adapter : heed::Layer<Adapter> {
  using Scalar = float;
  // A backward needs what its forward computed.
  struct Cache {
    In x;
    heed::Linear<float>::Cache down, up;
    heed::GELU::Cache<float> gelu;
    heed::Buffer<float> hidden, active;
  };
  heed::Linear<float> down{8, 4}, up{4, 8};
  heed::GELU gelu;

  static void members(auto&& f) {
    f("down", &Adapter::down);
    f("up", &Adapter::up);
  }
  void run(const In& x, const Out& y, Cache* cache, Context& context) const {
    Cache own;
    Cache& c = cache ? *cache : own;
    const Out hidden = c.hidden.view<3>({x.extent(0), x.extent(1), 4}), active = c.active.view<3>(hidden.extents());
    c.x = x;
    down.forward(x, hidden, c.down, context);
    gelu.forward(hidden, active, c.gelu, context);
    up.forward(active, y, c.up, context);
  }
  void run_backward(const In& dy, const Out& dx, Cache& cache, Context& context) {
    const heed::Workspace::Frame frame(context.workspace());
    const Out d = context.workspace().tensor<float, 3>({dy.extent(0), dy.extent(1), 4});
    up.backward(dy, d, cache.up, context);
    gelu.backward(d, d, cache.gelu, context);
    down.backward(d, dx, cache.down, context);
  }
};

// Words to one of three classes each.
struct Tagger : heed::Module<Tagger> {
  heed::Embedding<float> embedding{{.vocab_size = 12, .embed_dim = 8}};
  heed::Encoder<float> encoder{{.num_layers = 1, .layer = {.embed_dim = 8, .num_heads = 2}}};
  Adapter adapter;
  heed::Linear<float> head{8, 3};

  static void members(auto&& f) {
    f("embedding", &Tagger::embedding);
    f("encoder", &Tagger::encoder);
    f("adapter", &Tagger::adapter);
    f("head", &Tagger::head);
  }

  struct Cache {
    heed::Embedding<float>::Cache embedding;
    heed::Encoder<float>::Cache encoder;
    Adapter::Cache adapter;
    heed::Linear<float>::Cache head;
    heed::Buffer<float> memory[3], gradients[2];
  };
  void forward(heed::TensorView<const int, 2> ids, Out y, Cache& c, Context& context) const {
    Out x[3];
    for (int i = 0; i < 3; ++i) x[i] = c.memory[i].view<3>({ids.extent(0), ids.extent(1), 8});
    embedding.forward(ids, x[0], c.embedding, context);
    encoder.forward(x[0], heed::Causal{}, x[1], c.encoder, context);
    adapter.forward(x[1], x[2], c.adapter, context);
    head.forward(x[2], y, c.head, context);
  }
  void backward(In dy, Cache& c, Context& context) {
    Out d[2];
    for (int i = 0; i < 2; ++i) d[i] = c.gradients[i].view<3>({dy.extent(0), dy.extent(1), 8});
    head.backward(dy, d[0], c.head, context);
    adapter.backward(d[0], d[1], c.adapter, context);
    encoder.backward(d[1], d[0], c.encoder, context);
    embedding.backward(d[0], c.embedding, context);
  }
};

int main() {
  Tagger model;
  heed::Random random(1);
  model.initialize(random);
  std::printf("%d parameters\n", static_cast<int>(heed::parameter_count(model)));

  // The class of a word is its number modulo 3.
  heed::Tensor<int, 2> ids(2, 6), targets(2, 6);
  for (Index i = 0; i < ids.size(); ++i) {
    ids.data()[i] = static_cast<int>(i * 7 % 12);
    targets.data()[i] = ids.data()[i] % 3;
  }
  Context context;
  Tagger::Cache cache;
  heed::AdamW<float> optimizer(model, {.learning_rate = 0.01});
  heed::Tensor<float, 3> logits(2, 6, 3);
  for (int step = 0; step <= 40; ++step) {
    optimizer.zero_grad();
    model.forward(ids, logits, cache, context);
    // The gradient replaces the logits.
    const double loss = heed::cross_entropy(logits, targets, logits, {}, context).value;
    if (step % 10 == 0) std::printf("step %2d: loss %.3f\n", step, loss);
    model.backward(logits, cache, context);
    optimizer.step(context, {.clip = 1});
  }
}
