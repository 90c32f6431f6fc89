# SPDX-License-Identifier: MIT
# heed_require_present(<version>): ends the configuration unless the target heed::heed, which is there, serves a request
# for this version, and heed::compiled is there if HEED_BUILD_COMPILED asks for it. Used by the build and by the installed
# package alike.

function(heed_require_present version)
  get_target_property(present heed::heed heed_version)
  string(REGEX MATCH "^[0-9]+[.][0-9]+" series ${version})
  if(NOT present MATCHES "^${series}[.]" OR present VERSION_LESS version)
    message(FATAL_ERROR "heed ${version} and heed ${present} meet in one build: let the newer one come first, or the "
      "same version everywhere. Of versions 0.x only those with the same second number serve each other.")
  endif()
  if(HEED_BUILD_COMPILED AND NOT TARGET heed::compiled)
    message(FATAL_ERROR "heed::compiled is asked for, but heed is in this build already without it: set "
      "HEED_BUILD_COMPILED before the first copy is added")
  endif()
endfunction()
