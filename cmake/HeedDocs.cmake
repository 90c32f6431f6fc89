# SPDX-License-Identifier: MIT
# The guide and the reference, as HTML: the target heed_docs. It fails on any warning.

find_package(Doxygen 1.9.4 REQUIRED)

set(heed_docs_directory ${CMAKE_CURRENT_BINARY_DIR}/docs)
configure_file(docs/Doxyfile.in docs/Doxyfile @ONLY)
add_custom_target(heed_docs
  COMMAND ${DOXYGEN_EXECUTABLE} ${heed_docs_directory}/Doxyfile
  COMMENT "Writing ${heed_docs_directory}/html/index.html"
  VERBATIM)
