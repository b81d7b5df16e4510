package syncloop_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Everything at once, at random: pods come and go, containers crash, sandboxes die, calls fail, the
// runtime, the API server and the process itself stop and start. The runtime's log must show no
// violation (checkLog), no status may go backwards (api.noBackwards), and in the end everything
// must go away. BOWLINE_STORM_SEED repeats a run, as far as goroutine scheduling allows.
func TestStorm(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if s := os.Getenv("BOWLINE_STORM_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		testutil.Must(t, err)
		seed = n
	}
	t.Logf("BOWLINE_STORM_SEED=%d", seed)
	s := &storm{world: newWorld(t, fake.Config{}), rnd: rand.New(rand.NewPCG(seed, 1))}
	s.setHook(impatient("cri/" + s.method())) // limits calls whose reply is withheld
	s.up()
	tick := time.NewTicker(15 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(8 * time.Second); ; {
		select {
		case <-end:
			s.calm()
			return
		case <-tick.C:
			s.step()
		}
	}
}

type storm struct {
	*world
	rnd     *rand.Rand
	stopped bool // the runtime
}

func (s *storm) name() string { return fmt.Sprintf("p%d", s.rnd.IntN(6)) }

func (s *storm) method() string {
	all := append([]string{"ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus", "Status", "ImageStatus"}, mutations...)
	return all[s.rnd.IntN(len(all))]
}

func (s *storm) step() {
	name := s.name()
	s.ask(name)
	switch s.rnd.IntN(20) {
	case 0, 1, 2, 3, 4, 5:
		if s.api.pod(name) == nil {
			s.api.create(s.randomPod(name))
		}
	case 6, 7, 8:
		s.api.delete(name, 1+s.rnd.Int64N(3))
	case 9:
		s.api.delete(name, 0)
	case 10:
		if s.api.pod(name) != nil {
			s.api.recreate(s.randomPod(name))
		}
	case 11, 12:
		if id := s.instance(name, "app"); id != "" {
			_ = s.rt.Exit(id, int32(s.rnd.IntN(3))) // it may have ended
		}
	case 13:
		s.failSomeSandbox()
	case 14, 15, 16:
		s.rt.Inject(s.method(), s.fault())
	case 17:
		if s.stopped {
			s.serve()
		} else if s.rnd.IntN(3) == 0 {
			s.rt.Stop()
			s.stopped = true
		}
	case 18:
		if s.rnd.IntN(4) == 0 && !s.stopped {
			s.down()
			s.comeBack()
		}
	case 19:
		s.api.setDown(s.rnd.IntN(3) == 0)
		s.rt.SetCondition(runtimeapi.NetworkReady, s.rnd.IntN(3) > 0, "Storm", "not ready for the test")
	}
}

// ask reads what the node's API reads, while the workers write.
func (s *storm) ask(name string) {
	if s.node == nil {
		return
	}
	report, _ := s.node.loop.Why(namespace, name)
	if _, err := json.Marshal(report); err != nil {
		s.t.Error(err)
	}
	if _, err := json.Marshal(s.node.loop.Pods()); err != nil {
		s.t.Error(err)
	}
}

// comeBack starts the node again; while calls fail it may take several attempts.
func (s *storm) comeBack() {
	s.until("the node comes back", func() bool {
		n, err := s.build()
		s.node = n
		return err == nil
	})
}

func (s *storm) serve() {
	if err := s.rt.Serve(); err != nil {
		s.t.Fatal(err)
	}
	s.stopped = false
}

func (s *storm) fault() fake.Fault {
	lost, failed := status.Error(codes.Unavailable, "lost for the test"), status.Error(codes.Unknown, "failed for the test")
	return []fake.Fault{{Before: lost}, {After: lost}, {Before: failed}, {After: failed}, {Delay: 50 * time.Millisecond}}[s.rnd.IntN(5)]
}

func (s *storm) failSomeSandbox() {
	var ids []string
	for _, e := range s.rt.Log() {
		if e.Op == fake.OpRunSandbox {
			ids = append(ids, e.ID)
		}
	}
	if len(ids) > 0 {
		_ = s.rt.FailSandbox(ids[s.rnd.IntN(len(ids))]) // it may be gone
	}
}

func (s *storm) randomPod(name string) *v1.Pod {
	scripts := [][]string{nil, nil, {"exit 0"}, {"exit 1"}, {"sleep 100ms", "exit 1"}, {"ignore-term", "wait"}}
	p := newPod(name, scripts[s.rnd.IntN(len(scripts))]...)
	p.Spec.RestartPolicy = []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}[s.rnd.IntN(3)]
	*p.Spec.TerminationGracePeriodSeconds = 1 + s.rnd.Int64N(2)
	if s.rnd.IntN(2) == 0 {
		p.Spec.InitContainers = append(p.Spec.InitContainers, newContainer("setup", "exit 0"))
	}
	if s.rnd.IntN(3) == 0 {
		always := v1.ContainerRestartPolicyAlways
		side := newContainer("side")
		side.RestartPolicy = &always
		p.Spec.InitContainers = append(p.Spec.InitContainers, side)
	}
	if s.rnd.IntN(3) == 0 {
		p.Spec.Containers = append(p.Spec.Containers, newContainer("second"))
	}
	if s.rnd.IntN(3) == 0 {
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: execOf("exit 0").Exec}, PreStop: &v1.LifecycleHandler{Exec: execOf("exit 0").Exec}}
	}
	return p
}

