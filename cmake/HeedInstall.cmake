# SPDX-License-Identifier: MIT
# Headers, the CMake package and the pkg-config file. Nothing in them depends on the prefix and, without heed::compiled,
# nothing on the architecture.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# HEED_PACKAGE_DIR may be set for another place of the CMake package.
set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/heed)
set(any_architecture ARCH_INDEPENDENT)
if(HEED_BUILD_COMPILED)
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/heed)
  set(any_architecture "")
endif()
if(NOT HEED_PACKAGE_DIR)
  set(HEED_PACKAGE_DIR ${package_dir})
endif()
set(HEED_PC_DIR ${CMAKE_INSTALL_DATADIR}/pkgconfig)
file(RELATIVE_PATH HEED_PC_PREFIX /${HEED_PC_DIR} /)
string(REGEX REPLACE "/$" "" HEED_PC_PREFIX "${HEED_PC_PREFIX}")

configure_package_config_file(cmake/heedConfig.cmake.in heedConfig.cmake INSTALL_DESTINATION ${HEED_PACKAGE_DIR})
write_basic_package_version_file(heedConfigVersion.cmake COMPATIBILITY SameMinorVersion ${any_architecture})
configure_file(cmake/heed.pc.in heed.pc @ONLY)

install(TARGETS heed EXPORT heedTargets FILE_SET HEADERS)
install(EXPORT heedTargets NAMESPACE heed:: DESTINATION ${HEED_PACKAGE_DIR})
install(FILES ${PROJECT_BINARY_DIR}/heedConfig.cmake ${PROJECT_BINARY_DIR}/heedConfigVersion.cmake
  cmake/HeedDependencies.cmake cmake/HeedPresent.cmake DESTINATION ${HEED_PACKAGE_DIR})
install(FILES ${PROJECT_BINARY_DIR}/heed.pc DESTINATION ${HEED_PC_DIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# `cpack --config CPackSourceConfig.cmake` writes the source archive.
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_PACKAGE_NAME heed)
  set(CPACK_SOURCE_GENERATOR TGZ)
  set(CPACK_SOURCE_PACKAGE_FILE_NAME heed-${PROJECT_VERSION})
  set(CPACK_SOURCE_IGNORE_FILES "/build/" "/[.]git" "/[.]cache/" "__pycache__")
  set(CPACK_VERBATIM_VARIABLES ON)
  include(CPack)
endif()
