package release

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

func TestWhose(t *testing.T) {
	one, two := owner.Sandbox{Stamp: "c/n"}, owner.Sandbox{Stamp: "c/m"}
	file := &owner.Record{Identity: owner.Identity{ClusterUID: "f", NodeName: "n"}}
	for name, c := range map[string]struct {
		file      *owner.Record
		sandboxes []owner.Sandbox
		want      string // stamp; empty: no owner
	}{
		"nothing":                   {},
		"a file":                    {file: file, want: "f/n"},
		"a file before stamps":      {file: file, sandboxes: []owner.Sandbox{one}, want: "f/n"},
		"stamps":                    {sandboxes: []owner.Sandbox{one, {}, one}, want: "c/n"},
		"stamps of several":         {sandboxes: []owner.Sandbox{one, two, one}},
		"pods of another program":   {sandboxes: []owner.Sandbox{{}, {Kubelet: true}}},
		"a stamp of another form":   {sandboxes: []owner.Sandbox{{Stamp: "odd"}}},
		"another form and a stamp":  {sandboxes: []owner.Sandbox{{Stamp: "odd"}, one}, want: "c/n"},
		"stamps of several, sorted": {sandboxes: []owner.Sandbox{two, one}},
	} {
		id, known := Whose(c.file, c.sandboxes)
		if known != (c.want != "") || known && id.Stamp() != c.want {
			t.Errorf("%s: %v, %v", name, id, known)
		}
	}
}

func TestGrace(t *testing.T) {
	for want, annotations := range map[time.Duration]map[string]string{
		30 * time.Second: nil,
		7 * time.Second:  {pod.AnnotationPodGrace: "7"},
		0:                {pod.AnnotationPodGrace: "0"},
		2 * time.Second:  {pod.AnnotationPodGrace: "7", pod.AnnotationPodDeletionGrace: "2"},
		9 * time.Second:  {pod.AnnotationPodGrace: "9", pod.AnnotationPodDeletionGrace: "soon"},
	} {
		if got := Grace(annotations); got != want {
			t.Errorf("%v: %v", annotations, got)
		}
	}
}

// recorder is a runtime that records the calls.
type recorder struct {
	Runtime
	mu    sync.Mutex
	calls []string
	fails string
}

func (r *recorder) say(call string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, call)
	if call == r.fails {
		return errors.New("no")
	}
	return nil
}

func (r *recorder) StopContainer(_ context.Context, id string, grace time.Duration) error {
	return r.say("stop " + id + " " + grace.String())
}
func (r *recorder) StopPodSandbox(_ context.Context, id string) error { return r.say("sandbox " + id) }

// seen has a pod of ours with a preStop hook, one without a stamp, and one of another node.
func seen() Seen {
	sandbox := func(id, stamp string) *runtimeapi.PodSandbox {
		return &runtimeapi.PodSandbox{Id: id, Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "ns", Name: id},
			Labels: map[string]string{pod.LabelOwner: stamp, pod.LabelPodUID: "uid-" + id}}
	}
	container := func(id, in, stamp string, state runtimeapi.ContainerState, annotations map[string]string) *runtimeapi.Container {
		return &runtimeapi.Container{Id: id, PodSandboxId: in, State: state, Annotations: annotations,
			Metadata: &runtimeapi.ContainerMetadata{Name: id}, Labels: map[string]string{pod.LabelOwner: stamp}}
	}
	const running, exited = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	return Seen{
		[]*runtimeapi.PodSandbox{sandbox("ours", "c/n"), sandbox("foreign", ""), sandbox("other", "c/m")},
		[]*runtimeapi.Container{
			container("a", "ours", "c/n", running, map[string]string{pod.AnnotationPodGrace: "10", pod.AnnotationPreStop: "{}"}),
			container("b", "ours", "c/n", exited, nil),
			container("f", "foreign", "", running, nil), container("o", "other", "c/m", running, nil),
		},
	}
}

