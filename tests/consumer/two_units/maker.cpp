// SPDX-License-Identifier: MIT
#include "model.hpp"

Model* make_model(bool release_weights) {
  Model* model = new Model;
  heed::Random random(1);
  model->layer.initialize(random);
  model->layer.pack({.release = release_weights});
  return model;
}
