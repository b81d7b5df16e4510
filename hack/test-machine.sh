#!/usr/bin/env bash
# The tests that need root: the runtimes' suite on real containerds, virtual-kubelet's behaviour
# against a real API server, whole nodes in a real cluster, and the kill matrix. Each brings up its
# own lab and removes it. They need only Go, root and Debian packages, which are installed if
# missing.
#
#   hack/test-machine.sh [STEP...]     all steps, or: lab critest vktest e2e crio ssh release links docs helm chaos
#
# If BOWLINE_TEST_SEED is set, it chooses which tests of the suite run locally and which over SSH, and
# a part of the kill matrix.
set -uo pipefail
cd "$(dirname "$0")/.."
hack=$PWD/hack
. hack/test-lib.sh
[ "$(id -u)" = 0 ] || { echo "hack/test-machine.sh: run it as root: it makes namespaces, mounts and cgroups" >&2; exit 1; }
hack/build-lab.sh || exit 1
cache=${BOWLINE_CACHE:-/var/cache/bowline}
CGO_ENABLED=0 go build -o bin/bowline ./cmd/bowline || exit 1

# Logins with sudo are tested with sudo.
if ! command -v sudo >/dev/null && command -v apt-get >/dev/null; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends sudo || exit 1
fi

work=$(mktemp -d)
failures=$work/failures
: >"$failures"
begin_record
failed=0
lab=
lanes=()
exec 3>&1 # the results of concurrent steps
cleanup_lab() { [ -z "$lab" ] || "$cache/bin/bowline-lab" --dir "$lab" down && lab=; }
cleanup() {
  local lane
  for lane in "${lanes[@]}"; do { kill -- "-$lane" && wait "$lane"; } 2>/dev/null; done
  cleanup_lab
  end_record
  rm -rf "$work"
}
trap cleanup EXIT

# starts_slowly reports whether the machine starts fewer than 350 programs a second.
starts_slowly() {
  local start=${EPOCHREALTIME/[.,]/} i
  for ((i = 0; i < 200; i++)); do /bin/true; done
  ((${EPOCHREALTIME/[.,]/} - start > 200 * 1000000 / 350))
}

# Three lanes run concurrently, with up to five labs, one of them with eight tests at a time. On a slow
# machine that makes containerds exceed time limits of their own, which no test can change.
slow= at_once=8
if starts_slowly; then
  slow=yes at_once=3
  export BOWLINE_E2E_LABS=1
  echo "This machine starts programs slowly: fewer tests run at a time."
fi

seed=${BOWLINE_TEST_SEED:-}
if [ "$seed" ]; then
  echo "BOWLINE_TEST_SEED=$seed chooses which tests of the suite run locally and which over SSH, and a part of the kill matrix; make test-full runs all."
fi

# step NAME COMMAND...: runs it if NAME, or the part before its slash, is wanted, and records the
# result. The steps after a failed one still run.
wanted=" $* "
step() {
  local name=$1 start=$SECONDS how=ok
  shift
  [ "$wanted" = "  " ] || [[ $wanted == *" $name "* || $wanted == *" ${name%%/*} "* ]] || return 0
  printf '\n\033[1m== %s\033[0m\n' "$name"
  "$@" || { how=FAILED; failed=1; }
  printf -- '-- %s %s after %d s\n' "$name" "$how" $((SECONDS - start)) >&3
  record "$name" $how $((SECONDS - start))
}

# in_parallel LANE...: runs functions of steps concurrently, because most steps mostly wait. Each has
# its own process group, which ends with this process; its output is shown when it has ended.
in_parallel() {
  local lane
  set -m
  for lane; do
    (
      failed=0 lanes=()
      trap cleanup_lab EXIT
      trap 'exit 1' TERM
      "$lane"
      exit $failed
    ) >"$work/$lane.log" 2>&1 </dev/null &
    lanes+=($!)
  done
  set +m
  for lane; do
    wait "${lanes[0]}" || failed=1
    lanes=("${lanes[@]:1}")
    cat "$work/$lane.log"
  done
}

