// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Products, which the tests take from heed::compiled.

#include <heed/compiled/attention.hpp>
