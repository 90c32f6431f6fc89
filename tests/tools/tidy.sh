#!/bin/sh
# SPDX-License-Identifier: MIT
# tidy.sh SOURCE: runs clang-tidy on one header or source file, with the include paths of the whole project.
set -eu
cd "$(dirname "$0")/../.."

for eigen in /usr/include/eigen3 /usr/local/include/eigen3; do
  if [ -e "$eigen/Eigen/Core" ]; then break; fi
done

# The analyzer takes a minute for a file that instantiates the library, and finds nothing there.
checks=
case $1 in include/*) ;; *) checks='-clang-analyzer-*' ;; esac

if ! output=$(clang-tidy --quiet --checks="$checks" --header-filter='^$' "$1" -- \
    -xc++ -std=c++20 -Wno-pragma-once-outside-header -Iinclude -Itests -Iexamples -Ibench -isystem "$eigen" \
    -DHEED_TEST_DATA_DIR='""' -DHEED_ARTICLE_NOVEL='""' -DHEED_ARTICLE_COMPILER='""' -DHEED_ARTICLE_FLAGS='""' 2>&1); then
  printf '%s:\n%s\n' "$1" "$output"
  exit 1
fi