# containerd 2 from the lab, and Debian's 1.6, each in its own namespaces.
critest() {
  local debian
  debian=$(sh cri/critest/testmachine/debian-containerd.sh "$cache/debian-containerd") || return 1
  BOWLINE_TEST_CONTAINERD="v2=$cache/bin,debian=$debian" gotest critest -count=1 -timeout 10m -run TestContainerd ./cri/critest/
}

vktest() {
  lab=$work/lab
  "$cache/bin/bowline-lab" --dir "$lab" up --hosts 1 || { cleanup_lab; return 1; }
  local config status=0
  config=$("$cache/bin/bowline-lab" --dir "$lab" kubeconfig --path) || { cleanup_lab; return 1; }
  BOWLINE_LAB_KUBECONFIG=$config gotest vktest -count=1 -timeout 15m ./provider/vktest/ || status=1
  (cd provider/vktest/http && BOWLINE_LAB_KUBECONFIG=$config gotest vktest -count=1 -timeout 10m ./...) || status=1
  "$cache/bin/bowline-lab" --dir "$lab" down && lab=
  return $status
}

# complaints LOG: prints the first messages of each failed test in the log of go test -v.
complaints() {
  awk '
    NR == FNR { if ($1 == "---" && $2 == "FAIL:") failed[$3]; next }
    /^=== / { split($3, name, "/"); next }
    name[1] in failed && /^ +[a-z_]+_test\.go:[0-9]+: / && said[name[1]]++ < 8 { print name[1] ": " $0 }
  ' "$1" "$1"
}

# suite ARGUMENT...: runs the tests of test/e2e with these arguments. The first call links them.
suite() {
  flock "$work/e2e.lock" sh -c '[ -x "$1" ] || go test -c -vet=off -o "$1" ./test/e2e' sh "$work/e2e.test" || return 1
  (cd test/e2e && "$work/e2e.test" -test.v "$@")
}

# e2e HOST PART NAME: runs the suite's tests that have the node for themselves (serial), or those that
# run concurrently (parallel), in its own lab, as the step NAME. It shows the whole log of a failure, and
# otherwise the slowest tests.
e2e() {
  local host=$1 part=$2 log=$work/e2e-$1-$2.log status=0
  BOWLINE_E2E=1 BOWLINE_E2E_HOST=$host BOWLINE_E2E_PART=$part BOWLINE_BIN=$PWD/bin/bowline \
    suite -test.timeout 50m -test.parallel $at_once >"$log" 2>&1 || status=1
  if [ $status != 0 ]; then
    grep -v '^=== ' "$log"
    complaints "$log" >>"$failures"
  fi
  count "$3" "$log"
  echo "the longest, in seconds:"
  awk '/^--- / { gsub(/[()s]/, "", $4); print $4, $3 }' "$log" | sort -rn | head -n 10 | xargs printf '  %7.1f %s\n'
  tail -n 1 "$log"
  return $status
}

# A short run on CRI-O, if hack/build-crio.sh has built it: the runtimes' suite without its two
# tests that wait two minutes for CRI-O's own grace period, and some of the tests above.
crio() {
  if ! hack/build-crio.sh --check; then
    printf 'skip\tcrio\tall\tCRI-O is not built: make crio\n' >>"$BOWLINE_TEST_RECORD"
    return 0
  fi
  local log=$work/crio-critest.log status=0
  lab=$work/crio
  "$cache/bin/bowline-lab" --dir "$lab" up --hosts 1 --runtime crio || { cleanup_lab; return 1; }
  go test -c -o "$work/critest" ./cri/critest &&
    (cd cri/critest && BOWLINE_CRI_ENDPOINTS=crio=unix:///run/crio/crio.sock "$cache/bin/bowline-lab" --dir "$lab" exec host1 -- \
      "$work/critest" -test.v -test.timeout 5m -test.run TestEndpoints -test.skip 'TestEndpoints/crio/^(SandboxStopKills|ContainerRemoveRunning)$') >"$log" 2>&1 || { status=1; cat "$log"; }
  count crio "$log"
  "$cache/bin/bowline-lab" --dir "$lab" down && lab=
  log=$work/crio-e2e.log
  BOWLINE_TEST_SEED= BOWLINE_LAB_RUNTIME=crio BOWLINE_E2E=1 BOWLINE_BIN=$PWD/bin/bowline suite -test.timeout 10m -test.parallel 6 \
    -test.run '^Test(NodeRegisters|NodeNotReadyWithoutRuntime|NodeCheckpoint|InitOrderAndSidecars|ExecAttachPortForward|ProbesThatSucceed|RestartPolicies|Images)$' >"$log" 2>&1 || { status=1; cat "$log"; }
  count crio "$log"
  return $status
}

