#!/usr/bin/env bash
# Runs the Kubernetes project's own e2e suite against a node in a lab: see test/conformance for the
# flags. It first builds what is missing, which takes some minutes once.
set -euo pipefail
cd "$(dirname "$0")/.."

hack/conformance-build.sh
hack/runc.sh
[[ " $* " != *" -set crio "* ]] || hack/build-crio.sh
export PATH="$PATH:${BOWLINE_CACHE:-/var/cache/bowline}/bin"
mkdir -p bin
CGO_ENABLED=0 go build -o bin/conformance ./test/conformance
exec bin/conformance "$@"
