// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Takes the templates that heed::compiled holds from there instead of instantiating them again. heed.hpp includes
/// this; a program that includes single headers includes it, too, or the part of compiled/ that it needs. Without the
/// CMake target heed::compiled nothing changes.

#include <heed/compiled/attention.hpp>
#include <heed/compiled/layers.hpp>
#include <heed/compiled/recurrent.hpp>
