#!/usr/bin/env bash
# Runs the long suites one after the other, and ends with a table of their results and times:
#
#   hack/suites.sh [SUITE...]
#
# Without arguments it runs these, which takes about three hours:
#
#   nodeconformance  a kubelet, a local and a remote node, on containerd and on CRI-O: all six at the same time
#   twin             a local and a remote node at the same time
#   chaos            the whole kill matrix, and all faults on links
#   storm            over SSH
#   hostile          one hostile host among healthy ones
#   bench            compared with the program $BOWLINE_BENCH_BASE, if that is set
#
# The machine must have nothing else to do, in particular for the last three. "conformance" (the 462 specs of
# [Conformance]) and "node" (Kubernetes' node suite) run three nodes at the same time, if they are named.
# Each suite writes its documents in docs/, and its log in bin/suites. If one fails, the others still run.
set -euo pipefail
cd "$(dirname "$0")/.."
hack=$PWD/hack
. hack/test-lib.sh

[ $# -gt 0 ] || set -- nodeconformance twin chaos storm hostile bench
for suite; do
  case $suite in
  nodeconformance | twin | chaos | storm | hostile | bench | conformance | node) ;;
  *)
    echo "hack/suites.sh: unknown suite $suite" >&2
    exit 2
    ;;
  esac
done

# part NAME COMMAND...: runs the command with its output in a file, and records its result.
part() {
  local name=$1 start=$SECONDS how=ok
  shift
  "$@" >"bin/suites/$name.log" 2>&1 || how=FAILED
  record "$name" $how $((SECONDS - start))
  echo "$name: $how"
}

# columns SET...: every node of the sets at the same time.
columns() {
  local set node
  hack/conformance-build.sh
  hack/runc.sh
  [[ " $* " != *" crio "* ]] || hack/build-crio.sh
  for set; do
    for node in kubelet local ssh; do
      part "$set-$node" hack/conformance.sh -set "$set" -node "$node" -out "bin/conformance-results/$set" &
    done
  done
  wait
}

begin_record
trap end_record EXIT
make build lab
mkdir -p bin/suites
export BOWLINE_E2E=1 BOWLINE_BIN=$PWD/bin/bowline
for suite; do
  case $suite in
  nodeconformance) columns nodeconformance crio ;;
  conformance | node) columns "$suite" ;;
  twin)
    for host in local ssh; do part "twin-$host" hack/twin.sh $host & done
    wait
    ;;
  chaos) BOWLINE_CHAOS=full BOWLINE_LINKS=full part chaos go test -v -count=1 -timeout 60m ./test/chaos/ ;;
  storm) BOWLINE_E2E_HOST=ssh BOWLINE_STORM=10m part storm go test -v -count=1 -timeout 60m -run TestStorm ./test/storm ;;
  hostile) part hostile go test -v -count=1 -timeout 40m ./test/hostile/ ;;
  bench) part bench hack/bench.sh ;;
  esac
done
! grep -q $'\tFAILED\t' "$BOWLINE_TEST_RECORD"
