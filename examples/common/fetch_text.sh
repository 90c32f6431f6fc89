#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Fetches a text to train on, all of them in the public domain, once, and prints the directory that holds it.
#
#   dir=$(sh fetch_text.sh kjv)       # dir/kjv.txt: the King James Bible, one verse a line, 4.1 MB
#   dir=$(sh fetch_text.sh austen)    # dir/emma.txt, ...: Jane Austen's six novels, 4 MB
#
# The texts come out of Debian packages: nothing is installed and no code of the packages runs. They are kept in
# ${HEED_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/heed}/kjv or austen; every call checks their SHA-256.
#
# stdout: the directory. stderr: messages. Exit status: 0 fine, 2 wrong call, 3 cannot be fetched here (one line says
# why).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
name=${1:-}
case $name in
  kjv)
    package=bible-kjv-text
    checksums='b5c4940bcfeee072c0935b5200d0f9d88a00a0199cb0961d16133458fcdfae5d  kjv.txt'
    ;;
  austen)
    package=r-cran-janeaustenr
    checksums='7c67b5985c6d0de1efaeb5d342d52cb82c38083c40e2295129e30e87ee690ebe  emma.txt
98bc90519cdf4ef663ad7de2734bb529435ef24f7abbde6bb1a50898871dafe9  mansfield_park.txt
51f91bbe0517db8e65cff009b097ce0a1836124c4e0532ac19e6c0cad982abed  northanger_abbey.txt
8061549557aebd2fd6e353d18d9197cb707029112bd52d4d8b174583a925848a  persuasion.txt
dfc684d4f857fa938268f9ab9c5567b64bd0691251eca959644adeabe6287a4d  pride_and_prejudice.txt
105e1651fe93bed7130078578efd31e0c557d68667ba672ddc876f735b30fe09  sense_and_sensibility.txt'
    ;;
  *)
    printf '%s\n' "usage: fetch_text.sh kjv|austen" >&2
    exit 2
    ;;
esac

script=fetch_text.sh
. "$here/fetch.sh"

for tool in apt-get dpkg-deb gzip python3; do
  command -v $tool >/dev/null 2>&1 || unavailable "$tool is needed to fetch the text but was not found"
done

make_work
mkdir "$work/$name" "$work/unpacked"

say "fetching the text (Debian package $package, once) into $kept"
if ! (cd "$work" && apt-get download -o Acquire::Retries=2 -o Acquire::http::Timeout=20 "$package" >apt.log 2>&1); then
  reason=$(grep '^E:' "$work/apt.log" | tail -n 1 | cut -c 1-300)
  say "apt-get could not fetch $package: ${reason:-no reason given}"
  unavailable "is there a network, and has apt-get update run?"
fi

dpkg-deb -x "$work"/*.deb "$work/unpacked" 2>/dev/null ||
  unavailable "cannot unpack $package in $cache (is the disk full?)"
python3 "$here/extract_text.py" "$name" "$work/unpacked" "$work/$name" ||
  unavailable "the package $package does not hold the text in the expected form; it was thrown away"
keep "$work/$name"
