#!/usr/bin/env bash
# Shows a whole cluster on this machine: one Bowline process registers two hosts as nodes (one
# through its socket, one over SSH), runs an application on them, and loses the SSH link for a while.
# It reuses parts of the demo that already run. hack/demo-down.sh removes everything.
#
#   hack/demo.sh             runs the demo
#   hack/demo.sh --record    runs it, and writes its output to docs/demo.cast and docs/demo.svg
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/demo-lib.sh

if [ "${1:-}" = --record ]; then
  if [ -e "$dir" ]; then echo "a recording begins without a demo: make demo-down removes the one in $dir" >&2; exit 1; fi
  exec go run ./hack/record docs/demo.cast docs/demo.svg hack/demo.sh
fi

began=$SECONDS
trap 'failed $?' EXIT
failed() {
  restore_link
  [ "$1" = 0 ] && return
  printf '\n%sThe demo did not come up.%s' "$bold" "$plain"
  if [ -s "$own/log" ]; then printf ' The end of Bowline'\''s log, %s:\n' "$own/log"; tail -n 8 "$own/log" | cut -c 1-200; else echo; fi
  echo "make demo continues from here; make demo-down removes everything."
}

# show COMMAND...: prints the command as a user would type it, then its output.
show() {
  printf '%s$ %s%s\n' "$dim" "$*" "$plain"
  "$@" | sed 's/^/  /'
}
kubectl() { lab kubectl "$@"; }
bowline() { KUBECONFIG=$dir/kubeconfig/admin.kubeconfig "$bowline" "$@"; }
curl() { # without curl, a pod sends the request
  if type -P curl >/dev/null; then command curl -sS --max-time 10 "$@"; else kubectl exec shell -- wget -q -O - "$@"; fi
}
# until_true SECONDS WHAT COMMAND...
until_true() {
  local limit=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS > limit)); then echo "$what: not in time" >&2; return 1; fi
    sleep 0.2
  done
}
# awaits COMMAND...: runs it silently, and fails if Bowline ends first.
awaits() {
  "$@" >/dev/null &
  while kill -0 $! 2>/dev/null; do
    running || { kill $!; echo "Bowline has ended" >&2; return 1; }
    sleep 0.1
  done
  wait $!
}

step "Building (skips what has not changed; Kubernetes takes some minutes the first time)"
# Without the lab's kubelet, which only tests run.
hack/build-lab.sh bowline-lab pause web toolbox containerd-shim-runc-v2 bowline-containerd bowline-coredns bowline-kube | sed 's/^/  /'
make --no-print-directory -s build | sed 's/^/  /'
echo "  Bowline is $bowline, $(du -h --apparent-size "$bowline" | cut -f1)"

step "A cluster on this machine, with two hosts that are not nodes yet"
lab up --hosts 2 2>&1 | sed 's/^/  /'

mkdir -p "$own"
# field NAME: a field of the lab's status, a JSON document with one key a line.
field() { lab status -o json | grep -m 1 "\"$1\":" | cut -d'"' -f4; }
# host_field NAME N: the same of host N.
host_field() { lab status -o json | sed -n "/\"hosts\"/,\$ s/.*\"$1\": \"\([^\"]*\)\".*/\1/p" | sed -n "$2p"; }
node_ip=$(host_field ip 1)
remote_ip=$(host_field ip 2)
cat >"$own/config.yaml.new" <<Y
apiVersion: bowline.io/v1alpha1
kind: BowlineConfiguration
clusterDNS: ["$(field dnsIP)"]
evictionHard: {memory.available: 100Mi} # the demo also runs where the disk is nearly full
imageGCHighThresholdPercent: 100
hosts:
- nodeName: host1
  endpoint: unix:///run/containerd/containerd.sock
  kubeconfig: $dir/kubeconfig/host1.kubeconfig
  nodeIP: $node_ip
  server:
    tlsCertFile: $dir/pki/host1-serving.crt
    tlsPrivateKeyFile: $dir/pki/host1-serving.key
  authentication:
    x509: {clientCAFile: $dir/pki/ca.crt}
