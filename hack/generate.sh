#!/usr/bin/env bash
# Generates the deepcopy functions and the CRD from api/.
#
#   hack/generate.sh [--check]
#
# With --check it writes nothing; it shows outdated files and fails.
set -euo pipefail
cd "$(dirname "$0")/.."

# Built once for this Go version; its dependencies stay out of go.mod.
generator=sigs.k8s.io/controller-tools/cmd/controller-gen@v0.22.0

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
go run "$generator" object paths=./api/... "output:object:dir=$out"
go run "$generator" crd:generateEmbeddedObjectMeta=false,maxDescLen=600 paths=./api/... "output:crd:dir=$out/crds"

in_step=yes
put() { # FILE DESTINATION
	if [ "${check:-}" = yes ]; then
		diff -u "$2" "$1" || in_step=no
	else
		cmp -s "$1" "$2" || { cp "$1" "$2"; echo "wrote $2"; }
	fi
}
[ "${1:-}" = --check ] && check=yes
put "$out/zz_generated.deepcopy.go" api/v1alpha1/zz_generated.deepcopy.go
for crd in "$out"/crds/*.yaml; do put "$crd" "charts/bowline/crds/$(basename "$crd")"; done
[ $in_step = yes ] || { echo "hack/generate.sh fixes it" >&2; exit 1; }
