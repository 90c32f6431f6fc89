// SPDX-License-Identifier: MIT
#pragma once

// The only place that holds the version: CMake, pkg-config and the package version file read it from here.
#define HEED_VERSION_MAJOR 0
#define HEED_VERSION_MINOR 2
#define HEED_VERSION_PATCH 0

#define HEED_VERSION (HEED_VERSION_MAJOR * 10000 + HEED_VERSION_MINOR * 100 + HEED_VERSION_PATCH)
