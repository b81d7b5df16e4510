#!/bin/bash
# Runs every fuzz target of the repository for FUZZTIME (10m), FUZZJOBS (1) at a time.
#   hack/fuzz.sh [PACKAGE...]     for example ./host/ssh ./cri/...; all of them by default
# FUZZ is a regular expression of targets. An input that fails its target is in the
# package's testdata/fuzz: commit it with the fix. The inputs that reached new code go
# into testdata/corpus/TARGET, which the target starts from and go test runs: commit them.
set -euo pipefail
cd "$(dirname "$0")/.."
export FUZZTIME=${FUZZTIME:-10m}
[ $# -gt 0 ] || set -- ./...
work=$(mktemp -d)
export work
trap 'rm -rf "$work"' EXIT

# pack adds the inputs of a directory to a corpus, smallest first: up to 4 KiB each, and 64 KiB in
# all.
pack() {
	local inputs=$1 corpus=$2 name size total=0
	mkdir -p "$(dirname "$corpus")"
	[ ! -e "$corpus" ] || total=$(stat -c %s "$corpus")
	while read -r size name; do
		[ "$size" -le 4096 ] && [ $((total + size)) -le 65536 ] || break
		tail -n +2 "$inputs/$name" | paste -s >>"$corpus" # one line, without go test's header
		total=$((total + size))
	done < <(find "$inputs" -type f -printf '%s %f\n' | sort -n)
}

# one runs one target of a package's test binary.
one() {
	local binary=$1 target=$2 package=$3 dir=$4 log=$work/$1.$2.log inputs=$work/$1.$2 result=ok
	mkdir "$inputs"
	(cd "$dir" && "$work/$binary.test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$FUZZTIME" \
		-test.fuzzcachedir "$inputs" -test.parallel 1) >"$log" 2>&1 || result=failed
	[ ! -d "$inputs/$target" ] || pack "$inputs/$target" "$dir/testdata/corpus/$target"
	echo "$result $package $target: $(grep -o 'elapsed: .*' "$log" | tail -1)"
	[ $result = ok ] || { cat "$log"; return 1; }
}
export -f one pack

n=0
for package in $(go list "$@"); do
	dir=$(go list -f '{{.Dir}}' "$package")
	targets=$(cat "$dir"/*_test.go 2>/dev/null | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' | sort -u | grep -E "${FUZZ:-.}" || true)
	[ -n "$targets" ] || continue
	n=$((n + 1))
	go test -c -fuzz . -o "$work/$n.test" "$package"
	for target in $targets; do
		printf '%s\0%s\0%s\0%s\0' $n "$target" "$package" "$dir" >>"$work/list"
	done
done
[ -e "$work/list" ] || { echo "no target matches" >&2; exit 1; }
xargs -0 -n 4 -P "${FUZZJOBS:-1}" bash -c 'one "$@"' fuzz <"$work/list"
