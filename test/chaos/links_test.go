package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// remoteNode is a lab host with a real containerd, and the Bowline that manages it from outside over a
// wire.
type remoteNode struct {
	lab      *labtest.Lab
	name     string
	dir      string
	wire     *labtest.Wire
	bowline  *labtest.Bowline
	runtime  *cri.Client // a second client beside Bowline's, from outside the host
	calls    callLog
	resident string
}

// linkPatience bounds what must happen once a link is back.
const linkPatience = 4 * time.Minute

// hitCalls are the calls in flight when a link fails. The write of a volume is hit after a number
// of bytes.
var hitCalls = []string{runSandbox, "cri/CreateContainer", "cri/StopContainer", "cri/PullImage", "cri/ExecSync", "volume"}

// TestLinks breaks the links to real containerds while calls are in flight, as test/links does with
// fakes. It checks what the containers wrote on their host, and in the end what the runtime has
// left.
func TestLinks(t *testing.T) {
	if os.Getenv("BOWLINE_E2E") != "1" {
		t.Skip("needs root and the lab: BOWLINE_E2E=1 runs it")
	}
	faults := 50
	switch os.Getenv("BOWLINE_CHAOS") {
	case "part":
		faults = 10
	case "brief", "quick":
		faults = 20
	}
	seed := labtest.Seed(t, "BOWLINE_LINKS_SEED")
	nodes := remoteNodes(t, 4)
	began := time.Now()
	queue := make(chan int)
	go func() {
		defer close(queue)
		for i := range faults {
			queue <- i
		}
	}()
	var mu sync.Mutex
	flying := 0
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() {
			for i := range queue {
				r := rand.New(rand.NewPCG(seed, uint64(i)))
				// Combine each call with each fault: 5 and 6 have no common divisor.
				class, label := labtest.LinkFaults[i%len(labtest.LinkFaults)], hitCalls[i%len(hitCalls)]
				begin := time.Now()
				hit, err := n.failLink(t.Context(), fmt.Sprintf("link-%d", i), class, label, r)
				if err != nil {
					t.Errorf("case %d: %s, %s on %s, %s to %s: %v", i, label, class.Name, n.name, begin.Format("15:04:05.000"), time.Now().Format("15:04:05.000"), err)
				} else if testing.Verbose() {
					t.Logf("case %d: %s, %s on %s: %s, in flight: %v", i, label, class.Name, n.name, time.Since(begin).Round(time.Millisecond), hit)
				}
				mu.Lock()
				if hit {
					flying++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	for _, n := range nodes {
		if err := n.settled(t.Context()); err != nil {
			t.Errorf("%s in the end: %v", n.name, err)
		}
	}
	t.Logf("%d faults on %d links, %d of them while the call was certainly in flight, %s", faults, len(nodes), flying, time.Since(began).Round(time.Second))
}

// remoteNodes brings up a lab and, for each host, a Bowline that manages it over SSH, and a resident
// pod.
func remoteNodes(t *testing.T, hosts int) []*remoteNode {
	t.Helper()
	ctx := t.Context()
	a := &arena{dir: labtest.Dir(t, "bowline-chaos-links", true)}
	var err error
	program := buildWithFaults(t, a.dir)
	a.lab = startLab(t, filepath.Join(a.dir, "lab"), hosts)
	a.prepare(t)
	if _, err := a.lab.Client.CoreV1().ConfigMaps(namespace).Create(ctx, &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "big"}, Data: map[string]string{"text": strings.Repeat("knots ", 100_000)}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var nodes []*remoteNode
	for _, h := range a.lab.Status.Hosts {
		n := &remoteNode{lab: a.lab, name: h.Name, dir: a.dir, calls: callLog{filepath.Join(a.dir, h.Name+".calls")}, resident: "resident-" + h.Name}
		if n.wire, err = labtest.NewWire(h.SSH.Address); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.wire.Close)
		if n.runtime, err = a.lab.CRI(ctx, n.name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.runtime.Close() })
		n.bowline = &labtest.Bowline{Lab: a.lab, Host: n.name, Wire: n.wire, Program: program, Args: []string{"-v=2"},
			LogPath: filepath.Join(a.dir, n.name+".log"), Env: []string{"BOWLINE_FAULT_LOG=" + n.calls.path}}
		end, err := n.bowline.Keep(func(code int) {
			t.Errorf("bowline of %s has ended with %d: %s", n.name, code, n.bowline.LogTail(2000))
		})
		testutil.Must(t, err)
		t.Cleanup(func() { end(t.Failed()) })
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		if _, err := a.lab.NodeReady(ctx, n.name, v1.ConditionTrue, 2*linkPatience); err != nil {
			t.Fatalf("%v: %s", err, n.bowline.LogTail(2000))
		}
		testutil.Must(t, n.create(ctx, n.resident, false))
	}
	for _, n := range nodes {
		if _, err := a.lab.PodReady(ctx, namespace, n.resident, linkPatience); err != nil {
			t.Fatal(err)
		}
	}
	return nodes
}

func (n *remoteNode) file(pod string) string { return filepath.Join(n.dir, pod, "log") }

// create makes a pod on the node whose container writes its entry and its leave.
func (n *remoteNode) create(ctx context.Context, name string, volume bool) error {
	dir, err := shared(n.dir, name)
	if err != nil {
		return err
	}
	alive := func() *v1.Probe {
		// A command that is merely slow on an overloaded machine must not cause a restart.
		return &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: execAction("true")}, PeriodSeconds: 1, TimeoutSeconds: 5, FailureThreshold: 6}
	}
	grace := int64(600)
	main := container("main", untilTold)
	main.ImagePullPolicy = v1.PullAlways
	main.LivenessProbe, main.ReadinessProbe = alive(), alive()
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{NodeName: n.name, TerminationGracePeriodSeconds: &grace,
			Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}},
			Containers:  []v1.Container{main}, Volumes: []v1.Volume{hostPath(dir)}},
	}
	if volume {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "big", MountPath: "/big"})
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "big", VolumeSource: v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "big"}}}})
	}
	_, err = n.lab.Client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// turns returns how often a pod's container has entered and left.
