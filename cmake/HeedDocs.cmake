# SPDX-License-Identifier: MIT
# The guide and the reference, as HTML: the target heed_docs. It fails on any warning.

find_package(Doxygen 1.9.4 REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# The interpreter itself: it starts once for each header, and what stands for it, in pyenv for instance, may start slowly.
execute_process(COMMAND ${Python3_EXECUTABLE} -c "import sys; print(sys.executable)"
  OUTPUT_VARIABLE heed_docs_python OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(heed_docs_directory ${CMAKE_CURRENT_BINARY_DIR}/docs)
configure_file(docs/Doxyfile.in docs/Doxyfile @ONLY)
add_custom_target(heed_docs
  COMMAND ${DOXYGEN_EXECUTABLE} ${heed_docs_directory}/Doxyfile
  COMMENT "Writing ${heed_docs_directory}/html/index.html"
  VERBATIM)
