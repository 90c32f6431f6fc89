#!/bin/sh
# SPDX-License-Identifier: MIT
# packages.sh BUILD_DIR vcpkg|conan EIGEN_INCLUDE: builds a consumer with the package of the tree.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$1
manager=$2
export EIGEN_INCLUDE="$3"
rm -rf "$build"
mkdir -p "$build"
set -x
case $manager in
  vcpkg)
    cmake -D PORT="$root/packaging/vcpkg/heed" -D WORK="$build/port" -P "$here/packages/vcpkg.cmake"
    # Somewhere else, as vcpkg moves packages, too.
    mv "$build/port/package" "$build/installed"
    set -- -D CMAKE_PREFIX_PATH="$build/installed"
    ;;
  conan)
    if ! command -v conan >/dev/null; then
      echo "skipped: conan is not installed"
      exit 77
    fi
    export CONAN_HOME="$build/home"
    conan profile detect
    conan create "$here/packages/eigen" --no-remote
    conan create "$root" --no-remote -s compiler.cppstd=20
    conan install --requires="heed/[>=0.2]" --no-remote -s compiler.cppstd=20 -g CMakeDeps -g CMakeToolchain \
      -of "$build/generated"
    set -- -D CMAKE_TOOLCHAIN_FILE="$build/generated/conan_toolchain.cmake" -D CMAKE_BUILD_TYPE=Release
    ;;
esac
cmake -S "$here/packages" -B "$build/consumer" "$@"
cmake --build "$build/consumer"
"$build/consumer/consumer"