func (n *remoteNode) turns(pod string) (entered, left int) {
	data, err := os.ReadFile(n.file(pod))
	if err != nil {
		return 0, 0
	}
	lines := parseLines(string(data))
	return count(lines, "enter"), count(lines, "leave")
}

// lives checks that the pod's container was started once and got no signal to end.
func (n *remoteNode) lives(pod string) error { return n.counted(pod, 0, 0) }

// counted checks that the pod's container has entered once and left the given number of times. It
// may have entered up to lost more times without leaving.
func (n *remoteNode) counted(pod string, lost, left int) error {
	if in, out := n.turns(pod); in < 1 || in > 1+lost || out != left {
		return fmt.Errorf("the container of %s entered %d times and left %d times, want 1 (and at most %d that the runtime gave up) and %d", pod, in, out, lost, left)
	}
	return nil
}

// lostStart returns 1 if the runtime gave up a start whose caller lost its connection, which is the
// runtime's fault (see doc.go), and an error for any other restart. An instance that the runtime
// shows as never started after the start's reply was lost is replaced, and the next one counts as a
// restart, as on a kubelet. That instance has no termination state, and the container must still
// have entered exactly once.
func lostStart(p *v1.Pod) (int, error) {
	restarts := int(labtest.Restarts(p))
	if restarts == 0 {
		return 0, nil
	}
	if c := labtest.Container(p, "main"); restarts == 1 && c != nil {
		switch last := c.LastTerminationState.Terminated; {
		case last == nil:
			return 0, nil
		case last.ExitCode == 128:
			return 1, nil
		}
	}
	return 0, fmt.Errorf("%s has restarts: %s", p.Name, labtest.Describe(p))
}

