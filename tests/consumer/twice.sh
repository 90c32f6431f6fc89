#!/bin/sh
# SPDX-License-Identifier: MIT
# twice.sh BUILD_DIR WAY... -- CMAKE_OPTION...: a project to which heed comes in each of these ways, one after the other.
# A version that does not serve another must be refused in one sentence.
set -eu

here=$(dirname "$0")
build=$1
shift
ways=
while [ "$1" != -- ]; do
  ways="$ways;$1"
  shift
done
shift

rm -rf "$build"
mkdir -p "$build"
if cmake -S "$here/twice" -B "$build" "-DWAYS=${ways#;}" "$@" >"$build/log" 2>&1; then
  if [ "$ways" = ";other_version" ]; then
    echo "an older heed serves a newer one"
    exit 1
  fi
  cmake --build "$build"
else
  cat "$build/log"
  [ "$ways" = ";other_version" ] && grep -q "meet in one build" "$build/log"
fi
