package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/owner"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// pooled is a lab of two remote hosts and the one process that manages them, with a configuration
// file that the test edits.
type pooled struct {
	t       *testing.T
	lab     *labtest.Lab
	bowline *labtest.Bowline
	wires   map[string]*labtest.Wire
	file    string
}

func newPooled(t *testing.T, hosts ...string) *pooled {
	p := &pooled{t: t, lab: ownLab(t, len(hosts)), wires: map[string]*labtest.Wire{}}
	var err error
	for _, name := range hosts {
		p.wires[name], err = p.lab.NewWire(name)
		testutil.Must(t, err)
		t.Cleanup(p.wires[name].Close)
	}
	p.file = filepath.Join(p.lab.Dir, "pool.yaml")
	p.bowline = &labtest.Bowline{Lab: p.lab, Host: hosts[0], Wire: p.wires[hosts[0]], Config: p.file, Args: []string{"-v=2"}}
	return p
}

// host is one host's part of the file.
func (p *pooled) host(name string, more ...string) string {
	p.t.Helper()
	lines, err := p.lab.SSHLines(name, p.wires[name].Address())
	testutil.Must(p.t, err)
	return p.lab.ConfigHost(name, append(lines, more...)...)
}

// edit replaces the file as an editor does.
func (p *pooled) edit(hosts ...string) {
	p.t.Helper()
	testutil.Must(p.t, os.WriteFile(p.file+".new", []byte(p.lab.ConfigHead()+strings.Join(hosts, "")), 0o600))
	testutil.Must(p.t, os.Rename(p.file+".new", p.file))
}

// ready waits until the node is Ready, its link is up and its capacity is maxPods.
func (p *pooled) ready(node string, maxPods int64) *v1.Node {
	p.t.Helper()
	var n *v1.Node
	err := labtest.Until(p.t.Context(), 3*time.Minute, node+" is Ready", func(ctx context.Context) (err error) {
		if n, err = p.lab.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, want := range []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}, {Type: "LinkUp", Status: v1.ConditionTrue}} {
			if c := labtest.NodeCondition(n, want.Type); c.Status != want.Status {
				return fmt.Errorf("%s is %q: %s", want.Type, c.Status, c.Message)
			}
		}
		if got := n.Status.Capacity.Pods().Value(); got != maxPods {
			return fmt.Errorf("it takes %d pods, not %d", got, maxPods)
		}
		return nil
	})
	if err != nil {
		p.t.Fatalf("%v\n%s", err, p.bowline.LogTail(6000))
	}
	return n
}

// pod starts a pod on a node and returns it when it is Ready.
func (p *pooled) pod(name, node string) *v1.Pod {
	p.t.Helper()
	ctx, began := p.t.Context(), time.Now()
	spec := manifest[v1.Pod](p.t, v1.NamespaceDefault, fmt.Sprintf(`
metadata: {name: %s}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers: [{name: main, image: $TOOLBOX, command: [sleep, infinity]}]
`, name, node))
	testutil.Must(p.t, labtest.Until(ctx, patience, "create "+name, func(ctx context.Context) error {
		// Wait for the controller manager to make the service account.
		_, err := p.lab.Client.CoreV1().Pods(v1.NamespaceDefault).Create(ctx, spec, metav1.CreateOptions{})
		return err
	}))
	made, err := p.lab.PodReady(ctx, v1.NamespaceDefault, name, 2*time.Minute)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, p.bowline.LogTail(6000))
	}
	p.t.Logf("%s is Ready on %s after %s", name, node, time.Since(began).Round(time.Millisecond))
	return made
}

// says waits for a log line with all the words.
func (p *pooled) says(words ...string) {
	p.t.Helper()
	testutil.Must(p.t, labtest.Until(p.t.Context(), patience, "the log says "+strings.Join(words, ", "), func(context.Context) error {
		if p.lines(words...) == 0 {
			return fmt.Errorf("it does not; it ends: %s", p.bowline.LogTail(1000))
		}
		return nil
	}))
}

// lines counts the log lines with all the words.
func (p *pooled) lines(words ...string) int {
	p.t.Helper()
	return len(linesOf(string(testutil.ReadFile(p.t, p.bowline.LogPath)), words...))
}

// instance is the driver that the host's owner file names.
func (p *pooled) instance(host string) string {
	p.t.Helper()
	data := testutil.ReadFile(p.t, filepath.Join(p.lab.Host(host).Root, owner.FilePath("/var/lib/kubelet")))
	record, err := owner.ParseRecord(data)
	testutil.Must(p.t, err)
	return record.Instance
}

