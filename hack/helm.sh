#!/usr/bin/env bash
# helm, built from its module (lab/helm) into bin/ if it is not there or is another.
#
#   hack/helm.sh ARGUMENT...
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# As the tests are built, so that what they share is compiled once.
go build -C "$root/lab/helm" -buildvcs=false -o "$root/bin/helm" helm.sh/helm/v4/cmd/helm
exec "$root/bin/helm" "$@"
