// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Kernels, which the tests take from heed::compiled.

#include <heed/compiled/attention.hpp>