func TestStop(t *testing.T) {
	for name, c := range map[string]struct {
		grace    string // of the pod; empty: 10 s
		noHook   bool
		hook     time.Duration
		maxGrace time.Duration
		fails    string
		want     string
	}{
		"a quick hook":     {hook: 3 * time.Second, want: "stop a 7s|sandbox ours"},
		"a hook too slow":  {hook: time.Hour, want: "stop a 2s|sandbox ours"},
		"graces cut short": {hook: time.Hour, maxGrace: 4 * time.Second, want: "stop a 2s|sandbox ours"},
		// The stop signal comes before SIGKILL, as on a kubelet.
		"no grace":              {grace: "0", noHook: true, want: "stop a 2s|sandbox ours"},
		"no grace, with a hook": {grace: "0", hook: time.Second, want: "stop a 2s|sandbox ours"},
		"a second":              {grace: "1", noHook: true, want: "stop a 2s|sandbox ours"},
		"a cap of a second":     {noHook: true, maxGrace: time.Second, want: "stop a 2s|sandbox ours"},
		"it does not stop":      {fails: "stop a 10s", want: "stop a 10s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &recorder{fails: c.fails}
				s := &Stopper{Runtime: r, Stamp: "c/n", MaxGrace: c.maxGrace, Step: func(Step) {},
					Hook: func(ctx context.Context, sb *runtimeapi.PodSandbox, _ *runtimeapi.Container) {
						select {
						case <-time.After(c.hook):
						case <-ctx.Done():
						}
					}}
				all := seen()
				if a := all.Containers[0].Annotations; c.grace != "" {
					a[pod.AnnotationPodGrace] = c.grace
				}
				if c.noHook {
					delete(all.Containers[0].Annotations, pod.AnnotationPreStop)
				}
				err := s.Stop(t.Context(), all)
				if (err != nil) != (c.fails != "") {
					t.Errorf("stopped with %v", err)
				}
				if err != nil && !strings.Contains(err.Error(), "stop pod ns/ours") {
					t.Errorf("the error is %q", err)
				}
				if got := strings.Join(r.calls, "|"); got != c.want {
					t.Errorf("called %q, not %q", got, c.want)
				}
			})
		})
	}
}

// records are the files of the directory of pods' records.
type records []host.FileInfo

func (r records) List(_ context.Context, dir string) ([]host.FileInfo, error) {
	if dir != "/var/lib/kubelet/bowline/pods" {
		return nil, fs.ErrNotExist
	}
	return r, nil
}

func TestOurs(t *testing.T) {
	m := records{{Name: "uid-gone"}, {Name: ".uid-cut.bowline-1"}}
	o, err := seen().Ours(t.Context(), m, "c/n", "/var/lib/kubelet")
	if err != nil || !slices.Equal(o.IDs, []string{"ours", "a", "b"}) || !slices.Equal(o.Pods, []string{"uid-ours", "uid-gone"}) {
		t.Errorf("got %+v, %v", o, err)
	}
	l := Listing{}
	seen().AddTo(l)
	if got := Stays(l, o); len(got) != 3 {
		t.Errorf("of %v there are ours %q", l, got)
	}
}

// TestAPanicWhileAPodIsStopped: the panic is charged to that host's budget, because other hosts
// share the process, and the pod does not count as stopped.
func TestAPanicWhileAPodIsStopped(t *testing.T) {
	account := budget.New(budget.Limits{})
	s := &Stopper{Runtime: &recorder{}, Stamp: "c/n", Step: func(Step) {}, Hook: func(context.Context, *runtimeapi.PodSandbox, *runtimeapi.Container) { panic("found") }}
	err := s.Stop(budget.With(t.Context(), account), Seen{
		Sandboxes: []*runtimeapi.PodSandbox{{Id: "s", Labels: map[string]string{pod.LabelOwner: "c/n"}}},
		Containers: []*runtimeapi.Container{{Id: "c", PodSandboxId: "s", State: runtimeapi.ContainerState_CONTAINER_RUNNING,
			Labels: map[string]string{pod.LabelOwner: "c/n"}, Annotations: map[string]string{pod.AnnotationPreStop: "{}"}}},
	})
	if !errors.Is(err, budget.ErrPanicked) {
		t.Errorf("stopped with %v", err)
	}
	if e := (*budget.ExceededError)(nil); !errors.As(account.Err(), &e) || e.Kind != budget.Panic {
		t.Errorf("the account has %v", account.Err())
	}
}
