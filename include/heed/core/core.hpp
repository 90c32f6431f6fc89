// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The part of core and of the standard library that nearly every header above mask/ uses. Registers, vector math and
/// gemm are included by name.

#include <optional>

#include <heed/core/arguments.hpp>
#include <heed/core/buffer.hpp>
#include <heed/core/context.hpp>
#include <heed/core/random.hpp>
#include <heed/core/scalar.hpp>
