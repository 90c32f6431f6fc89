#!/bin/sh
# SPDX-License-Identifier: MIT
# fetch_clang_format.sh DIRECTORY: prints the path of the clang-format that the project is formatted with. It is fetched
# from PyPI into DIRECTORY the first time. Exits with 77 when it can't be fetched.
#
# Every version of clang-format lays out some code in another way, so one version is fixed, by its hashes.
set -eu

version=19.1.7
directory=$1
program=$directory/clang-format-$version/bin/clang-format

if [ ! -x "$program" ]; then
  mkdir -p "$directory"
  work=$(mktemp -d "$directory/clang-format.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  # For x86-64 and Arm under Linux, and for Arm under macOS.
  cat >"$work/requirements.txt" <<END
clang-format==$version \
  --hash=sha256:f4906fb463dd2033032978f56962caab268c9428a384126b9400543eb667f11c \
  --hash=sha256:dac394c83a9233ab6707f66e1cdbd950f8b014b58604142a5b6f7998bf0bcc8c \
  --hash=sha256:776f89c7b056c498c0e256485bc031cbf514aaebe71e929ed54e50c478524b65
END
  if ! PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 --no-deps \
      --only-binary :all: --require-hashes --requirement "$work/requirements.txt" --target "$work/installed" >&2; then
    echo "clang-format==$version can't be fetched with python3 -m pip" >&2
    exit 77
  fi
  # The wheel keeps the program inside its Python package; bin/ holds a script that starts it.
  mkdir -p "$(dirname "$program")"
  mv "$work/installed/clang_format/data/bin/clang-format" "$program"
fi
printf '%s\n' "$program"
