#!/usr/bin/env bash
# Runs helm, built from its module (lab/helm) into bin/ if it is missing or outdated.
#
#   hack/helm.sh ARGUMENT...
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# Built with the flags of the tests, so that shared packages are compiled once.
go build -C "$root/lab/helm" -buildvcs=false -o "$root/bin/helm" helm.sh/helm/v4/cmd/helm
exec "$root/bin/helm" "$@"
