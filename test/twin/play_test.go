package twin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// waitLimit bounds a step: beyond it something is broken, not slow.
const waitLimit = 4 * time.Minute

// scenario is a pod and the steps that are taken with it.
type scenario struct {
	name  string
	spec  string // of the pod, YAML; see manifest
	steps []step
	file  bool // the pod is static: its manifest is a file on the node
}

// resizeToWholeNode asks for every processor of the node, some of which its occupant uses.
func resizeToWholeNode(ctx context.Context, p *play) error {
	n, err := p.lab.Client.CoreV1().Nodes().Get(ctx, p.node.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	all := n.Status.Allocatable.Cpu().String()
	return patch(fmt.Sprintf(`"containers":[{"name":"main","resources":{"requests":{"cpu":%q},"limits":{"cpu":%q}}}]`, all, all), "resize")(ctx, p)
}

// step acts, or waits for what must happen before the next step.
type step func(context.Context, *play) error

// play is a scenario on one node.
type play struct {
	scenario
	lab  *labtest.Lab
	node *node
	rec  *recorder
}

// manifest returns the scenario's pod for the node.
func (p *play) manifest(spec string) (*v1.Pod, error) {
	pod := &v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	err := yaml.UnmarshalStrict([]byte(strings.NewReplacer("$TOOLBOX", toolbox, "$WEB", web).Replace(spec)), &pod.Spec)
	pod.Name, pod.Namespace = p.name, p.node.namespace
	if !p.file {
		pod.Spec.NodeName = p.node.name
	}
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		pod.Spec.TerminationGracePeriodSeconds = new(int64(2))
	}
	return pod, err
}

// run makes the pod, takes the steps, removes the pod if it still exists, and waits for the last
// events.
func (p *play) run(ctx context.Context) (Recording, error) {
	for _, s := range append([]step{write(p.spec)}, append(p.steps, end)...) {
		if err := s(ctx, p); err != nil {
			entries, _, _ := p.rec.seen(p.name)
			state := "it is gone"
			if pod := latest(entries); pod != nil {
				state = labtest.Describe(pod)
			}
			// A pod that stays would disturb the others.
			_ = p.delete(context.WithoutCancel(ctx), 0)
			return p.rec.recording(p.name), fmt.Errorf("%s on %s: %w (%s)", p.name, p.node.name, err, state)
		}
	}
	return p.rec.recording(p.name), nil
}

// write makes the pod, or puts its manifest into the node's directory.
func write(spec string) step {
	return func(ctx context.Context, p *play) error {
		pod, err := p.manifest(spec)
		if err != nil {
			return err
		}
		if !p.file {
			_, err = p.lab.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
			return err
		}
		data, err := json.Marshal(pod)
		if err != nil {
			return err
		}
		// Rename it into place, because the node might read a half-written file.
		temporary := filepath.Join(filepath.Dir(p.node.manifests), p.name+".new")
		if err := os.WriteFile(temporary, data, 0o644); err != nil {
			return err
		}
		return os.Rename(temporary, p.path())
	}
}

func (p *play) path() string { return filepath.Join(p.node.manifests, p.name+".json") }

// delete asks for the pod's deletion; grace < 0 uses the pod's own grace period.
func (p *play) delete(ctx context.Context, grace int64) error {
	if p.file {
		return os.Remove(p.path())
	}
	var o metav1.DeleteOptions
	if grace >= 0 {
		o.GracePeriodSeconds = &grace
	}
	return p.lab.Client.CoreV1().Pods(p.node.namespace).Delete(ctx, p.name, o)
}

