# SPDX-License-Identifier: MIT
# cmake -D OBJECT=FILE -D HEADER=FILE -P HeedCompiledAbi.cmake: writes the header that names the
# tag of the namespace that heed::compiled was compiled in. The tag follows from flags that only the compiler knows in full, so it
# is read from an object file.
file(STRINGS ${OBJECT} text REGEX "heed_compiled_abi=[A-Za-z0-9_]+;" LIMIT_COUNT 1)
if(NOT text MATCHES "heed_compiled_abi=([A-Za-z0-9_]+)")
  message(FATAL_ERROR "${OBJECT} does not name the tag that it was compiled with")
endif()
file(WRITE ${HEADER} "#define HEED_COMPILED_${CMAKE_MATCH_1} 1\n")
