// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// A type of the program with layers of heed, shared by units with other flags: of the same name in both, though its
/// members are not of the same type.

#include <heed/nn/linear.hpp>

struct Model {
  heed::Linear<float> layer{{.in_features = 64, .out_features = 48}};
};

/// Made and packed by the unit maker.cpp.
Model* make_model(bool release_weights);
