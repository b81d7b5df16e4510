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
	"github.com/bowline-k8s/bowline/test/labtest"
	"github.com/bowline-k8s/bowline/test/oracle"
)

// wantCondition returns a check that the host's node has a condition with this status and words.
func wantCondition(kind v1.NodeConditionType, status v1.ConditionStatus, words ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		node, err := lab.Client.CoreV1().Nodes().Get(ctx, host, metav1.GetOptions{})
		if err != nil {
			return err
		}
		c := labtest.NodeCondition(node, kind)
		if c.Status != status {
			return fmt.Errorf("%s is %q: %s: %s", kind, c.Status, c.Reason, c.Message)
		}
		for _, w := range words {
			if !strings.Contains(c.Message, w) {
				return fmt.Errorf("%s says %q, not %q", kind, c.Message, w)
			}
		}
		return nil
	}
}

// The link to a remote host fails, in each way in which links fail, for longer than every probe's
// threshold. No container is restarted or started twice, the node stays Ready and reports the
// failure, what ends meanwhile is reported truthfully, and a requested deletion happens when the
// link is back.
func TestLinkFails(t *testing.T) {
	serial(t)
	onlyRemote(t)
	for _, fault := range []struct {
		name  string
		begin func()
		end   func()
		down  bool // the node can report it
		stall bool // messages to us are not read
	}{
		{"cut", wire.Cut, wire.Restore, true, false},
		{"half open", wire.Swallow, wire.Restore, true, true},
		{"corrupt", wire.Corrupt, wire.Restore, true, false},
		{"slow", func() { wire.Delay(400 * time.Millisecond) }, wire.Restore, false, false},
		{"narrow", func() { wire.Throttle(6000) }, wire.Restore, false, false},
		{"paused process", func() { signal(t, syscall.SIGSTOP) }, func() { signal(t, syscall.SIGCONT) }, false, true},
	} {
		t.Run(fault.name, func(t *testing.T) {
			ns := namespace(t)
			dir := hostDir(t)
			history := lab.Watch(ns)
			defer history.Stop()
			counted(t, ns, "lives", dir, 5)
			before := readyPods(t, ns, "lives", 5)
			create(t, ns, `
metadata: {name: ends}
spec:
  restartPolicy: Never
  containers: [{name: main, image: $TOOLBOX, command: [sh, -c, "sleep 12; exit 7"]}]
`)
			ready(t, ns, "ends")
			create(t, ns, brief("goes", "containers: [{name: main, image: $TOOLBOX, command: [sleep, infinity]}]"))
			ready(t, ns, "goes")

			connection := lockSession(t)
			fault.begin()
			defer fault.end() // in case the test ends early
			began := time.Now()
			testutil.Must(t, lab.Client.CoreV1().Pods(ns).Delete(t.Context(), "goes", metav1.DeleteOptions{}))
			if fault.down {
				until(t, "LinkUp is False", wantCondition("LinkUp", v1.ConditionFalse, "ssh"))
				t.Logf("the node says so after %s", time.Since(began).Round(time.Millisecond))
				until(t, "the node takes no new pods", wantCondition(v1.NodeNetworkUnavailable, v1.ConditionTrue))
			}
			others := make(chan error, 1)
			go func() {
				if fault.stall {
					others <- startSecond(t.Context(), dir)
				} else {
					others <- nil
				}
			}()
			testutil.Must(t, labtest.Holds(t.Context(), 22*time.Second-time.Since(began), "the node is Ready", wantCondition(v1.NodeReady, v1.ConditionTrue)))
			if err := <-others; err != nil {
				t.Errorf("another's pod on the same runtime: %v", err)
			}
			if fault.down {
				if _, err := lab.Client.CoreV1().Pods(ns).Get(t.Context(), "goes", metav1.GetOptions{}); err != nil {
					t.Errorf("the object of a pod that still runs is gone: %v", err)
				}
			}
			if fault.name == "paused process" {
				// Requests may still be in flight on the connection while another driver has the
				// lock, so the connection must end before the lock is released.
				until(t, "its connection is ended", func(context.Context) error {
					if connection.alive() {
						return fmt.Errorf("process %s lives", connection.pid)
					}
					return nil
				})
				until(t, "its lock is free", func(ctx context.Context) error {
					return lab.Exec(ctx, host, "flock", "-n", ownerLock, "true").Run()
				})
			}
			fault.end()
			back := time.Now()
			until(t, "LinkUp is True", wantCondition("LinkUp", v1.ConditionTrue))
			until(t, "pods are welcome", wantCondition(v1.NodeNetworkUnavailable, v1.ConditionFalse))
			testutil.Must(t, lab.PodGone(t.Context(), ns, "goes", 2*time.Minute))
			p := ended(t, ns, "ends", v1.PodFailed)
			t.Logf("all is reported %s after the link came back", time.Since(back).Round(time.Millisecond))
			end := p.Status.ContainerStatuses[0].State.Terminated
			// The end is by the machine's clock, not the later time at which Bowline learnt of it.
			// A busy machine starts the shell late.
			if took := end.FinishedAt.Sub(end.StartedAt.Time); end.ExitCode != 7 || took < 11*time.Second || took > 20*time.Second || end.FinishedAt.After(back) {
				t.Errorf("the pod that ended is reported as %+v", end)
			}
			unchanged(t, dir, before, readyPods(t, ns, "lives", 5))
			oracle.NoPodBackwards(t, history)
			until(t, "the node is Ready", wantCondition(v1.NodeReady, v1.ConditionTrue))
		})
	}
}

