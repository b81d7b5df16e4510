#!/usr/bin/env bash
# Checks everything that can be verified without running Bowline.
set -euo pipefail
cd "$(dirname "$0")/.."

modules=(. hack/image lab lab/kube lab/containerd lab/coredns lab/helm lab/runc lab/monitoring lab/conformance provider/vktest/http)
# As the tests are compiled (hack/test-lib.sh).
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
step() { printf '\033[1m== %s\033[0m\n' "$*"; }

# run_tests NAMES PACKAGE: runs the tests of these names (A|B), each of which must exist: go test
# itself passes if no test has the name.
run_tests() {
	local names listed name
	IFS='|' read -ra names <<<"$1"
	listed=$(go test -list . "$2")
	for name in "${names[@]}"; do
		grep -qx "$name" <<<"$listed" || { echo "$2 has no test $name" >&2; return 1; }
	done
	go test -count=1 -run "^($1)\$" "$2"
}

# commit_messages fails if the subject of a commit has more than 70 characters, or if its body has
# fewer than 40 or no sentence of at least four words. It checks the commits that the upstream branch
# lacks, or else the last commit, but none up to the one that introduced the rule for subjects.
# Outside a git checkout and on a shallow clone it checks nothing.
commit_messages() {
	[ "$(git rev-parse --is-shallow-repository 2>/dev/null)" = false ] || return 0
	git rev-parse -q --verify HEAD >/dev/null || return 0
	local base=e2f267a2e034032245491cad83d875f5a56f7fe9
	local range=(-1 HEAD) commit subject body wrong=
	if git rev-parse -q --verify '@{upstream}' >/dev/null 2>&1; then range=('@{upstream}..HEAD'); fi
	if git rev-parse -q --verify "$base^{commit}" >/dev/null; then range+=("^$base"); fi
	for commit in $(git rev-list --no-merges "${range[@]}"); do
		subject=$(git log -1 --format=%s "$commit")
		body=$(git log -1 --format=%b "$commit" | grep -vE '^[A-Z][A-Za-z-]+: ' | tr '\n' ' ') || body=
		if [ "$(characters "$subject")" -gt 70 ]; then
			wrong+="  $(git log -1 --format=%h "$commit") $subject: the subject has more than 70 characters"$'\n'
		fi
		if [ "$(characters "$body")" -lt 40 ] || ! grep -qE '([^ ]+ +){3,}[^ ]*[.!?]( |$)' <<<"$body"; then
			wrong+="  $(git log -1 --format=%h "$commit") $subject: no body says why"$'\n'
		fi
	done
	[ -z "$wrong" ] || { printf 'these messages of commits break the rules (CONTRIBUTING.md):\n%s' "$wrong" >&2; return 1; }
}

characters() { printf %s "$1" | LC_ALL=C.UTF-8 wc -m; }

step "commit messages"
commit_messages

step "format"
unformatted=$(gofmt -l $(git ls-files '*.go'))
if [ -n "$unformatted" ]; then
	echo "not formatted (gofmt -w fixes it):" >&2
	echo "$unformatted" >&2
	exit 1
fi

step "modules are tidy"
for m in "${modules[@]}"; do
	(cd "$m" && go mod tidy -diff) || { echo "go mod tidy in $m fixes it" >&2; exit 1; }
done

step "vet"
go vet ./...
go vet -tags faults ./cmd/... ./faultinject
for m in hack/image lab provider/vktest/http; do (cd "$m" && go vet ./...); done

step "staticcheck"
# Built once for this Go version; its dependencies stay out of go.mod.
go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
for m in hack/image lab provider/vktest/http; do (cd "$m" && go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...); done

step "import rules and words"
run_tests 'TestImports|TestMatches|TestViolations|TestMainHasNoLoops|TestLoops|TestRetiredWords' .

step "generated files are up to date"
# The golden outputs of the planner's and the statuses' scripts, and the CRI requests of the sample
# pods.
for golden in "Scripts ./syncloop/plan" "Scripts ./syncloop/status" "Golden ./cri/spec"; do
	run_tests "Test${golden% *}" "${golden#* }" || { echo "go test -run ${golden% *} ${golden#* } -update fixes it" >&2; exit 1; }
done

hack/generate.sh --check
hack/manifests.sh --check

step "shell scripts parse"
for f in hack/*.sh .ci/run; do bash -n "$f"; done
