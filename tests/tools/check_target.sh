#!/bin/sh
# SPDX-License-Identifier: MIT
# check_target.sh BUILD_DIR EIGEN_INCLUDE [--run RUNNER] -- COMPILER FLAG...: compiles the consumer's calls for another
# compiler or machine, runs them, and holds the files that they write against those of this machine's g++, byte by byte.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
build=$1
eigen=$2
shift 2
runner=
if [ "$1" = --run ]; then
  runner=$2
  shift 2
fi
shift

# compile DIRECTORY PROGRAM COMPILER FLAG...
compile() {
  mkdir -p "$build/$1"
  output=$build/$1/$2
  shift 2
  "$@" -std=c++20 -I"$root/include" -isystem "$eigen" "$root/tests/consumer/calls.cpp" -o "$output"
}

case $* in *em++*) program=calls.js ;; *mingw*) program=calls.exe ;; *) program=calls ;; esac
compile here calls g++ -O1 -pthread
(cd "$build/here" && ./calls)
compile there $program "$@"
# shellcheck disable=SC2086
(cd "$build/there" && $runner ./$program)
for file in numbers.safetensors state.safetensors; do
  cmp "$build/here/$file" "$build/there/$file"
done
