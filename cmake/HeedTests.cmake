# SPDX-License-Identifier: MIT
# Makes executables and CTest tests of a directory of test sources.

# heed_add_test_executable(<name> LAYER <layer> LABEL <label> SOURCES <source>... [LIBRARIES <library>...])
# Without sources, and without those in HEED_LEFT_OUT, there is no executable.
function(heed_add_test_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LAYER;LABEL" "SOURCES;LIBRARIES")
  set(sources ${arg_SOURCES})
  list(REMOVE_ITEM sources ${HEED_LEFT_OUT})
  if(NOT sources)
    return()
  endif()

  set(environment "")
  if(HEED_MODEL_DIR)
    set(environment HEED_MODEL_DIR=${HEED_MODEL_DIR})
  endif()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE heed_instances ${arg_LIBRARIES})
  target_precompile_headers(${name} REUSE_FROM heed_instances)
  # Files of one layer use the same templates: four together take a third less time, but all four when one changes.
  # Tests of programs stay apart, as each uses its program's names.
  if(HEED_UNITY_TESTS AND NOT arg_LIBRARIES)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
  endif()
  if(HEED_SANITIZE OR CMAKE_CROSSCOMPILING)
    # Starting a program under a sanitizer or an emulator takes longer than most of its tests, so that a few processes
    # share them. Each names the test that failed; handle_sigill reports the place of a trap, which undefined behavior
    # ends in.
    set(processes 4)
    foreach(process RANGE 1 ${processes})
      math(EXPR index "${process} - 1")
      set(share GTEST_TOTAL_SHARDS=${processes} GTEST_SHARD_INDEX=${index} ASAN_OPTIONS=handle_sigill=1)
      add_test(NAME ${name}.${process} COMMAND ${name} --gtest_brief=1)
      set_tests_properties(${name}.${process} PROPERTIES LABELS ${arg_LABEL} TIMEOUT 1800
        ENVIRONMENT "${share};${environment}")
    endforeach()
  else()
    if(environment)
      set(environment ENVIRONMENT ${environment})
    endif()
    gtest_discover_tests(${name} TEST_PREFIX ${arg_LAYER}. DISCOVERY_MODE PRE_TEST
      PROPERTIES LABELS ${arg_LABEL} TIMEOUT 300 ${environment})
  endif()
endfunction()

# heed_add_test_layer(<layer> [LIBRARIES <library>...])
# <layer>/*_test.cpp become heed_<layer>_test. The *_thread_test.cpp among them become heed_<layer>_thread_test, labelled
# "thread" and part of the target heed_thread_tests: these are the tests that run under the thread sanitizer.
function(heed_add_test_layer layer)
  file(GLOB sources CONFIGURE_DEPENDS ${layer}/*_test.cpp)
  set(thread_sources ${sources})
  list(FILTER sources EXCLUDE REGEX "_thread_test\\.cpp$")
  list(FILTER thread_sources INCLUDE REGEX "_thread_test\\.cpp$")
  heed_add_test_executable(heed_${layer}_test LAYER ${layer} LABEL ${layer} SOURCES ${sources} ${ARGN})
  heed_add_test_executable(heed_${layer}_thread_test LAYER ${layer} LABEL thread SOURCES ${thread_sources} ${ARGN})
  if(TARGET heed_${layer}_thread_test)
    add_dependencies(heed_thread_tests heed_${layer}_thread_test)
  endif()
endfunction()
