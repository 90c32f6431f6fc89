#!/bin/sh
# SPDX-License-Identifier: MIT
#
# A training that is interrupted twice, by SIGINT and by SIGTERM, and goes on each time, ends with the same file, byte
# for byte, as one that is not. usage: interrupt.sh train_char_lm
set -eu

program=$1
text=$(cd "$(dirname "$0")/../.." && pwd)/examples/sentence_search/data/pride_and_prejudice.txt
work=$(mktemp -d)
pid=
clean_up() {
  [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || :
  rm -rf "$work"
}
trap clean_up EXIT
cd "$work"

fail() {
  printf '%s\n' "interrupt.sh: $*" >&2
  exit 1
}
set -- --text "$text" --report-every 10 --windows 4 --sample 0 --curve curve.svg --threads 2
setup='--steps 160 --warmup 10 --batch 4 --length 32 --width 32 --heads 2 --layers 2'

# shellcheck disable=SC2086 # words
"$program" "$@" $setup --checkpoint whole.safetensors >whole.log || fail "the training that is not interrupted failed"

# interrupted SIGNAL NUMBER STEP ARGUMENT...: starts, sends the signal once step STEP was reported, and expects the exit
# status 128 + NUMBER.
interrupted() {
  signal=$1 number=$2 step=$3
  shift 3
  : >parts.log
  "$program" "$@" --checkpoint parts.safetensors >>parts.log 2>&1 &
  pid=$!
  until grep -q "^ *$step  " parts.log; do
    kill -0 "$pid" 2>/dev/null || fail "the training ended before step $step: $(cat parts.log)"
    sleep 0.01
  done
  kill "-$signal" "$pid"
  status=0
  wait "$pid" || status=$?
  pid=
  [ "$status" -eq $((128 + number)) ] || fail "exit status $status after SIG$signal: $(cat parts.log)"
  grep -q 'train_char_lm --resume --checkpoint parts.safetensors' parts.log || fail "it does not say how to go on"
}
# shellcheck disable=SC2086
interrupted INT 2 20 "$@" $setup
interrupted TERM 15 60 "$@" --resume
"$program" "$@" --resume --checkpoint parts.safetensors >parts.log || fail "it does not go on: $(cat parts.log)"
cmp whole.safetensors parts.safetensors || fail "the interrupts changed the outcome"

# Nothing is lost by mistake.
# shellcheck disable=SC2086
if "$program" "$@" $setup --checkpoint parts.safetensors >parts.log 2>&1; then fail "it overwrote a training"; fi
grep -q -e '--resume goes on' parts.log || fail "it does not say why it refuses: $(cat parts.log)"
cmp whole.safetensors parts.safetensors || fail "the training was changed"
