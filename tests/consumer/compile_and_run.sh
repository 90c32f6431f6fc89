#!/bin/sh
# SPDX-License-Identifier: MIT
# compile_and_run.sh BUILD_DIR [--pkg-config] COMPILER ARGUMENT...: what a user without CMake does.
# With --pkg-config the flags of the package heed follow the arguments.
set -eu

program=$1/program
mkdir -p "$1"
shift
if [ "$1" = --pkg-config ]; then
  shift
  if ! command -v pkg-config >/dev/null; then
    echo "skipped: pkg-config is not installed"
    exit 77
  fi
  # It escapes blanks in its answer for the shell, hence the eval.
  flags=$(pkg-config --cflags --libs heed)
  eval "set -- \"\$@\" $flags"
fi
set -x
"$@" -o "$program"
"$program"
