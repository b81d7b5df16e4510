#!/usr/bin/env bash
# Runs the same manifests on two kubelets and on Bowline's node, in one lab: see test/twin.
#
#   hack/twin.sh local|ssh
#
# The results go to docs/twin.json, the recordings to bin/twin, and docs/conformance.md is
# regenerated. BOWLINE_TWIN_RUN=REGEX runs some scenarios only, and keeps no result.
set -euo pipefail
cd "$(dirname "$0")/.."

host=${1:-local}
case $host in
local | ssh) ;;
*)
	echo "hack/twin.sh: HOST=$host: want local or ssh" >&2
	exit 2
	;;
esac
export BOWLINE_E2E=1 BOWLINE_TWIN=1 BOWLINE_E2E_HOST=$host PATH="$PATH:${BOWLINE_CACHE:-/var/cache/bowline}/bin"
failed=0
go test -count=1 -timeout 40m -v -run '^TestTwin$' ./test/twin || failed=$?
go run ./test/conformance -document
exit $failed