// end is the last step of each scenario.
func end(ctx context.Context, p *play) error {
	entries, _, _ := p.rec.seen(p.name)
	if pod := latest(entries); pod != nil {
		if pod.DeletionTimestamp == nil {
			// A pending write of the node belongs to the time before the deletion.
			if err := watched(1500*time.Millisecond)(ctx, p); err != nil {
				return err
			}
			if err := p.delete(ctx, -1); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		if err := gone(ctx, p); err != nil {
			return err
		}
	}
	// Events may come five seconds after their cause.
	return p.rec.quiet(ctx, p.name, 7*time.Second, time.Minute)
}

// until waits until the pod satisfies a condition.
func until(what string, condition func(*v1.Pod) bool) step {
	return func(ctx context.Context, p *play) error {
		return p.rec.until(ctx, p.name, what, waitLimit, func(entries []Entry) bool {
			pod := latest(entries)
			return pod != nil && condition(pod)
		})
	}
}

var gone step = func(ctx context.Context, p *play) error {
	return p.rec.until(ctx, p.name, "it is gone", waitLimit, func(entries []Entry) bool { return latest(entries) == nil })
}

// quiet waits until nothing was reported for three seconds.
var quiet step = func(ctx context.Context, p *play) error {
	return p.rec.quiet(ctx, p.name, 3*time.Second, 20*time.Second)
}

// watched waits for so long, whatever is reported.
func watched(span time.Duration) step {
	return func(ctx context.Context, p *play) error {
		err := p.rec.until(ctx, p.name, "", span, func([]Entry) bool { return false })
		if errors.Is(err, errTooLate) {
			return nil
		}
		return err
	}
}

func phase(want v1.PodPhase) step {
	return until("phase "+string(want), func(pod *v1.Pod) bool { return pod.Status.Phase == want })
}

func condition(kind v1.PodConditionType, status v1.ConditionStatus) step {
	return until(fmt.Sprintf("%s is %s", kind, status), func(pod *v1.Pod) bool {
		return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == kind && c.Status == status })
	})
}

var ready = condition(v1.PodReady, v1.ConditionTrue)

func container(name, what string, condition func(v1.ContainerStatus) bool) step {
	return until(name+" "+what, func(pod *v1.Pod) (ok bool) {
		eachContainer(pod, func(s v1.ContainerStatus) { ok = ok || s.Name == name && condition(s) })
		return ok
	})
}

func running(name string) step {
	return container(name, "runs", func(s v1.ContainerStatus) bool { return s.State.Running != nil })
}

func terminated(name string) step {
	return container(name, "has ended", func(s v1.ContainerStatus) bool { return s.State.Terminated != nil })
}

func waits(name, reason string) step {
	return container(name, "waits for "+reason, func(s v1.ContainerStatus) bool {
		return s.State.Waiting != nil && s.State.Waiting.Reason == reason
	})
}

// restarted waits until the container has restarted n times, and runs.
func restarted(name string, n int32) step {
	return container(name, fmt.Sprintf("has restarted %d times", n), func(s v1.ContainerStatus) bool {
		return s.RestartCount >= n && s.State.Running != nil
	})
}

// ended waits until the container does not run, after n restarts.
func ended(name string, n int32) step {
	return container(name, "has ended again", func(s v1.ContainerStatus) bool { return s.RestartCount >= n && s.State.Running == nil })
}

func remove(grace int64) step {
	return func(ctx context.Context, p *play) error { return p.delete(ctx, grace) }
}

func configMap(name string, data map[string]string) step {
	return func(ctx context.Context, p *play) error {
		_, err := p.lab.Client.CoreV1().ConfigMaps(p.node.namespace).Create(ctx,
			&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
		return err
	}
}

// patch patches the pod's spec, or that of a subresource.
func patch(spec string, subresource ...string) step {
	return func(ctx context.Context, p *play) error {
		_, err := p.lab.Client.CoreV1().Pods(p.node.namespace).Patch(ctx, p.name, types.StrategicMergePatchType,
			[]byte(`{"spec":{`+spec+`}}`), metav1.PatchOptions{}, subresource...)
		return err
	}
}

// gate sets a condition of another owner, as the controller of a readiness gate does.
func gate(kind, status string) step {
	return func(ctx context.Context, p *play) error {
		_, err := p.lab.Client.CoreV1().Pods(p.node.namespace).Patch(ctx, p.name, types.StrategicMergePatchType,
			fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":%q}]}}`, kind, status), metav1.PatchOptions{}, "status")
		return err
	}
}

// resized waits until the container has the requested resources.
func resized(name, cpu, memory string) step {
	return container(name, "has "+cpu+" "+memory, func(s v1.ContainerStatus) bool {
		return s.Resources != nil && (cpu == "" || s.Resources.Limits.Cpu().String() == cpu) && (memory == "" || s.Resources.Limits.Memory().String() == memory)
	})
}
