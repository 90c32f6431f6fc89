#!/bin/sh
# SPDX-License-Identifier: MIT
# check.sh SOURCE COMPILER ARGUMENT...
# SOURCE must compile as it is, and must not with MUST_NOT_COMPILE defined. The compiler's output must then match the
# extended regular expression in its line `// expect: ...`: failing for another reason is no success.
set -eu

source=$1
shift

expected=$(sed -n 's|^// expect: ||p' "$source")
if [ -z "$expected" ]; then
  echo "$source has no line '// expect: REGEX'"
  exit 1
fi

if ! "$@" -fsyntax-only "$source"; then
  echo "$source does not compile even without MUST_NOT_COMPILE"
  exit 1
fi

if output=$("$@" -fsyntax-only -DMUST_NOT_COMPILE "$source" 2>&1); then
  echo "$source compiles with MUST_NOT_COMPILE"
  exit 1
fi
if ! echo "$output" | grep -qE "$expected"; then
  echo "$source fails to compile, but not with '$expected':"
  echo "$output"
  exit 1
fi
echo "$output" | grep -m 1 -E "$expected"
