#!/usr/bin/env bash
# Every test: those that need only Go, the same under the race detector if they have goroutines, and
# those on real containerds and real clusters.
#
#   hack/test.sh [--full] [unit|race|machine]...     all three by default
#
# Without --full, a seed chooses which tests of the suite run locally and which over SSH, which half of
# the tests with their own lab runs, which half of the packages runs under the race detector, and a part
# of the kill matrix and of the tests of host/ssh. BOWLINE_TEST_SEED repeats the choice.
set -euo pipefail
cd "$(dirname "$0")/.."
hack=$PWD/hack
. hack/test-lib.sh
# sudo's PATH lacks the usual directory of Go.
command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin

bold= plain=
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
step() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }

# part NAME COMMAND...: runs the part and records its result.
part() {
  local name=$1 start=$SECONDS how=ok
  shift
  "$@" || how=FAILED
  record "$name" $how $((SECONDS - start))
  [ $how = ok ]
}

# These packages do not run under the race detector: the pure ones start no goroutine, and their
# enumerations are long; those below test/ run other processes.
alone='^github.com/bowline-k8s/bowline(/charts|/config|/pod)?$|/syncloop/(plan|status|volume/render|gc/gcpolicy)$|/cri/(spec|critest.*)$|/hosts/shard$|/bowline/test/'

# slow_first ARGUMENT...: lists packages as go list does, but first those whose tests take minutes. These
# tests mostly wait, so go test runs one package more at a time than the machine has CPUs.
slow_first() {
  local all slow
  all=$(go list "$@") || return 1
  for slow in host/ssh syncloop ownership; do grep "/$slow\$" <<<"$all"; done
  grep -vE '/(host/ssh|syncloop|ownership)$' <<<"$all"
}
at_once=$(($(nproc) + 1))

# packages PART...: lists the packages with goroutines. If both unit and race run, a seed lists only
# those for the race detector: every second one.
packages() {
  local all half=
  all=$(slow_first ./... | grep -vE "$alone") || return 1
  [[ " $* " != *" unit "* || " $* " != *" race "* ]] || half=${BOWLINE_TEST_SEED:-}
  awk -v half="$half" 'half == "" || (NR + half) % 2' <<<"$all"
}

unit() {
  step "unit: tests that need only Go"
  local module list
  for module in hack/image lab provider/vktest/http; do (cd "$module" && gotest unit ./...) || return 1; done
  list=$(slow_first ./...) || return 1
  # The part race runs the other packages.
  [[ " $* " != *" race "* ]] || list=$(grep -vxFf <(packages "$@") <<<"$list") || return 1
  # host/ssh runs real sshds, and may take longer than go test's ten minutes.
  # shellcheck disable=SC2086
  gotest unit -timeout 45m -p "$at_once" $list
}

race() {
  step "race: packages with goroutines, under the race detector"
  [ -z "${BOWLINE_TEST_SEED:-}" ] || echo "BOWLINE_TEST_SEED=$BOWLINE_TEST_SEED chooses the packages, and one of the four suites of host/ssh; make race runs all packages, make test-full also all suites."
  local list
  list=$(packages "$@") || return 1
  # The detector is written in C; gcc links its programs.
  if ! command -v gcc >/dev/null; then
    step "race: gcc is missing"
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
      echo "install it: sudo apt-get install -y gcc libc6-dev" >&2
      return 1
    fi
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev || return 1
  fi
  # shellcheck disable=SC2086
  CGO_ENABLED=1 gotest race -race -timeout 45m -p "$at_once" $list
}

build() {
  step "build: the programs of the real labs (Kubernetes takes some minutes the first time)"
  hack/build-lab.sh && make --no-print-directory -s build
}

machine() {
  part build build || { record machine "not run" 0; return 1; }
  step "machine: real containerds, real clusters"
  hack/test-machine.sh
}

if [ "${1:-}" = --full ]; then
  shift
  unset BOWLINE_TEST_SEED
  export BOWLINE_CHAOS=full BOWLINE_E2E_FULL=1 BOWLINE_LINKS=full
else
  export BOWLINE_TEST_SEED=${BOWLINE_TEST_SEED:-$RANDOM}
fi
[ $# -gt 0 ] || set -- unit race machine
for name; do
  case $name in
  unit | race | machine) ;;
  *) echo "hack/test.sh [--full] [unit|race|machine]..." >&2; exit 2 ;;
  esac
done

begin_record
trap end_record EXIT
failed=
for name; do
  if [ "$failed" ]; then
    record "$name" "not run" 0
    continue
  fi
  case $name in
  machine) machine ;; # its steps are parts
  *) part "$name" "$name" "$@" ;;
  esac || failed=yes
done
[ -z "$failed" ] || { echo FAIL; exit 1; }
