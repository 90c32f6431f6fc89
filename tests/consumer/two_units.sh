#!/bin/sh
# SPDX-License-Identifier: MIT
# two_units.sh BUILD_DIR COMPILER FLAG...: two translation units, one for the baseline and one for AVX2, in one program.
# Linked in both orders, as objects and as shared libraries, with and without inlining. The linker keeps one copy of
# each inline function of the same name: had the units such a function in common, the baseline could run AVX2 code.
set -eu

here=$(dirname "$0")
build=$1
shift
mkdir -p "$build"

if [ "$(uname -m)" != x86_64 ] || ! grep -qw avx2 /proc/cpuinfo || ! grep -qw fma /proc/cpuinfo; then
  echo "skipped: needs an x86-64 CPU with AVX2 and FMA"
  exit 77
fi

run() {
  echo "+ $*"
  "$@"
}

run "$@" -c "$here/two_units/main.cpp" -o "$build/main.o"

for inlining in -finline -fno-inline; do
  first=$build/first$inlining.o
  second=$build/second$inlining.o
  run "$@" -fPIC $inlining -DUNIT=first -c "$here/two_units/unit.cpp" -o "$first"
  run "$@" -fPIC $inlining -mavx2 -mfma -DUNIT=second -c "$here/two_units/unit.cpp" -o "$second"

  run "$@" "$build/main.o" "$first" "$second" -o "$build/objects"
  run "$build/objects"
  run "$@" "$build/main.o" "$second" "$first" -o "$build/objects"
  run "$build/objects"

  run "$@" -shared "$first" -o "$build/libfirst.so"
  run "$@" -shared "$second" -o "$build/libsecond.so"
  run "$@" "$build/main.o" "-Wl,-rpath,$build" "-L$build" -lfirst -lsecond -o "$build/shared"
  run "$build/shared"
  run "$@" "$build/main.o" "-Wl,-rpath,$build" "-L$build" -lsecond -lfirst -o "$build/shared"
  run "$build/shared"
done

# A run can't show which copy the linker kept, on a machine that has AVX2. The symbols can.
for unit in first second; do
  nm --defined-only "$build/$unit-finline.o" | sed -n 's/^[0-9a-f]* [VWu] //p' | sort >"$build/$unit.symbols"
done
shared=$(comm -12 "$build/first.symbols" "$build/second.symbols" | c++filt | grep -E 'heed::|Eigen::' || true)
if [ -n "$shared" ]; then
  echo "Both units define these functions under one name, although their instruction sets differ:"
  echo "$shared"
  exit 1
fi
