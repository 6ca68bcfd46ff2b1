#!/usr/bin/env bash
# Generates the Python code of the contracts with the oldest supported gRPC, so that it runs with all newer ones.
# `tools/proto.sh` writes it; `tools/proto.sh --check` fails if what is committed is not what would be written.
set -euo pipefail
cd "$(dirname "$0")/.."
generator=grpcio-tools==1.76.0
venv=.cache/proto-venv
if [ ! -e "$venv/.ready-$generator" ]; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "$generator"
  touch "$venv/.ready-$generator"
fi
generate() {
  "$venv/bin/python" -m grpc_tools.protoc -I proto --python_out="$1" --pyi_out="$1" --grpc_python_out="$1" proto/gpugrade/*/*.proto
}
if [ "${1:-}" = --check ]; then
  fresh=$(mktemp -d)
  trap 'rm -rf "$fresh"' EXIT
  generate "$fresh"
  for file in "$fresh"/gpugrade/*/*; do
    cmp "$file" "proto/${file#"$fresh/"}" || { echo "generated code is not fresh: run tools/proto.sh and commit" >&2; exit 1; }
  done
  echo "generated code is fresh"
else
  generate proto
fi