// failLink runs one fault, which strikes while the call is on its way. hit reports whether the call
// was certainly in flight.
func (n *remoteNode) failLink(ctx context.Context, pod string, class labtest.LinkFault, label string, r *rand.Rand) (hit bool, err error) {
	defer n.wire.Restore()
	stops, probes, volume := label == "cri/StopContainer", label == "cri/ExecSync", label == "volume"
	if stops {
		if err := n.create(ctx, pod, false); err != nil {
			return false, err
		}
		if _, err := n.lab.PodReady(ctx, namespace, pod, linkPatience); err != nil {
			return false, err
		}
	}
	if probes {
		pod = n.resident
	}
	var gone <-chan int
	if !probes {
		watching, cancel := context.WithCancel(ctx)
		defer cancel()
		if gone, err = n.awaitGone(watching, pod); err != nil {
			return false, err
		}
	}
	struck := make(chan bool, 1)
	mark := n.calls.mark()
	if volume {
		n.wire.After(200<<10, func() {
			class.Begin(n.wire, r)
			struck <- true
		})
	}
	switch {
	case stops:
		err = n.lab.Client.CoreV1().Pods(namespace).Delete(ctx, pod, metav1.DeleteOptions{})
	case !probes:
		err = n.create(ctx, pod, volume)
	}
	if err != nil {
		return false, err
	}
	if !volume {
		if err := labtest.Until(ctx, linkPatience, "a call "+label, func(context.Context) error {
			if flying(n.calls.since(mark), label) == 0 {
				return errors.New("there is none")
			}
			return nil
		}); err != nil {
			return false, err
		}
		class.Begin(n.wire, r)
		struck <- done(n.calls.since(mark), label) == 0
	}
	select {
	case hit = <-struck:
	case <-time.After(linkPatience):
		return false, errors.New("the volume's bytes have not come")
	}
	if err := labtest.Holds(ctx, labtest.LinkFaultTime(r), "while the link fails", func(context.Context) error { return n.lives(n.resident) }); err != nil {
		return hit, err
	}
	n.wire.Restore()
	lost := 0
	if !stops {
		p, err := n.lab.PodReady(ctx, namespace, pod, linkPatience)
		if err != nil {
			return hit, err
		}
		if lost, err = lostStart(p); err != nil {
			return hit, err
		}
		// A container runs before its shell has written anything.
		if err := labtest.Until(ctx, linkPatience, pod+" enters", func(context.Context) error {
			if in, _ := n.turns(pod); in == 0 {
				return errors.New("not yet")
			}
			return nil
		}); err != nil {
			return hit, err
		}
		if err := n.counted(pod, lost, 0); err != nil {
			return hit, err
		}
	}
	if probes {
		return hit, n.lives(n.resident)
	}
	if !stops {
		if err := n.lab.Client.CoreV1().Pods(namespace).Delete(ctx, pod, metav1.DeleteOptions{}); err != nil {
			return hit, err
		}
	}
	select {
	case left := <-gone:
		if left != 1 {
			return hit, fmt.Errorf("the API object of %s went when its container had left %d times", pod, left)
		}
	case <-time.After(linkPatience):
		return hit, fmt.Errorf("the deleted pod %s is not gone within %s", pod, linkPatience)
	}
	if err := n.counted(pod, lost, 1); err != nil {
		return hit, fmt.Errorf("in its whole life: %w", err)
	}
	return hit, n.lives(n.resident)
}

// flying counts the calls of a label that have begun, done those that have ended.
func flying(entries []entry, label string) (n int) {
	for _, e := range entries {
		if e.label == label && e.what == "call" {
			n++
		}
	}
	return n
}

func done(entries []entry, label string) (n int) {
	for _, e := range entries {
		if e.label == label && e.what == "done" {
			n++
		}
	}
	return n
}

// awaitGone reports, when the pod's API object goes, how often its container had left by then.
func (n *remoteNode) awaitGone(ctx context.Context, pod string) (<-chan int, error) {
	stream, err := n.lab.Client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + pod})
	if err != nil {
		return nil, err
	}
	gone := make(chan int, 1)
	go func() {
		defer stream.Stop()
		for e := range stream.ResultChan() {
			if e.Type == watch.Deleted {
				_, left := n.turns(pod)
				gone <- left
				return
			}
		}
		// The API server ended the watch, so the moment is known less exactly.
		if n.lab.PodGone(ctx, namespace, pod, linkPatience) == nil {
			_, left := n.turns(pod)
			gone <- left
		}
	}()
	return gone, nil
}

// settled checks that the resident is Ready without a restart, and that the runtime has nothing
// else.
func (n *remoteNode) settled(ctx context.Context) error {
	p, err := n.lab.PodReady(ctx, namespace, n.resident, linkPatience)
	if err != nil {
		return err
	}
	if restarts := labtest.Restarts(p); restarts != 0 {
		return fmt.Errorf("the resident is reported to have %d restarts", restarts)
	}
	if err := labtest.Until(ctx, linkPatience, "one sandbox and one container", func(ctx context.Context) error {
		sandboxes, err := n.runtime.ListPodSandbox(ctx, nil)
		if err != nil {
			return err
		}
		containers, err := n.runtime.ListContainers(ctx, nil)
		if err == nil && (len(sandboxes) != 1 || len(containers) != 1) {
			err = fmt.Errorf("there are %d and %d", len(sandboxes), len(containers))
		}
		return err
	}); err != nil {
		return err
	}
	return n.lives(n.resident)
}
