package links

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/test/labtest"
	"github.com/bowline-k8s/bowline/test/oracle"
)

// op is the operation in flight when the link fails.
type op struct {
	name   string
	method string // of the runtime; empty: the write of a volume
	// names reports whether a request is about the pod that is to be hit.
	names func(request any, pod string) bool
	// who is the pod to hit: one that is created for it, one that is Ready and is then deleted, or
	// the resident.
	who subject
}

type subject int

const (
	newcomer subject = iota
	leaver
	resident
)

var ops = []op{
	{"RunPodSandbox", "RunPodSandbox", func(r any, pod string) bool {
		return r.(*runtimeapi.RunPodSandboxRequest).GetConfig().GetMetadata().GetName() == pod
	}, newcomer},
	{"CreateContainer", "CreateContainer", func(r any, pod string) bool {
		return r.(*runtimeapi.CreateContainerRequest).GetSandboxConfig().GetMetadata().GetName() == pod
	}, newcomer},
	{"PullImage", "PullImage", func(r any, pod string) bool {
		return r.(*runtimeapi.PullImageRequest).GetImage().GetImage() == imageOf(pod)
	}, newcomer},
	{"StopContainer", "StopContainer", func(any, string) bool { return true }, leaver},
	{"exec probe", "ExecSync", func(any, string) bool { return true }, resident},
	{"volume write", "", nil, newcomer},
}

// testCase is one fault.
type testCase struct {
	index int
	op    op
	class labtest.LinkFault
	seed  uint64
}

func (c testCase) String() string {
	return fmt.Sprintf("case %d: %s, %s", c.index, c.op.name, c.class.Name)
}

// makeCases returns every fault at every op, rounds times, in the seed's order.
func makeCases(rounds int, seed uint64) []testCase {
	var cases []testCase
	for range rounds {
		for _, o := range ops {
			for _, class := range labtest.LinkFaults {
				cases = append(cases, testCase{len(cases), o, class, seed})
			}
		}
	}
	r := rand.New(rand.NewPCG(seed, 0))
	r.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	return cases
}

func residentOf(n *node) string { return "resident-" + n.Name }

func imageOf(pod string) string { return "registry.lab/" + fake.TestImage + ":" + pod }

// counters is the directory where containers count their starts, on their machine.
const counters = "/run/counters"

// create makes a pod on the node whose container counts its starts and waits.
func (n *node) create(ctx context.Context, name string, volume bool) error {
	probe := func() *v1.Probe {
		return &v1.Probe{PeriodSeconds: 1, TimeoutSeconds: 1,
			// On an overloaded machine a command may really be late, but not this many in a row.
			FailureThreshold: 6,
			ProbeHandler:     v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/" + fake.TestImage, "out alive"}}}}
	}
	grace, kind := int64(600), v1.HostPathDirectoryOrCreate
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{
			NodeName: n.Name, TerminationGracePeriodSeconds: &grace,
			Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}},
			Containers: []v1.Container{{
				Name: "main", Image: imageOf(name), ImagePullPolicy: v1.PullIfNotPresent,
				Command:       []string{"/" + fake.TestImage, "append /counters/" + name + " started", "wait"},
				LivenessProbe: probe(), ReadinessProbe: probe(),
				VolumeMounts: []v1.VolumeMount{{Name: "counters", MountPath: "/counters"}},
			}},
			Volumes: []v1.Volume{{Name: "counters", VolumeSource: v1.VolumeSource{
				HostPath: &v1.HostPathVolumeSource{Path: counters, Type: &kind}}}},
		},
	}
	if volume {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "big", MountPath: "/big"})
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "big", VolumeSource: v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "big"}}}})
	}
	_, err := n.arena.fakes.Lab.Client.CoreV1().Pods(n.arena.namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// inLog is the pod's name in the runtime's log.
func inLog(p *v1.Pod) string { return fmt.Sprintf("%s/%s (%s)", p.Namespace, p.Name, p.UID) }

// delete asks for a pod's deletion.
func (n *node) delete(ctx context.Context, name string) error {
	pods := n.arena.fakes.Lab.Client.CoreV1().Pods(n.arena.namespace)
	p, err := pods.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.deleted[inLog(p)] = time.Now()
	n.mu.Unlock()
	return pods.Delete(ctx, name, metav1.DeleteOptions{})
}

// gone checks what still runs of a pod whose API object has gone.
func (n *node) gone(p *v1.Pod) {
	bad := oracle.NothingRuns(instances(n.Runtime.Log()), inLog(p), time.Now())
	n.mu.Lock()
	defer n.mu.Unlock()
	n.early = append(n.early, bad...)
}

// check returns the violations so far.
func (n *node) check() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append(check(n.Runtime.Log(), n.deleted), n.early...)
}

// strike is one fault: it begins while a call is in flight and ends with end.
type strike struct {
	struck chan struct{}
	hold   chan struct{} // closed: the call that was hit continues
}

