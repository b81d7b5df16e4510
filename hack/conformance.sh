#!/usr/bin/env bash
# The Kubernetes project's own e2e suite, run against a node in a lab: see
# test/conformance for the flags. What is missing is built first, which takes some
# minutes once.
set -euo pipefail
cd "$(dirname "$0")/.."

hack/conformance-build.sh
hack/runc.sh
[[ " $* " != *" -set crio "* ]] || hack/build-crio.sh
export PATH="$PATH:${BOWLINE_CACHE:-/var/cache/bowline}/bin"
mkdir -p bin
CGO_ENABLED=0 go build -o bin/judge ./test/conformance
exec bin/judge "$@"
