// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Recurrent layers, which the tests take from heed::compiled.

#include <heed/compiled/recurrent.hpp>
