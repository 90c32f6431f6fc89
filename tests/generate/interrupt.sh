#!/bin/sh
# SPDX-License-Identifier: MIT
#
# interrupt.sh GENERATE: Ctrl-C ends a long text cleanly: whole characters, a line break, exit status 130.
# Exit status 77 without the model.
set -eu

generate=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$generate" "Once upon a time" -n 1000000 --window 64 >"$work/out" 2>"$work/err" &
program=$!
# Until something is written; a program that ends by itself is not waited for.
tries=0
while [ "$(wc -c <"$work/out")" -lt 40 ] && kill -0 $program 2>/dev/null && [ $tries -lt 600 ]; do
  sleep 0.1
  tries=$((tries + 1))
done
kill -INT $program 2>/dev/null || :
status=0
wait $program || status=$?
if grep -q "there is no model" "$work/err"; then exit 77; fi
cat "$work/err"
[ $status -eq 130 ] || { echo "the exit status is $status, not 130"; exit 1; }
[ "$(tail -c 1 "$work/out")" = "" ] || { echo "the text does not end with a line break"; exit 1; }
iconv -f utf-8 -t utf-8 "$work/out" >/dev/null || { echo "the text is not UTF-8"; exit 1; }
grep -q "tokens at" "$work/err" || { echo "there is no report"; exit 1; }
