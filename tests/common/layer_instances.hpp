// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Layers, which the tests take from heed::compiled.

#include <heed/compiled/layers.hpp>