- nodeName: host2
  endpoint: ssh://root@$remote_ip/run/containerd/containerd.sock
  ssh:
    identityFile: $(host_field key 2)
    hostKeys: ["$(cat "$(host_field hostKey 2)")"]
  kubeconfig: $dir/kubeconfig/host2.kubeconfig
  server:                       # the API server reads this node's logs from this process too
    tlsCertFile: $dir/pki/host1-serving.crt
    tlsPrivateKeyFile: $dir/pki/host1-serving.key
  authentication:
    x509: {clientCAFile: $dir/pki/ca.crt}
Y

# The link to the remote host: its sshd's incoming packets are dropped silently.
link_rule() { lab exec host2 -- iptables -w "$1" INPUT -p tcp --dport 22 -j DROP; }
link_is_cut=
cut_link() { link_is_cut=yes; link_rule -I; }
restore_link() { [ -z "$link_is_cut" ] || { link_rule -D || true; link_is_cut=; }; }

step "One Bowline process registers both hosts as nodes: host1 through its socket, host2 over SSH"
if running && cmp -s "$bowline" "$own/program" && cmp -s "$own/config.yaml" "$own/config.yaml.new"; then
  rm "$own/config.yaml.new"
  echo "  it already runs, process $pid"
else
  if running; then
    echo "  it has changed: process $pid ends, its containers keep running, the next process adopts them"
    stop_bowline
  fi
  mv "$own/config.yaml.new" "$own/config.yaml"
  cp "$bowline" "$own/program.new" && mv "$own/program.new" "$own/program"
  # The process keeps its ID when it enters the host: each step is an exec.
  setsid "$bowline" lab --dir "$dir" exec host1 -- "$own/program" run --config "$own/config.yaml" \
    </dev/null >>"$own/log" 2>&1 &
  echo "$! $(born $!)" >"$own/process"
  running
  echo "  process $pid, log $own/log"
fi
node_ready() {
  running || { echo "Bowline has ended" >&2; exit 1; }
  [ "$(kubectl get node host1 host2 -o 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}')" = "True True" ]
}
until_true 60 "the nodes' readiness" node_ready
show kubectl get nodes

step "A web application: three replicas behind a Service"
show kubectl apply -f hack/demo/web.yaml
awaits kubectl -n kube-system rollout status deployment/coredns --timeout=90s
awaits kubectl rollout status deployment/web --timeout=90s
awaits kubectl wait --for=condition=Ready pod/shell pod/counter --timeout=90s
show kubectl get pods -o custom-columns-file=hack/demo/pods.columns

step "Requests to the Service: from this machine to the node port, from a pod by name"
until_true 30 "the Service" curl "http://$node_ip:30080/"
show curl "http://$node_ip:30080/"
show kubectl exec shell -- wget -q -O - http://web/

step "The application's logs, and the node's decisions on one of its pods"
pod=$(kubectl get pods -l app=web -o 'jsonpath={.items[0].metadata.name}')
show kubectl logs -l app=web --prefix --tail=2
show bowline why pod "default/$pod"

step "The link to host2 is cut for 20 s, while a pod there counts the seconds"
up_after=$((SECONDS - began))
link_up() { [ "$(kubectl get node host2 -o 'jsonpath={.status.conditions[?(@.type=="LinkUp")].status}')" = "$1" ]; }
show kubectl logs counter --tail=1
cut_link
cut_at=$SECONDS
echo "  # cut: host2 drops every SSH packet"
until_true 30 "the condition LinkUp" link_up False
show kubectl get nodes -o custom-columns-file=hack/demo/nodes.columns
sleep $((20 - (SECONDS - cut_at) > 0 ? 20 - (SECONDS - cut_at) : 0))
restore_link
echo "  # restored"
until_true 60 "the link" link_up True
until_true 30 "the pod's log" kubectl logs counter --tail=1
show kubectl logs counter --tail=1
show kubectl get nodes -o custom-columns-file=hack/demo/nodes.columns
show kubectl get pods -o custom-columns-file=hack/demo/pods.columns

step "Up after $up_after s, and left running. Continue with"
cat <<T
  alias kubectl='$bowline lab --dir $dir kubectl'
  kubectl scale deployment web --replicas=20; kubectl get pods -w
  kubectl set image deployment/web web=registry.lab/web:v2
  kubectl exec -it shell -- sh
  kill -9 $pid; kubectl get pods     ${dim}# Bowline is gone, the pods are not; make demo brings it back, and it adopts them${plain}
  kubectl get node host2 -o yaml | grep -B5 LinkUp
  make demo-down                     ${dim}# leaves nothing behind${plain}
T
