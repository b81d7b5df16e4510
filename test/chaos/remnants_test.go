package chaos

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"google.golang.org/protobuf/proto"

	"github.com/bowline-k8s/bowline/cri/critest"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// ends are the calls that remove the remnants of a start that was cut off. A cut produces remnants
// only at one exact millisecond, so the test plants them.
var ends = map[string]bool{
	"cri/ContainerdList": true, "cri/ContainerdSandboxes": true, "cri/ContainerdKill": true, "cri/ContainerdWait": true,
	"cri/ContainerdDeleteTask": true, "cri/ContainerdDelete": true,
	"host/Run": true,
}

// remnants takes a pod through its life on a machine that has a shim without a sandbox, and a
// container that only containerd knows.
func (n *node) remnants(ctx context.Context, name string, f *fault) []string {
	if err := n.arm(nil); err != nil {
		return []string{err.Error()}
	}
	r, err := n.settle(ctx, name)
	if err != nil {
		return []string{err.Error()}
	}
	defer r.witness.stop()
	shim, err := n.plantShim(ctx, name)
	if err != nil {
		return []string{err.Error()}
	}
	container, err := n.plantContainer(ctx, name)
	if err != nil {
		return []string{err.Error()}
	}
	r.creates++ // the planted one
	ctx, cancel := n.oneCase(ctx)
	defer cancel(nil)
	if err := n.arm(f); err != nil {
		return []string{err.Error()}
	}
	n.kill() // a new process looks for shims
	var bad []string
	if _, err := r.managed(ctx, 1); err != nil {
		bad = append(bad, err.Error())
	}
	if err := labtest.Until(ctx, patience, "the shim to be ended", func(context.Context) error {
		if _, err := os.Stat(shim); err == nil {
			return fmt.Errorf("%s is still there", shim)
		}
		return nil
	}); err != nil {
		bad = append(bad, err.Error())
	}
	bad = append(bad, r.end(ctx, f)...) // its record on the machine goes last
	if left, err := critest.ContainerdPlanter(n.tasks.Conn).Left(ctx, container); err != nil || left {
		bad = append(bad, fmt.Sprintf("the container that only containerd knew: left %v, %v", left, err))
	}
	return bad
}

// plantShim starts a shim as containerd does. The shim waits for a reader of its log. plantShim
// returns its directory under /proc.
func (n *node) plantShim(ctx context.Context, id string) (string, error) {
	const socket = "/run/containerd/containerd.sock"
	params, err := proto.Marshal(&bootapi.BootstrapParams{
		InstanceID: id, Namespace: "k8s.io", ContainerdGrpcAddress: socket, ContainerdTtrpcAddress: socket + ".ttrpc"})
	if err != nil {
		return "", err
	}
	bundle, err := os.MkdirTemp(n.dir, "bundle")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(bundle)
	program := filepath.Join(labtest.Cache(), "bin", "containerd-shim-runc-v2")
	start := n.lab.Exec(ctx, n.name, "sh", "-c", `cd "$1" && echo '{}' >config.json && mkfifo log && exec "$2" -namespace k8s.io -id "$3" -address "$4" start`,
		"sh", bundle, program, id, socket)
	start.Stdin = bytes.NewReader(params)
	if out, err := start.CombinedOutput(); err != nil {
		return "", fmt.Errorf("plant a shim: %w: %s", err, out)
	}
	var dir string
	err = labtest.Until(ctx, patience, "the shim to wait for a reader", func(context.Context) error {
		links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
		for _, link := range links {
			if to, _ := os.Readlink(link); to == filepath.Join(bundle, "log") {
				dir = filepath.Dir(filepath.Dir(link))
				return nil
			}
		}
		return fmt.Errorf("no one has its log open")
	})
	return dir, err
}

// plantContainer makes a container like the pod's main.
func (n *node) plantContainer(ctx context.Context, pod string) (string, error) {
	list, err := n.runtime.ListContainers(ctx, nil)
	if err != nil {
		return "", err
	}
	for _, c := range list {
		if c.Metadata.GetName() == "main" && c.Labels["io.kubernetes.pod.name"] == pod {
			return critest.ContainerdPlanter(n.tasks.Conn).Container(ctx, c.Id)
		}
	}
	return "", fmt.Errorf("%s has no container main", pod)
}

// testRemnants strikes at each call that removes the remnants.
func (a *arena) testRemnants(t *testing.T) {
	seen := make([]map[call]int, len(a.nodes))
	var all sync.WaitGroup
	for i, n := range a.nodes {
		all.Go(func() {
			if bad := n.remnants(t.Context(), "find-remnants-"+n.name, nil); len(bad) > 0 {
				t.Errorf("without a fault, on %s: %s", n.name, strings.Join(bad, "\n\t"))
			}
			seen[i] = counts(slices.DeleteFunc(n.since(), func(e entry) bool { return !ends[e.label] }))
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	cases := a.sampleBrief(a.matrix("remnants/", seen, func(string) bool { return false }))
	report(t, cases)
	a.spread(t, a.teams(1), cases, func(ctx context.Context, team []*node, i int, c testCase) []string {
		return team[0].remnants(ctx, fmt.Sprintf("remnants-%d", i), &c.fault)
	})
}
