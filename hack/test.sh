#!/usr/bin/env bash
# Every test: those that need only Go, the same under the race detector if they have goroutines, and
# those on real containerds and real clusters.
#
#   hack/test.sh [unit|race|machine]...     all three by default
set -euo pipefail
cd "$(dirname "$0")/.."
# sudo's PATH lacks the usual directory of Go.
command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin

bold= plain=
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
# step WHAT: prints how long the previous step took. The last one ends with the output of go test
# itself.
step() {
  if [ -n "${began:-}" ]; then printf '%s-- %d s%s\n' "$bold" $((SECONDS - began)) "$plain"; fi
  printf '\n%s== %s%s\n' "$bold" "$*" "$plain"
  began=$SECONDS
}

# Not under the race detector: purely deciding packages start no goroutine, and their enumerations
# are long; the packages below test/ run other processes.
alone='^github.com/bowline-k8s/bowline(/charts|/config|/pod)?$|/syncloop/(plan|status|volume/render|gc/gcpolicy)$|/cri/(spec|critest.*)$|/hosts/shard$|/bowline/test/'

unit() {
  step "unit: what needs nothing but Go"
  local module packages=./...
  for module in hack/image lab provider/vktest/http; do (cd "$module" && go test ./...); done
  # The same tests under the race detector follow.
  [[ " $* " != *" race "* ]] || packages=$(go list ./... | grep -E "$alone")
  # shellcheck disable=SC2086
  go test $packages
}

race() {
  local packages
  packages=$(go list ./... | grep -vE "$alone")
  # The detector is written in C; gcc links its programs.
  if ! command -v gcc >/dev/null; then
    step "race: gcc is missing"
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
      echo "install it: sudo apt-get install -y gcc libc6-dev" >&2
      return 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev
  fi
  step "race: what runs at once, under the race detector"
  # host/ssh runs real sshds, and may take longer than go test's ten minutes.
  # shellcheck disable=SC2086
  CGO_ENABLED=1 go test -race -timeout 25m $packages
}

machine() {
  step "machine: what the real ones need (Kubernetes takes some minutes to build the first time)"
  hack/build-lab.sh
  make --no-print-directory -s build
  step "machine: real containerds, real clusters"
  hack/test-machine.sh
}

[ $# -gt 0 ] || set -- unit race machine
for name; do
  case $name in
  unit | race | machine) "$name" "$@" ;;
  *) echo "hack/test.sh [unit|race|machine]..." >&2; exit 2 ;;
  esac
done
