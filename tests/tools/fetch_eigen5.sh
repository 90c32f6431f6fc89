#!/bin/sh
# SPDX-License-Identifier: MIT
# fetch_eigen5.sh PREFIX: puts the headers of Eigen 5.0.1 and a CMake package file for them under PREFIX.
# Quick when they are there already. Exits with 77 (CTest: skipped) when they can't be fetched.
#
# The headers come from a Python wheel, because a package index is reachable in more places than Eigen's own server.
# Its tag is fixed, so that every Python fetches the file with this hash.
set -eu

prefix=$1
wheel=eigency==5.0.1.1
hash=sha256:5a34a04a6039e067b7fe5ed4b876522fdbab81383b2f9286e94e45e15ae50676

[ -e "$prefix/share/eigen3/cmake/Eigen3Config.cmake" ] && exit 0

# The files are moved to their place in one step, since several tests may run this at the same time.
mkdir -p "$(dirname "$prefix")"
work=$(mktemp -d "$prefix.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/include" "$work/share/eigen3/cmake" "$work/wheel"

echo "$wheel --hash=$hash" >"$work/wheel/requirements.txt"
if ! python3 -m pip download --quiet --disable-pip-version-check --retries 1 --timeout 15 --no-deps \
    --only-binary :all: --python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_28_x86_64 \
    --require-hashes --requirement "$work/wheel/requirements.txt" --dest "$work/wheel" >&2; then
  echo "skipped: the headers of Eigen 5 ($wheel) can't be fetched with python3 -m pip"
  exit 77
fi
(cd "$work/wheel" && cmake -E tar xf ./*.whl)
mv "$work/wheel/eigency/eigen" "$work/include/eigen3"
rm -r "$work/wheel"

cat >"$work/share/eigen3/cmake/Eigen3ConfigVersion.cmake" <<'END'
set(PACKAGE_VERSION 5.0.1)
if(PACKAGE_FIND_VERSION_MAJOR EQUAL 5 AND PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
END
cat >"$work/share/eigen3/cmake/Eigen3Config.cmake" <<'END'
add_library(Eigen3::Eigen INTERFACE IMPORTED)
set_target_properties(Eigen3::Eigen PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/../../../include/eigen3")
END
chmod 755 "$work"
mv -T "$work" "$prefix" 2>/dev/null || [ -e "$prefix/share/eigen3/cmake/Eigen3Config.cmake" ]
