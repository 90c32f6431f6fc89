# SPDX-License-Identifier: MIT
# heed::compiled: attention and layers for float and double, compiled once. A target that links it takes these instances
# from the library, provided that it is compiled with flags of the same namespace tag (heed/compiled/attention.hpp).

add_library(heed_compiled src/attention.cpp src/layers.cpp src/recurrent.cpp)
add_library(heed::compiled ALIAS heed_compiled)
set_target_properties(heed_compiled PROPERTIES EXPORT_NAME compiled POSITION_INDEPENDENT_CODE ON)
target_link_libraries(heed_compiled PUBLIC heed)
target_compile_definitions(heed_compiled PUBLIC HEED_COMPILED)

# A separate object file, so that the header can be written before anything that includes it is compiled.
add_library(heed_compiled_abi OBJECT src/abi.cpp)
target_link_libraries(heed_compiled_abi PRIVATE heed)
target_compile_options(heed_compiled_abi PRIVATE -fno-lto)  # under which the text could not be found
if(TARGET heed_dev)
  target_link_libraries(heed_compiled PRIVATE $<BUILD_INTERFACE:heed_dev>)
  target_compile_options(heed_compiled PRIVATE ${HEED_STRICT_WARNINGS})
  target_link_libraries(heed_compiled_abi PRIVATE heed_dev)
endif()

set(abi_directory ${CMAKE_CURRENT_BINARY_DIR}/compiled/$<CONFIG>)
set(abi_header ${abi_directory}/heed_compiled_abi.hpp)
add_custom_command(OUTPUT ${abi_header}
  COMMAND ${CMAKE_COMMAND} -D OBJECT=$<TARGET_OBJECTS:heed_compiled_abi> -D HEADER=${abi_header}
    -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/HeedCompiledAbi.cmake
  DEPENDS heed_compiled_abi $<TARGET_OBJECTS:heed_compiled_abi> cmake/HeedCompiledAbi.cmake
  VERBATIM)
add_custom_target(heed_compiled_abi_header DEPENDS ${abi_header})
add_dependencies(heed_compiled heed_compiled_abi_header)

target_include_directories(heed_compiled PUBLIC $<BUILD_INTERFACE:${abi_directory}>)
if(HEED_INSTALL AND HEED_BUILD_COMPILED)
  include(GNUInstallDirs)
  target_include_directories(heed_compiled PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_LIBDIR}/heed>)
  install(TARGETS heed_compiled EXPORT heedTargets)
  install(FILES ${abi_header} DESTINATION ${CMAKE_INSTALL_LIBDIR}/heed)
endif()
