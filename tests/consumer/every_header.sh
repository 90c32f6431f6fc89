#!/bin/sh
# SPDX-License-Identifier: MIT
# every_header.sh BUILD_DIR INCLUDE_DIR COMPILER FLAG...: case C41. Two translation units include every public header, in
# opposite orders, and call the same functions; without inlining, so that every function is a symbol. They link as one
# program, as a program and a shared library, and nothing is defined twice.
set -eu

build=$1
include=$2
compiler=$3
shift 3
mkdir -p "$build"

headers=$(cd "$include" && find heed -name '*.hpp' | sort)

# unit NAME ORDER
unit() {
  {
    for header in $(echo "$headers" | sort "$2"); do echo "#include <$header>"; done
    cat <<END
float $1() {
  const heed::Tensor<float, 4> q(1, 2, 3, 4);
  heed::LayerNorm<float> norm({.embed_dim = 4});
  heed::Context context;
  return heed::attention(q, q, q, heed::Causal{}, context)(0, 0, 0, 0) + norm(q.view()[0])(0, 0, 0);
}
END
  } >"$build/$1.cpp"
}
unit first --
unit second -r
cat >"$build/main.cpp" <<'END'
float first();
float second();
int main() { return first() == second() ? 0 : 1; }
END

cd "$build"
set -x
"$compiler" "$@" -O0 -fno-inline -fPIC -c first.cpp
"$compiler" "$@" -O0 -fno-inline -fPIC -c second.cpp
"$compiler" "$@" main.cpp first.o second.o -o together
./together
"$compiler" "$@" -shared second.o -o libsecond.so
"$compiler" "$@" main.cpp first.o -L. -lsecond -Wl,-rpath,. -o apart
./apart
set +x

# A strong symbol is one that two units could not both have.
strong=$(nm -C --defined-only first.o | grep ' [TDBR] ' | grep -v ' first()$' || true)
if [ -n "$strong" ]; then
  echo "A unit that includes heed defines more than its function: $strong"
  exit 1
fi
