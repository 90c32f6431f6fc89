# SPDX-License-Identifier: MIT
# Compiling for WebAssembly with Debian's emscripten; node runs the tests, which see the files of this machine. Eigen
# takes its SSE2 code, which emscripten turns into SIMD128.

include(/usr/share/emscripten/cmake/Modules/Platform/Emscripten.cmake)
set(CMAKE_CXX_FLAGS_INIT "-msse2 -msimd128 -fexceptions")
set(CMAKE_C_FLAGS_INIT "-fexceptions")
set(CMAKE_EXE_LINKER_FLAGS_INIT
  "-fexceptions -sALLOW_MEMORY_GROWTH -sSTACK_SIZE=4MB -sNODERAWFS -sEXIT_RUNTIME -sENVIRONMENT=node")

set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