// startSecond starts a pod that does not belong to Bowline on the runtime and removes it. Its
// containers make more events than the runtime queues for a client that does not read: 6 each, and
// 100.
func startSecond(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "beside", Namespace: "others", Uid: filepath.Base(dir)},
		LogDirectory: dir, Hostname: "beside",
	}
	id, err := runtime.RunPodSandbox(ctx, sandbox, "")
	if err != nil {
		return err
	}
	defer func() { _ = runtime.RemovePodSandbox(context.WithoutCancel(ctx), id) }()
	for i := range 20 {
		container, err := runtime.CreateContainer(ctx, id, &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main", Attempt: uint32(i)},
			Image:    &runtimeapi.ImageSpec{Image: toolbox}, Command: []string{"sleep", "infinity"},
		}, sandbox)
		if err != nil {
			return err
		}
		if err := runtime.StartContainer(ctx, container); err != nil {
			return err
		}
		s, err := runtime.ContainerStatus(ctx, container)
		if err != nil {
			return err
		}
		if s.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			return fmt.Errorf("container %d is %s", i, s.State)
		}
		if err := runtime.RemoveContainer(ctx, container); err != nil {
			return err
		}
	}
	return runtime.StopPodSandbox(ctx, id)
}

const ownerLock = "/var/lib/kubelet/bowline/owner.lock"

// process identifies a process, even if its pid is recycled.
type process struct{ pid, began string }

// lockSession is the sshd of the connection that holds the machine's lock.
func lockSession(t *testing.T) process {
	t.Helper()
	data := testutil.ReadFile(t, filepath.Join(lab.Host(host).Root, ownerLock+".session"))
	words := strings.Fields(string(data))
	if len(words) != 5 || words[0] != "v1" || words[3] == "0" {
		t.Fatalf("the lock's session is recorded as %q", data)
	}
	p := process{words[3], words[4]}
	if !p.alive() {
		t.Fatalf("sshd process %s does not live", p.pid)
	}
	return p
}

func (p process) alive() bool {
	stat, err := os.ReadFile("/proc/" + p.pid + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	words := strings.Fields(rest)
	return len(words) > 19 && words[19] == p.began && words[0] != "Z"
}

func signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	testutil.Must(t, syscall.Kill(bowline.PID(), s))
}
