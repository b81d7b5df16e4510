package syncloop_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// password is in the pod's environment, which no line of the log may show.
const password = "correct-horse-battery"

// live lets a pod live from its creation to its end: it becomes ready, its container is killed by someone
// else and starts again, and then it is deleted.
func (w *world) live(name string) {
	w.t.Helper()
	p := w.createReady(with(newPod(name, "wait"), func(p *v1.Pod) {
		c := &p.Spec.Containers[0]
		c.Env = []v1.EnvVar{{Name: "PASSWORD", Value: password}}
		c.ReadinessProbe = &v1.Probe{ProbeHandler: execOf("out fine"), PeriodSeconds: 1, TimeoutSeconds: 5, FailureThreshold: 1, SuccessThreshold: 1}
	}))
	testutil.Must(w.t, w.node.client.StopContainer(w.t.Context(), w.instance(name, "app"), 0))
	w.until("it is ready again", func() bool {
		now := w.api.pod(name)
		return ready(now) && container(now, "app").RestartCount == 1
	})
	w.api.delete(name, 1)
	w.untilGone()
	testutil.Eventually(w.t, "its worker has ended", func() bool { return !w.node.loop.Known(p.UID) })
}

// TestStoryOfAPod: with -v=2 the log tells what happened to a pod, from its first sight to its end, in about
// ten lines, each of them once. The order of concurrent operations does not matter.
func TestStoryOfAPod(t *testing.T) {
	w := newParallelWorld(t)
	w.verbosity = 2
	w.up()
	w.live("web")
	want := []string{
		"Received a change of the pod op=ADD source=api",
		"Finished an operation op=pull container=app why=its image must be present",
		"Finished an operation op=sandbox container= why=the pod has none",
		"Finished an operation op=start container=app why=it does not exist",
		"Changed pod readiness ready=true phase=Running",
		"Changed pod readiness ready=false phase=Running",
		"Finished an operation op=start container=app why=its restart policy wants it to run",
		"Changed pod readiness ready=true phase=Running",
		"Received a change of the pod op=DELETE source=api",
		"Finished an operation op=stop container=app why=the pod is being deleted",
		"Stopped the pod worker",
	}
	testutil.Eventually(t, "the story is complete", func() bool { return len(w.node.story(t, "web")) >= len(want) })
	story := w.node.story(t, "web")
	if len(story) > 2 {
		slices.Sort(story[1:3])
	}
	if !slices.Equal(story, want) {
		t.Errorf("the story is\n%s", strings.Join(story, "\n"))
	}
}

// TestSilenceOfAPod: without -v, the log has nothing of a pod to which nothing unusual happens, and with -v=1
// that it has ended.
func TestSilenceOfAPod(t *testing.T) {
	for verbosity, want := range [][]string{nil, {"Stopped the pod worker"}} {
		t.Run(fmt.Sprint(verbosity), func(t *testing.T) {
			w := newParallelWorld(t)
			w.verbosity = verbosity
			w.up()
			w.live("web")
			if story := w.node.story(t, "web"); !slices.Equal(story, want) {
				t.Errorf("the story is\n%s", strings.Join(story, "\n"))
			}
		})
	}
}

// story returns the lines about a pod, with those of their values that are the same in each run. Each line
// names the pod in the same form.
func (n *node) story(t *testing.T, name string) (story []string) {
	t.Helper()
	for _, e := range n.log.GetSink().(ktesting.Underlier).GetBuffer().Data() {
		line, of := e.Message, []klog.ObjectRef{}
		for _, list := range [][]any{e.WithKVList, e.ParameterKVList} {
			for i := 0; i+1 < len(list); i += 2 {
				key, value := fmt.Sprint(list[i]), fmt.Sprint(list[i+1])
				switch key {
				case "pod":
					of = append(of, list[i+1].(klog.ObjectRef))
				case "op", "container", "source", "ready", "phase", "why":
					line += " " + key + "=" + value
				}
				if strings.Contains(value, password) {
					t.Errorf("%s: %s shows the password", e.Message, key)
				}
			}
		}
		switch {
		case len(of) > 1:
			t.Errorf("%s names the pod twice: %v", line, of)
		case len(of) == 1 && of[0] == klog.KRef(namespace, name):
			story = append(story, line)
		case len(of) == 1:
			t.Errorf("%s is about %v", line, of)
		}
	}
	return story
}
