# SPDX-License-Identifier: MIT
# What heed::heed links. Used by the build and by the installed package alike, so that both look in the same way.
# A project that already defines Eigen3::Eigen keeps it.

if(NOT TARGET Eigen3::Eigen)
  # Eigen 3.4 and 5 exclude each other in their version files (a request for one refuses the other), so each is asked
  # for. What the user points at comes before what the system holds, whichever of the two it is. GLOBAL, because a
  # project that adds heed as a subdirectory links Eigen3::Eigen from outside this directory.
  set(heed_eigen_hint ${Eigen3_DIR})
  foreach(heed_eigen_places "NO_SYSTEM_ENVIRONMENT_PATH;NO_CMAKE_SYSTEM_PATH" "")
    foreach(heed_eigen_version 3.4 5)
      if(NOT Eigen3_FOUND)
        find_package(Eigen3 ${heed_eigen_version} QUIET CONFIG GLOBAL HINTS ${heed_eigen_hint} ${heed_eigen_places})
      endif()
    endforeach()
  endforeach()
endif()

if(NOT TARGET Threads::Threads)
  find_package(Threads REQUIRED GLOBAL)
endif()
