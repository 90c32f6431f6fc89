#!/bin/sh
# SPDX-License-Identifier: MIT
# project.sh BUILD_DIR MODE CMAKE_OPTION...
# Configures, builds, runs and installs the consumer project from an empty directory.
set -eu

here=$(dirname "$0")
build=$1
mode=$2
shift 2

rm -rf "$build"
set -x
cmake -S "$here/project" -B "$build" -DCONSUMER_MODE="$mode" "$@"
cmake --build "$build"
"$build/consumer"
cmake --install "$build" --prefix "$build/prefix"
set +x

installed=$(cd "$build/prefix" && find . -type f)
if [ "$installed" != ./bin/consumer ]; then
  echo "installing the consumer installs more than its program: $installed"
  exit 1
fi
