package ssh

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
)

// inNamespace runs a purge as process 1 of a namespace, so that it cannot reach anything
// outside. The forger runs as root, like a process of a pod with hostPID, so its environment is
// trusted. The name of its child looks as if process 1 were a child of the forger.
const inNamespace = `
[ "$$" = 1 ] && [ "$(readlink /proc/self)" -lt 100 ] || fail "not in a namespace"
sleep 1000 &
bystander=$!
mkfifo "$1/named"
BOWLINE_CONNECTION=77777.1. sh -c 'sh -c "printf \"\\n1 (a\" >/proc/self/comm; echo >$1/named; sleep 1000; :" sh "$1" & wait' sh "$1" &
forger=$!
read -r line <"$1/named"
self=0
purge 77777 1
[ -d "/proc/$bystander" ] || fail "the bystander was ended"
behind_name "$bystander"
[ "$parent" = 1 ] || fail "the parent of the bystander is $parent"
wait "$forger" || echo "the forger ended with $?"
`

// TestPurgeSparesInit: no name of a process makes the purge treat process 1 as one of the
// connection.
func TestPurgeSparesInit(t *testing.T) {
	unshare := []string{"--fork", "--kill-child", "--pid", "--mount-proc"}
	if out, err := exec.Command("unshare", append(unshare, "true")...).CombinedOutput(); err != nil {
		t.Skipf("no namespaces here: %v %s", err, out)
	}
	shells := []string{"/bin/sh", "/bin/bash"}
	if _, sh := shtest.Busybox(t); sh != "" {
		shells = append(shells, sh)
	}
	for _, sh := range shells {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		args := append(unshare, sh, "-c", load("purge")+inNamespace, "sh", t.TempDir())
		out, err := exec.CommandContext(ctx, "unshare", args...).CombinedOutput()
		cancel()
		if err != nil || !strings.Contains(string(out), "the forger ended with 137") {
			t.Errorf("%s: %v: %s", sh, err, out)
		}
	}
}