// calm ends the storm and waits until everything has gone away.
func (s *storm) calm() {
	if s.stopped {
		s.serve()
	}
	s.rt.ClearFaults()
	s.api.setDown(false)
	s.rt.SetCondition(runtimeapi.NetworkReady, true, "", "")
	for _, name := range s.api.names() {
		s.api.delete(name, 1)
	}
	defer func() {
		for _, name := range s.api.names() {
			s.t.Logf("left: %s: %s", name, s.why(name))
		}
		for _, what := range s.left() {
			s.t.Log("left: ", what)
		}
	}()
	// The cgroup of a pod that was removed while the process was down, before it had a sandbox, is
	// left to the garbage collection.
	testutil.Within(s.t, time.Minute, "everything goes away", func() bool {
		return len(s.api.names()) == 0 && len(s.left()) == 0
	})
}

// ours returns the stacks of the goroutines that run code of the loop or its parts.
func ours() []string {
	buf := make([]byte, 4<<20)
	var out []string
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "testing.") { // the test's own
			continue
		}
		if strings.Contains(g, "bowline/syncloop") || strings.Contains(g, "bowline/cri.") {
			out = append(out, g)
		}
	}
	return out
}

// After Run has returned none of its goroutines is left, whatever was under way. This test runs
// alone, so that it sees only its own goroutines.
func TestNothingIsLeftRunning(t *testing.T) {
	w := newWorld(t, fake.Config{})
	hold := make(chan struct{})
	w.rt.Inject("StartContainer", fake.Fault{Hold: hold})
	w.rt.Inject("StopContainer", fake.Fault{Hold: hold})
	w.up()
	w.api.create(newPod("starting"))
	w.until("a start is under way", func() bool { return w.rt.Calls("StartContainer") > 0 })
	w.api.create(with(newPod("stopping"), func(p *v1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = &v1.Probe{ProbeHandler: execOf("exit 0"), PeriodSeconds: 1, TimeoutSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1}
	}))
	w.api.create(with(newPod("waiting"), func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "missing"}}}}
		p.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "missing"}}
	}))
	w.untilReady("stopping")
	w.api.delete("stopping", 30)
	w.until("a stop is under way", func() bool { return w.rt.Calls("StopContainer") > 0 })
	w.until("a volume waits for its secret", func() bool { return w.event("Warning FailedMount") })
	w.down()
	var left []string
	w.until("nothing of ours runs", func() bool { left = ours(); return len(left) == 0 })
	if t.Failed() {
		t.Log(strings.Join(left, "\n\n"))
	}
	close(hold)
	w.up()
	w.end(1, w.api.names()...)
}
