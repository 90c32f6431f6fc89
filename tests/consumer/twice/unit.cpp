// SPDX-License-Identifier: MIT
// Compiles if heed::heed has its include path and its standard.

#include <heed/core/config.hpp>

int main() { return heed::isa()[0] == 0; }
