#!/usr/bin/env bash
# Builds what is missing, then makes real labs and checks that they work and leave nothing behind.
# Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
hack=$PWD/hack
. hack/test-lib.sh
begin_record
trap end_record EXIT
hack/build-lab.sh
cd lab
BOWLINE_LAB_TEST=1 gotest lab -count=1 "$@" ./...
