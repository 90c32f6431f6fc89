// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Includes all of heed/inspect: recording, pictures, pages and diagnostics of attention.

#include <heed/inspect/diagnostics.hpp>
#include <heed/inspect/grid.hpp>
#include <heed/inspect/heatmap.hpp>
#include <heed/inspect/html.hpp>
#include <heed/inspect/lint.hpp>
#include <heed/inspect/png.hpp>
#include <heed/inspect/recorder.hpp>
