#!/usr/bin/env bash
# Builds llama.cpp's own llama-server, llama-bench and llama-perplexity into $PEERS/bin (by default ~/.cache/peers/bin),
# out of the source that the sdist of llama-cpp-python carries: so the peer has a version that pip knows.
# Needs cmake, a C++ compiler and pip; about 25 minutes on one core, 700 MB while it builds.
#
#     bash benchmarks/peers/llama_server.sh [version of llama-cpp-python]
set -euo pipefail
version="${1:-0.3.36}"
peers="${PEERS:-$HOME/.cache/peers}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$peers/bin"

python3 -m pip download --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version" -d "$work"
tar xzf "$work"/llama_cpp_python-*.tar.gz -C "$work"
source="$(echo "$work"/llama_cpp_python-*/vendor/llama.cpp)"

cmake -S "$source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
nice -n 19 cmake --build "$work/build" -j "${JOBS:-1}" --target llama-server llama-bench llama-perplexity
cp "$work"/build/bin/llama-{server,bench,perplexity} "$peers/bin/"
echo "llama-cpp-python $version" > "$peers/bin/VERSION"
ls -l "$peers/bin"
