#!/bin/sh
# Write deploy/ci.lock: every dependency of the tests, pinned and hashed for all systems: make lock
#
# Not in it: torch, which is pinned in pyproject.toml and built by system, and what its builds
# for graphics cards bring with them.
set -eu
cd "$(dirname "$0")/.."
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
.venv/bin/python -m venv "$made/venv"
"$made/venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
"$made/venv/bin/uv" pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
    --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
    --quiet --output-file "$made/all"
awk '/^[a-z]/ {keep = !/^(torch|triton|nvidia-[a-z0-9-]*|cuda-[a-z0-9-]*)==/} keep' "$made/all" \
    >deploy/ci.lock
echo "deploy/ci.lock: $(grep -c == deploy/ci.lock) packages"
