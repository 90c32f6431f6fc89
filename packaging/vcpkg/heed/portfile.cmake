# SPDX-License-Identifier: MIT
# An overlay port of the tree that it is in, or of the source archive next to it:
# vcpkg install heed --overlay-ports=packaging/vcpkg
set(VCPKG_BUILD_TYPE release)  # headers only

file(GLOB archive "${CMAKE_CURRENT_LIST_DIR}/heed-*.tar.gz")
if(archive)
  vcpkg_extract_source_archive(SOURCE_PATH ARCHIVE "${archive}")
else()
  get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
endif()

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS -DHEED_BUILD_TESTS=OFF -DHEED_BUILD_BENCH=OFF
  -DHEED_BUILD_EXAMPLES=OFF -DHEED_PACKAGE_DIR=share/heed)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup()
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/doc")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
