# SPDX-License-Identifier: MIT
# Compiling for WebAssembly with Debian's emscripten; node runs the tests, which see the files of this machine. Eigen
# takes its SSE2 code, which emscripten turns into SIMD128: without the header of MMX, and as for a g++ between those that
# Eigen works around with x86 assembly.

include(/usr/share/emscripten/cmake/Modules/Platform/Emscripten.cmake)
set(CMAKE_C_FLAGS_INIT -fexceptions)
set(CMAKE_CXX_FLAGS_INIT "-msse2 -msimd128 -D__MMINTRIN_H -fgnuc-version=5.13 -fexceptions")
set(CMAKE_EXE_LINKER_FLAGS_INIT
  "-sALLOW_MEMORY_GROWTH -sTOTAL_STACK=4MB -sNODERAWFS -sEXIT_RUNTIME -sENVIRONMENT=node")
set(CMAKE_CROSSCOMPILING_EMULATOR node --no-experimental-fetch)

set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
# There are no threads without flags of the whole program; heed's executor is Serial.
set(CMAKE_HAVE_LIBC_PTHREAD TRUE)
