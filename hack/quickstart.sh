#!/usr/bin/env bash
# Times a new user's steps: runs docs/quickstart.md in its own lab and prints how long each step
# took, from "helm install" to a Ready pod on the remote host. It fails if that takes more than five
# minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "hack/quickstart.sh: run it as root: it makes namespaces, mounts and cgroups" >&2; exit 1; }
hack/build-lab.sh
CGO_ENABLED=0 go build -o bin/bowline ./cmd/bowline
hack/helm.sh version --short >/dev/null
arch=$(go env GOARCH)
go -C hack/image run . -root "$PWD" -out "$PWD/bin/image" -architectures "$arch" -version test

times=$(mktemp) log=$(mktemp)
trap 'rm -f "$times" "$log"' EXIT
if ! BOWLINE_E2E=1 BOWLINE_BIN=$PWD/bin/bowline BOWLINE_HELM=$PWD/bin/helm BOWLINE_IMAGE=$PWD/bin/image/bowline-$arch.tar \
  BOWLINE_DOCS=quickstart BOWLINE_DOCS_TIMES=$times go test -count=1 -timeout 20m -run '^TestInCluster$' -v ./test/docs/ >"$log" 2>&1; then
  cat "$log"
  exit 1
fi
cat "$times"
