# SPDX-License-Identifier: MIT
# What heed::heed links. Used by the build and by the installed package alike, so that both look in the same way.
# A project that already has an Eigen3::Eigen of its own keeps it.

if(NOT TARGET Eigen3::Eigen)
  # Eigen 3.4 and 5 exclude each other in their version files: a request for one refuses the other.
  find_package(Eigen3 3.4 QUIET CONFIG)
  if(NOT Eigen3_FOUND)
    find_package(Eigen3 5 QUIET CONFIG)
  endif()
endif()

if(NOT TARGET Threads::Threads)
  find_package(Threads REQUIRED)
endif()
