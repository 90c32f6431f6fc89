// SPDX-License-Identifier: MIT
// Bytes of a file that is closed at the end of the statement.
// expect: deleted

#include <heed/io/safetensors.hpp>

std::size_t size() {
#ifdef MUST_NOT_COMPILE
  return heed::SafeTensors::open("model.safetensors").bytes("bias").size();
#else
  const heed::SafeTensors file = heed::SafeTensors::open("model.safetensors");
  return file.bytes("bias").size();
#endif
}
