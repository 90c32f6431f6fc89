#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Compares heed with PyTorch, ONNX Runtime and llama.cpp: ./heed bench compare [--avx2] [ARGUMENT of compare.py...]
#
# The peers are installed once, into build/compare-env, as requirements.txt pins them: a download of about 2 GB.
# HEED_COMPARE_PYTHON names the Python of an environment that has them already, to be used instead.
# --avx2 holds heed, PyTorch and its libraries to AVX2; ONNX Runtime has no such switch.
# Exit status: 3 when the peers can't be installed here, after one line that says why.
set -eu
cd "$(dirname "$0")/../.."

say() { echo "heed: $*" >&2; }
unavailable() {
  say "no comparison: $*"
  exit 3
}

preset=bench
if [ "${1:-}" = --avx2 ]; then
  shift
  preset=bench-avx2
  export ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2
fi

# --- The peers --------------------------------------------------------------------------------------------------------

requirements=bench/compare/requirements.txt
environment=build/compare-env

if [ -n "${HEED_COMPARE_PYTHON:-}" ]; then
  python=$HEED_COMPARE_PYTHON
  "$python" -c 'import numpy, onnx, onnxruntime, safetensors, torch' ||
    unavailable "$python lacks one of the packages that $requirements lists"
else
  python=$environment/bin/python
  # The copy beside the packages tells which list they were installed from; it is written last.
  if ! cmp -s "$requirements" "$environment/requirements.txt"; then
    [ "$(uname -sm)" = "Linux x86_64" ] ||
      unavailable "$requirements is for Linux on x86-64; name a Python that has the peers in HEED_COMPARE_PYTHON"
    host_python=
    for candidate in python3 python3.13 python3.12 python3.11; do
      if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
        host_python=$candidate
        break
      fi
    done
    [ -n "$host_python" ] || unavailable "it takes Python 3.11, 3.12 or 3.13"
    rm -rf "$environment"
    mkdir -p build
    "$host_python" -m venv "$environment" >&2 ||
      unavailable "$host_python can't make an environment (on Debian: apt-get install python3-venv)"
    say "installing PyTorch and ONNX Runtime into $environment: about 2 GB, once"
    "$python" -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir --no-deps --no-compile \
      --only-binary :all: --require-hashes -r "$requirements" >&2 ||
      unavailable "pip could not install $requirements; is there a network?"
    cp "$requirements" "$environment/requirements.txt"
  fi
  if ! "$python" -c 'import llama_cpp' 2>/dev/null; then
    say "building llama.cpp into $environment: some minutes, once"
    # With its default flags it is built for the processor of this machine.
    "$python" -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir --no-deps \
      --no-binary llama-cpp-python --require-hashes -r bench/compare/llamacpp-requirements.txt >&2 ||
      say "llama.cpp is left out: it could not be built"
  fi
fi

# --- heed -------------------------------------------------------------------------------------------------------------

generator=
if ! command -v ninja >/dev/null; then generator="-GUnix Makefiles"; fi
cmake --preset "$preset" ${generator:+"$generator"} >/dev/null
cmake --build "build/$preset" --target workloads --parallel "$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)" >&2

if [ -z "${HEED_MODEL_DIR:-}" ] && HEED_MODEL_DIR=$(examples/sentence_search/fetch_model.sh); then
  export HEED_MODEL_DIR
fi

examples/generate/fetch_model.sh >/dev/null || say "the language model will not be measured"

# What torch.compile keeps of one instruction set must not be found under another.
export TORCHINDUCTOR_CACHE_DIR="$PWD/build/$preset/torch-compiled"
exec "$python" bench/compare/compare.py --heed "build/$preset/bench/workloads" "$@"
