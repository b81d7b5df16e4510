#!/usr/bin/env bash
# One table: Bowline, the kubelet and the bare CRI, in turn on a lab host that is reset for each.
# See test/bench for the settings.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p bin docs
CGO_ENABLED=0 go build -o bin/bench ./test/bench
exec bin/bench -bowline bin/bowline -out "${BOWLINE_BENCH_OUT:-docs/bench.md}" "$@"
