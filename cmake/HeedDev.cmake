# SPDX-License-Identifier: MIT
# heed_dev: warnings, machine and sanitizer flags for our own executables. heed::heed carries none of them.

add_library(heed_dev INTERFACE)
target_link_libraries(heed_dev INTERFACE heed::heed)
target_compile_options(heed_dev INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow
  # g++ 12 warns about undefined operands in its AVX-512 headers (GCC bug 105593).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-maybe-uninitialized>
  $<$<BOOL:${HEED_WERROR}>:-Werror>
  $<$<BOOL:${HEED_NATIVE}>:-march=native>)

# The warnings that headers are free of. heed::compiled, which instantiates most of them, is compiled with these.
set(HEED_STRICT_WARNINGS -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast
  -Wdouble-promotion -Wcast-align -Wnull-dereference -Wundef -Wformat=2)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  list(APPEND HEED_STRICT_WARNINGS -Wuseless-cast)
endif()

if(HEED_SANITIZE)
  list(JOIN HEED_SANITIZE "," sanitizers)
  # Frame pointers for readable reports; a finding ends the program, so that a test cannot pass over it.
  set(sanitizer_flags -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # Kernels are made of many small inlined functions, in which these checks alone multiply the time to compile by four.
  # A null pointer stops the program anyway; what object-size looks for, the address sanitizer finds.
  # A finding traps, and the address sanitizer reports the place (HeedTests.cmake). A report of the kind of mistake, too,
  # would take a call with its operands at each place.
  if("undefined" IN_LIST HEED_SANITIZE)
    list(APPEND sanitizer_flags -fno-sanitize=null,object-size -fsanitize-undefined-trap-on-error)
  endif()
  if("address" IN_LIST HEED_SANITIZE)
    list(APPEND sanitizer_flags -fno-sanitize-address-use-after-scope)
  endif()
  target_compile_options(heed_dev INTERFACE ${sanitizer_flags})
  target_link_options(heed_dev INTERFACE -fsanitize=${sanitizers})
endif()