// arm makes the link fail as soon as the op is in flight.
func (n *node) arm(c testCase, pod string, r *rand.Rand) *strike {
	s := &strike{struck: make(chan struct{}), hold: make(chan struct{})}
	var once sync.Once
	begin := func() {
		once.Do(func() {
			c.class.Begin(n.Wire, r)
			close(s.struck)
		})
	}
	if c.op.method == "" {
		n.Wire.After(200<<10, begin)
		return s
	}
	fault := fake.Fault{Match: func(request any) bool {
		if !c.op.names(request, pod) {
			return false
		}
		go begin()
		return true
	}}
	if r.IntN(2) == 0 {
		fault.Hold = s.hold // the call is carried out late, if at all
	} else {
		fault.HoldAnswer = s.hold // the call is carried out, and the answer is late or lost
	}
	n.Runtime.Inject(c.op.method, fault)
	return s
}

var errMissed = errors.New("the link failed before the write of the volume")

// run runs one case and returns the violations.
func (n *node) run(ctx context.Context, c testCase) []string {
	for attempt := 0; ; attempt++ {
		err := n.fail(ctx, c, attempt)
		if errors.Is(err, errMissed) && attempt < 5 {
			continue
		}
		bad := n.check()
		if err != nil {
			bad = append([]string{err.Error()}, bad...)
		}
		if err == nil {
			n.arena.mu.Lock()
			n.arena.hits[c.op.name+", "+c.class.Name]++
			n.arena.mu.Unlock()
		}
		return bad
	}
}

func (n *node) fail(ctx context.Context, c testCase, attempt int) error {
	r := rand.New(rand.NewPCG(c.seed, uint64(c.index)+1))
	lab, ns := n.arena.fakes.Lab, n.arena.namespace
	pod := fmt.Sprintf("case-%d-%d", c.index, attempt)
	volume := c.op.method == ""
	defer n.Wire.Restore()
	defer n.Runtime.ClearFaults()

	var s *strike
	var err error
	switch c.op.who {
	case newcomer:
		s = n.arm(c, pod, r)
		err = n.create(ctx, pod, volume)
	case leaver:
		if err = n.create(ctx, pod, false); err != nil {
			break
		}
		if _, err = lab.PodReady(ctx, ns, pod, patience); err != nil {
			break
		}
		s = n.arm(c, pod, r)
		err = n.delete(ctx, pod)
	case resident:
		pod = residentOf(n)
		s = n.arm(c, pod, r)
	}
	if err != nil {
		return err
	}
	var release sync.Once
	goOn := func() { release.Do(func() { close(s.hold) }) }
	defer goOn()
	select {
	case <-s.struck:
	case <-time.After(patience):
		return fmt.Errorf("%s has not come within %s", c.op.name, patience)
	case <-ctx.Done():
		return ctx.Err()
	}
	missed := volume && !n.writing(ctx, pod)
	during, after := labtest.LinkFaultTime(r), r.IntN(2) == 0
	if !missed {
		half := time.AfterFunc(during/2, func() {
			if !after {
				goOn()
			}
		})
		defer half.Stop()
		if err := labtest.Holds(ctx, during, "while the link fails", n.unharmed); err != nil {
			return err
		}
	}
	n.Wire.Restore()
	goOn()
	if c.op.who == newcomer {
		p, err := lab.PodReady(ctx, ns, pod, patience)
		if err != nil {
			return err
		}
		if restarts := labtest.Restarts(p); restarts != 0 {
			return fmt.Errorf("%d restarts are reported", restarts)
		}
		if volume {
			if err := n.whole(p); err != nil {
				return err
			}
		}
		if err := n.delete(ctx, pod); err != nil {
			return err
		}
	}
	if c.op.who != resident {
		if err := lab.PodGone(ctx, ns, pod, patience); err != nil {
			return err
		}
	} else if _, err := lab.PodReady(ctx, ns, pod, patience); err != nil {
		return err
	}
	if missed {
		return errMissed
	}
	return n.counted(pod)
}

// unharmed checks that there are no violations so far.
func (n *node) unharmed(context.Context) error {
	if bad := n.check(); len(bad) > 0 {
		return errors.New(strings.Join(bad, "; "))
	}
	return nil
}

// volumeOf is the directory of a pod's volume, as seen from outside its machine.
func (n *node) volumeOf(p *v1.Pod) string {
	return n.Path("/var/lib/kubelet/pods/" + string(p.UID) + "/volumes/kubernetes.io~configmap/big")
}

// writing reports whether the pod's volume does not exist yet, so that its write is in flight.
func (n *node) writing(ctx context.Context, name string) bool {
	p, err := n.arena.fakes.Lab.Client.CoreV1().Pods(n.arena.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	_, err = os.Lstat(n.volumeOf(p) + "/data")
	return os.IsNotExist(err)
}

// whole checks that the pod's volume is complete.
func (n *node) whole(p *v1.Pod) error {
	data, err := os.ReadFile(n.volumeOf(p) + "/data")
	if err != nil {
		return err
	}
	if !bytes.Equal(data, big()) {
		return fmt.Errorf("the volume holds %d bytes that are not those of its configMap", len(data))
	}
	return nil
}

// counted checks that the pod's container has counted one start.
func (n *node) counted(pod string) error {
	data, err := os.ReadFile(n.Path(counters) + "/" + pod)
	if err != nil {
		return err
	}
	if starts := strings.Count(string(data), "\n"); starts != 1 {
		return fmt.Errorf("the container of %s has counted %d starts", pod, starts)
	}
	return nil
}
