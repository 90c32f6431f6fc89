// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// HEED_USES_COMPILED: 1 in a translation unit that takes its instances from heed::compiled, else 0.
///
/// The CMake target heed::compiled defines HEED_COMPILED, and its build writes <heed_compiled_abi.hpp>, which defines
/// HEED_COMPILED_<tag> for the tag of the namespace that it was compiled in. A translation unit with another tag (other
/// instruction set, Eigen or exceptions) instantiates what it needs, as without heed::compiled: slower to compile,
/// never wrong.

#include <heed/core/config.hpp>

#if defined(HEED_COMPILED)
#include <heed_compiled_abi.hpp>
#define HEED_COMPILED_FOR_(tag) HEED_COMPILED_##tag
#define HEED_COMPILED_FOR(tag) HEED_COMPILED_FOR_(tag)
#if HEED_COMPILED_FOR(HEED_ABI)
#define HEED_USES_COMPILED 1
#endif
#endif

#if !defined(HEED_USES_COMPILED)
/// 1 where the instances of heed::compiled are used, else 0.
#define HEED_USES_COMPILED 0
#endif
