// SPDX-License-Identifier: MIT
// Uses weights that another unit packed. Prints "right" or the text of the EnvironmentError; a wrong number fails.

#include <cmath>
#include <cstdio>
#include <memory>

#include "model.hpp"

int main() {
  for (const bool released : {false, true}) {
    const std::unique_ptr<Model> model(make_model(released));
    heed::Tensor<float, 3> x(1, 5, 64);
    for (heed::Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(i % 7) * 0.25f - 0.75f;
    try {
      const heed::Tensor<float, 3> packed = model->layer(x);
      heed::Linear<float> plain({.in_features = 64, .out_features = 48});
      heed::Random random(1);
      plain.initialize(random);
      const heed::Tensor<float, 3> right = plain(x);
      for (heed::Index i = 0; i < right.size(); ++i) {
        if (std::abs(packed.data()[i] - right.data()[i]) <= 1e-5f) continue;
        std::printf("element %td is %g instead of %g\n", i, static_cast<double>(packed.data()[i]),
                    static_cast<double>(right.data()[i]));
        return 1;
      }
      std::puts("right");
    } catch (const heed::EnvironmentError& error) {
      std::puts(error.what());
    }
  }
}
