package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// editor is a user who may edit Hosts, but not their status.
const editor = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: edits-hosts}
rules: [{apiGroups: [bowline.io], resources: [hosts], verbs: [get, list, watch, create, update, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: edits-hosts}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edits-hosts}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: editor}]
`

// TestAnotherMachine: a user who may edit a Host points it at another machine. That machine gets
// nothing of the node, and the Host reports it; the pods stay where they are. A user who may change
// the status admits it, with the command in the message.
func TestAnotherMachine(t *testing.T) {
	onlyLocal(t, "its hosts are always remote")
	parallel(t)
	p := newPooled(t, "host1", "host2")
	define(t, p.lab)
	p.objects(p.account("bowline", "host1-key, host2-key"))
	p.apply(editor)
	p.key("host1")
	p.key("host2")
	testutil.Must(t, p.bowline.Start())
	t.Cleanup(p.bowline.Kill)
	p.apply(p.object("host2", "host2"))
	p.reason("host2", "NodeReady", "")
	p.ready("host2", 110)
	before := p.pod("stays", "host2")

	// The first machine is recorded, which does not restart its driver.
	record := func() string {
		return p.kubectl("get", "host", "host2", "-o", "jsonpath={.status.machine.machineID} {.status.machine.hostKey}")
	}
	first := p.machine("host2")
	equal(t, "the record", record(), first)
	equal(t, "times that it took the machine", p.lines("Started managing the host", `host="host2"`), 1)

	runs := p.running("host2", "stays")
	if len(runs) != 1 {
		t.Fatalf("the pod's containers are %q", runs)
	}
	moved := p.objectOf("host1", p.lab.Host("host1").RuntimeSocket, "host2", "host2")
	applied, err := p.lab.KubectlIn(t.Context(), moved, "apply", "--as=editor", "-f", "-")
	if err != nil || applied.Code != 0 {
		t.Fatalf("the editor may not edit: %v: %s", err, applied.Stderr)
	}
	p.reason("host2", "OtherMachine", "found another machine than the recorded one")
	testutil.Must(t, labtest.Until(t.Context(), patience, "an event on the Host", func(ctx context.Context) error {
		list, err := p.lab.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Host,involvedObject.name=host2,reason=OtherMachine"})
		if err == nil && (len(list.Items) == 0 || list.Items[0].Type != v1.EventTypeWarning) {
			err = fmt.Errorf("there are %+v", list.Items)
		}
		return err
	}))
	equal(t, "the record after an edit", record(), first)
	untouched := func(when string) {
		t.Helper()
		equal(t, when+": containers on the other machine", p.containers("host1"), 0)
		for _, dir := range []string{filepath.Dir(p.ownerFile("host1")), filepath.Join(p.lab.Host("host1").Root, "var/lib/kubelet/pods")} {
			if left, err := os.ReadDir(dir); len(left) != 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: in %s of the other machine there are %v: %v", when, dir, left, err)
			}
		}
		if now := p.running("host2", "stays"); !slices.Equal(now, runs) {
			t.Errorf("%s: of the pod on the first machine %q run, and %q before", when, now, runs)
		}
	}
	untouched("refused")

	// The editor cannot change the record, through the status or otherwise.
	for _, args := range [][]string{
		{"patch", "host", "host2", "--as=editor", "--subresource=status", "--type=merge", "-p", `{"status":{"machine":null}}`},
		{"patch", "host", "host2", "--as=editor", "--type=merge", "-p", `{"status":{"machine":null},"spec":{"maxPods":13}}`},
	} {
		out, err := p.lab.Kubectl(t.Context(), args...)
		testutil.Must(t, err)
		if forbidden := strings.Contains(out.Stderr, "forbidden"); forbidden != (args[4] == "--subresource=status") {
			t.Errorf("kubectl %q: %s%s", args, out.Stdout, out.Stderr)
		}
	}
	p.reason("host2", "OtherMachine", "")
	equal(t, "the record after the editor's patches", record(), first)
	untouched("after the editor's patches")

	// Pointed back, it continues as if nothing had happened.
	p.apply(p.object("host2", "host2"))
	p.reason("host2", "NodeReady", "")
	now, err := p.lab.PodReady(t.Context(), v1.NamespaceDefault, before.Name, 3*time.Minute)
	testutil.Must(t, err)
	same(t, before, now)

	// A replacement is admitted with the command in the message.
	p.apply(moved)
	p.reason("host2", "OtherMachine", "")
	message := p.kubectl("get", "host", "host2", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].message}`)
	_, command, found := strings.Cut(message, "accept it: kubectl ")
	command, patch, whole := strings.Cut(command, " -p '")
	if !found || !whole {
		t.Fatalf("the message has no command: %s", message)
	}
	p.kubectl(append(strings.Fields(command), "-p", strings.TrimSuffix(patch, "'"))...)
	p.reason("host2", "NodeReady", "")
	equal(t, "the record", record(), p.machine("host1"))
	p.pod("on-the-replacement", "host2")
	if n := p.containers("host1"); n == 0 {
		t.Error("nothing runs on the machine that was let in")
	}
}

// running returns the running containers of a pod on a host, by ID.
func (p *pooled) running(host, pod string) (ids []string) {
	p.t.Helper()
	runtime, err := p.lab.CRI(p.t.Context(), host)
	testutil.Must(p.t, err)
	defer runtime.Close()
	list, err := runtime.ListContainers(p.t.Context(), &runtimeapi.ContainerFilter{
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{"io.kubernetes.pod.name": pod},
	})
	testutil.Must(p.t, err)
	for _, c := range list {
		ids = append(ids, c.Id)
	}
	slices.Sort(ids)
	return ids
}

// machine is a machine of the lab as a Host's status records it.
func (p *pooled) machine(name string) string {
	p.t.Helper()
	h := p.lab.Host(name)
	id := testutil.ReadFile(p.t, filepath.Join(h.Root, "etc/machine-id"))
	line := testutil.ReadFile(p.t, h.SSH.HostKey)
	key, _, _, _, err := ssh.ParseAuthorizedKey(line)
	testutil.Must(p.t, err)
	return strings.TrimSpace(string(id)) + " " + ssh.FingerprintSHA256(key)
}