# Links that fail while calls are in flight, to hosts with fake runtimes.
links() {
  BOWLINE_E2E=1 BOWLINE_BIN=$PWD/bin/bowline gotest links -count=1 -timeout 60m ./test/links/
}

chaos() {
  local mode=brief
  [ -z "$seed" ] || mode=part
  BOWLINE_E2E=1 BOWLINE_CHAOS=${BOWLINE_CHAOS:-$mode} BOWLINE_CHAOS_SEED=${BOWLINE_CHAOS_SEED:-$seed} \
    gotest chaos -count=1 -timeout 6h ./test/chaos/
}

# A machine is prepared, runs pods, and is released, locally and over SSH.
release() { BOWLINE_E2E=1 BOWLINE_BIN=$PWD/bin/bowline gotest release -count=1 -timeout 30m ./test/release/; }

# Every command in the documents on hosts, and in those with Bowline in the cluster.
docs() {
  hack/helm.sh version --short || return 1
  BOWLINE_E2E=1 BOWLINE_BIN=$PWD/bin/bowline BOWLINE_HELM=$PWD/bin/helm gotest docs -count=1 -timeout 30m ./test/docs/
}

# The chart in a lab, with helm and the image, which are built here.
helm() {
  local arch
  arch=$(go env GOARCH)
  hack/helm.sh version --short || return 1
  go -C hack/image run . -root "$PWD" -out "$PWD/bin/image" -architectures "$arch" -version test || return 1
  BOWLINE_E2E=1 BOWLINE_BIN=$PWD/bin/bowline BOWLINE_HELM=$PWD/bin/helm BOWLINE_IMAGE=$PWD/bin/image/bowline-$arch.tar \
    gotest helm -count=1 -timeout 30m ./test/helm/
}

# next_step prints the first line of the queue and removes it. It fails if the queue is empty.
next_step() {
  (
    flock 9
    read -r first <"$work/queue" || exit 1
    sed -i 1d "$work/queue"
    echo "$first"
  ) 9>"$work/queue.lock"
}

# rest runs steps of the queue until it is empty.
rest() {
  local next
  # shellcheck disable=SC2086
  while next=$(next_step); do step $next; done
}

# Of the steps that run tests concurrently, one runs at a time.
concurrent_lane() {
  step e2e/parallel e2e local parallel e2e/parallel
  step ssh/parallel e2e ssh parallel ssh/parallel
  step chaos chaos
  rest
}
remote_lane() {
  step ssh/serial e2e ssh serial ssh/serial
  rest
}
local_lane() {
  step e2e/serial e2e local serial e2e/serial
  rest
}
one_by_one_lane() {
  step e2e/serial e2e local serial e2e/serial
  remote_lane
}

# What a lane runs after its own steps, the longest first.
printf '%s\n' 'crio crio' 'docs docs' 'vktest vktest' 'links links' 'release release' 'helm helm' 'critest critest' >"$work/queue"

step lab hack/test-lab.sh
if [ "$slow" ]; then
  in_parallel one_by_one_lane concurrent_lane
else
  in_parallel remote_lane local_lane concurrent_lane
fi
if [ $failed != 0 ]; then
  printf '\n%s\nFAIL\n' "$(cat "$failures")"
fi
exit $failed
