#!/bin/sh
# SPDX-License-Identifier: MIT
# two_units.sh BUILD_DIR COMPILER FLAG...: translation units with different flags in one program (C41). The linker keeps one
# copy of each inline function of the same name: had two units such a function of heed in common, one would run the
# other's code. Each unit must give the bits that it gives alone, whichever unit the linker sees first.
set -eu

here=$(dirname "$0")
build=$1
compiler=$2
shift 2
mkdir -p "$build"
for flag; do printf '"%s"\n' "$flag"; done >"$build/flags"

if [ "$(uname -m)" != x86_64 ]; then
  echo "skipped: the flags are those of x86-64"
  exit 77
fi

compile() {
  "$compiler" "@$build/flags" "$@"
}

units=""
# unit NAME "FEATURES of the processor" FLAG...
unit() {
  name=$1
  for feature in $2; do
    if ! grep -qw "$feature" /proc/cpuinfo; then
      echo "left out: $name, since this processor has no $feature"
      return
    fi
  done
  shift 2
  echo "+ $name $*"
  compile -fPIC "$@" -DUNIT="$name" -c "$here/two_units/unit.cpp" -o "$build/$name.o"
  units="$units $name"
}

# main UNIT...: a main.o that calls these units.
main() {
  calls=""
  for name; do calls="$calls X($name)"; done
  compile "-DUNITS=$calls" -c "$here/two_units/main.cpp" -o "$build/main.o"
}

# compare ARGUMENT...: links main.o with these files; the program must print what the units printed alone.
compare() {
  (cd "$build" && compile main.o "$@" -o together && ./together >together.txt)
  if ! diff "$build/alone.txt" "$build/together.txt"; then
    echo "The results of a unit changed when linked as $*"
    exit 1
  fi
}

unit x86v1 ""
unit ssse3 "ssse3" -mssse3
unit sse42 "sse4_2 popcnt" -msse4.2
unit avx "avx" -mavx
unit avx_f16c "avx f16c" -mavx -mf16c
unit avx_fma "avx fma" -mavx -mfma
unit avx2_fma "avx2 fma" -mavx2 -mfma
unit avx512f "avx512f fma" -mavx512f -mfma
unit avx512vl "avx512f avx512dq avx512bw avx512vl fma" -mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma
unit own_throw "avx fma" -mavx -mfma -DHEED_THROW=throw

: >"$build/alone.txt"
for name in $units; do
  main "$name"
  (cd "$build" && compile main.o "$name.o" -o alone && ./alone >>alone.txt)
done
cat "$build/alone.txt"

main $units
objects="" reversed=""
for name in $units; do
  objects="$objects $name.o"
  reversed="$name.o $reversed"
done
compare $objects
compare $reversed
for name in $units; do compare "$name.o" $(echo "$objects" | sed "s/ $name\.o//"); done

libraries="" reversed=""
for name in $units; do
  (cd "$build" && compile -shared "$name.o" -o "lib$name.so")
  libraries="$libraries -l$name"
  reversed="-l$name $reversed"
done
compare -Wl,-rpath,. -L. $libraries
compare -Wl,-rpath,. -L. $reversed

# A difference in speed or a missing instruction does not show in bits. The symbols show it.
for name in $units; do
  nm --defined-only "$build/$name.o" | sed -n 's/^[0-9a-f]* [VWu] //p' | sort
done | sort | uniq -d | c++filt | grep '^heed::\| heed::' >"$build/shared.txt" || true
if [ -s "$build/shared.txt" ]; then
  echo "Units define these functions of heed under one name, although their flags differ:"
  cat "$build/shared.txt"
  exit 1
fi
