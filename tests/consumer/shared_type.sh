#!/bin/sh
# SPDX-License-Identifier: MIT
# shared_type.sh BUILD_DIR COMPILER FLAG...: a weight that one translation unit packs and another one with other -m flags
# uses, through a type of the program. It is right where the layouts agree, and an EnvironmentError where they do not.
set -eu

here=$(dirname "$0")/two_units
build=$1
compiler=$2
shift 2
mkdir -p "$build"
for flag; do printf '"%s"\n' "$flag"; done >"$build/flags"

for feature in avx512f avx512dq avx512bw avx512vl avx2 fma; do
  if ! grep -qw "$feature" /proc/cpuinfo; then
    echo "skipped: this processor has no $feature"
    exit 77
  fi
done

# unit NAME FLAG...: both sources for an instruction set.
unit() {
  name=$1
  shift
  for source in maker user; do
    "$compiler" "@$build/flags" "$@" -c "$here/$source.cpp" -o "$build/$source.$name.o"
  done
}
unit sse2
unit avx2 -mavx2 -mfma
unit avx512 -mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma

for maker in sse2 avx2 avx512; do
  for user in sse2 avx2 avx512; do
    for order in "maker.$maker.o user.$user.o" "user.$user.o maker.$maker.o"; do
      # shellcheck disable=SC2086
      (cd "$build" && "$compiler" @flags $order -o shared_type)
      output=$("$build/shared_type") || { echo "packed for $maker, used by $user: $output"; exit 1; }
      case $maker.$user in
        avx512.avx512 | sse2.sse2 | sse2.avx2 | avx2.sse2 | avx2.avx2) expected=right ;;
        *) expected="heed::PackedMatrix: the weight was packed in panels" ;;
      esac
      echo "$output" | while read -r line; do
        case $line in
          "$expected"*) ;;
          *) echo "packed for $maker, used by $user: $line"; exit 1 ;;
        esac
      done
    done
  done
done
