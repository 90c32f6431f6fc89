// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// The part of core that nearly every header above mask/ uses. Registers, vector math and gemm are included by name.

#include <heed/core/arguments.hpp>
#include <heed/core/buffer.hpp>
#include <heed/core/config.hpp>
#include <heed/core/context.hpp>
#include <heed/core/error.hpp>
#include <heed/core/observer.hpp>
#include <heed/core/parallel.hpp>
#include <heed/core/random.hpp>
#include <heed/core/scalar.hpp>
#include <heed/core/tensor.hpp>
#include <heed/core/workspace.hpp>
