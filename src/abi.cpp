// SPDX-License-Identifier: MIT
// The tag of the namespace that heed::compiled is compiled in, as text that cmake/HeedCompiledAbi.cmake finds.
#include <heed/core/config.hpp>

extern const char heed_compiled_abi[];
const char heed_compiled_abi[] = "heed_compiled_abi=" HEED_STRING(HEED_ABI) ";";
