#!/bin/bash
# Runs every fuzz target of the repository, one after the other, each for FUZZTIME (10m).
#   hack/fuzz.sh [PACKAGE...]     for example ./host/ssh ./cri/...; all of them by default
# FUZZ is a regular expression of targets. What is found lies in the package's
# testdata/fuzz, and is run by "go test" from then on: commit it with what it needed.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${FUZZTIME:-10m}
parallel=${FUZZPARALLEL:-1}
[ $# -gt 0 ] || set -- ./...

failed=()
for package in $(go list "$@"); do
	dir=$(go list -f '{{.Dir}}' "$package")
	targets=$(cat "$dir"/*_test.go 2>/dev/null | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' | sort -u)
	for target in $targets; do
		[[ $target =~ ${FUZZ:-.} ]] || continue
		echo "== $package $target ($time)"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -parallel "$parallel" "$package" || failed+=("$package $target")
	done
done
if [ ${#failed[@]} -gt 0 ]; then
	printf 'failed: %s\n' "${failed[@]}" >&2
	exit 1
fi