// One process manages many hosts, with a file that is edited while it runs. One host comes, dies,
// is changed while it is dead, comes back, goes, and comes again; the other host's driver, node and
// pods are never affected.
func TestOneProcessManyHosts(t *testing.T) {
	onlyLocal(t, "its hosts are always remote")
	parallel(t)
	const room, other = 110, 13
	p := newPooled(t, "host1", "host2")
	first, second := p.host("host1"), p.host("host2")
	p.edit(first)
	testutil.Must(t, p.bowline.Start())
	t.Cleanup(p.bowline.Kill)
	node := p.ready("host1", room)
	stays := p.pod("stays", "host1")
	driver, pid := p.instance("host1"), p.bowline.PID()

	p.edit(first, second)
	p.ready("host2", room)
	beside := p.pod("beside", "host2")

	// Everything sent to it is swallowed, and then its configuration changes: its driver cannot
	// even release the machine.
	p.wires["host2"].Swallow()
	p.pod("while-the-other-is-silent", "host1")
	changed := p.host("host2", fmt.Sprintf("maxPods: %d", other))
	p.edit(first, changed)
	p.says("Stopping the host's driver", `host="host2"`)
	p.pod("while-the-other-is-changed", "host1")
	p.wires["host2"].Restore()
	p.ready("host2", other)

	taken := p.lines("Started managing the host", `host="host2"`)
	p.edit(first, strings.Replace(changed, "maxPods: 13", "maxPods: many", 1))
	p.says("Ignored the invalid configuration file", p.file, "hosts[1].maxPods")
	p.edit(first, changed, strings.Replace(changed, "nodeName: host2", "nodeName: host3", 1))
	p.says("Ignored the invalid configuration file", p.file, "hosts[2].endpoint: Duplicate value")
	testutil.Must(t, os.Remove(p.file))
	p.says("Failed to read the configuration file", p.file)
	p.pod("by-a-wrong-file", "host2")
	equal(t, "times that it took host2, in spite of the wrong files", p.lines("Started managing the host", `host="host2"`), taken)

	ended := p.lines("Stopped the host's driver", `host="host2"`)
	p.edit(first)
	testutil.Must(t, syscall.Kill(pid, syscall.SIGHUP))
	testutil.Must(t, labtest.Until(t.Context(), patience, "host2's driver ends", func(ctx context.Context) error {
		if n := p.lines("Stopped the host's driver", `host="host2"`); n == ended {
			return fmt.Errorf("it has not ended: %s", p.bowline.LogTail(1000))
		}
		return p.lab.Exec(ctx, "host2", "flock", "-n", ownerLock, "true").Run()
	}))
	runtime, err := p.lab.CRI(t.Context(), "host2")
	testutil.Must(t, err)
	defer runtime.Close()
	list, err := runtime.ListContainers(t.Context(), &runtimeapi.ContainerFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(beside.UID)},
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}})
	testutil.Must(t, err)
	equal(t, "running containers of the pod on the machine that is not managed any more", len(list), 1)
	if _, err := p.lab.Client.CoreV1().Nodes().Get(t.Context(), "host2", metav1.GetOptions{}); err != nil {
		t.Errorf("its node: %v", err)
	}

	p.edit(first, second)
	p.ready("host2", room)
	p.pod("after-all", "host2")
	for _, before := range []*v1.Pod{stays, beside} {
		now, err := p.lab.PodReady(t.Context(), v1.NamespaceDefault, before.Name, patience)
		testutil.Must(t, err)
		same(t, before, now)
	}
	if !p.bowline.Running() || p.bowline.PID() != pid {
		t.Error("the process has changed")
	}
	equal(t, "times that it took host1", p.lines("Started managing the host", `host="host1"`), 1)
	// A claim is taken again with the link, which an overloaded machine may lose.
	if p.lines("Lost the link to the host", `host="host1"`) > 0 {
		t.Log("host1's link was down for a while")
	} else if now := p.instance("host1"); now != driver {
		t.Errorf("host1's driver was touched: it is instance %s, %s before", now, driver)
	}
	now := p.ready("host1", room)
	if was, is := labtest.NodeCondition(node, v1.NodeReady), labtest.NodeCondition(now, v1.NodeReady); !was.LastTransitionTime.Equal(&is.LastTransitionTime) {
		t.Errorf("host1 was not Ready for a while: since %s, before since %s", is.LastTransitionTime, was.LastTransitionTime)
	}
}
