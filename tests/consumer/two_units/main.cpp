// SPDX-License-Identifier: MIT
// Prints the hash of the results of each unit: -DUNITS="X(a) X(b)" names them.

#include <cinttypes>
#include <cstdint>
#include <cstdio>

#define X(unit) std::uint64_t unit();
UNITS
#undef X

int main() {
#define X(unit) std::printf("%s %016" PRIx64 "\n", #unit, unit());
  UNITS
#undef X
}
