#!/bin/sh
# SPDX-License-Identifier: MIT
# package.sh DIRECTORY: writes what a release is made of: the source archive, which holds the Conan recipe, the single
# header, and the vcpkg port of the archive.
set -eu

output=$1
cd "$(dirname "$0")/../.."
mkdir -p "$output"
output=$(cd "$output" && pwd)
rm -rf "${output:?}"/*

cmake -S . -B "$output/build" -D HEED_BUILD_TESTS=OFF -D HEED_BUILD_BENCH=OFF -D HEED_BUILD_EXAMPLES=OFF >/dev/null
(cd "$output/build" && cpack --config CPackSourceConfig.cmake -B "$output" >/dev/null)
rm -rf "$output/build" "$output/_CPack_Packages"
python3 tests/tools/amalgamate.py include "$output/heed-single.hpp"
mkdir "$output/vcpkg"
cp -r packaging/vcpkg/heed "$output/vcpkg"
cp "$output"/heed-*.tar.gz "$output/vcpkg/heed"
find "$output" -type f | sort
