package twin

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// kubelets returns the recordings in testdata: TestTwin played each scenario on two kubelets at
// once.
func kubelets(t *testing.T) map[string][2]string {
	t.Helper()
	first, err := filepath.Glob("testdata/*.host1.json")
	testutil.Must(t, err)
	pairs := map[string][2]string{}
	for _, path := range first {
		name := strings.TrimSuffix(filepath.Base(path), ".host1.json")
		pairs[name] = [2]string{path, filepath.Join("testdata", name+".host2.json")}
	}
	if len(pairs) < 4 {
		t.Fatalf("there are only %d pairs of recordings", len(pairs))
	}
	return pairs
}

func load(t *testing.T, path string) Recording {
	t.Helper()
	r, err := Load(path)
	testutil.Must(t, err)
	return r
}

// The recordings of two kubelets have no differences.
func TestKubeletsAreAlike(t *testing.T) {
	for name, paths := range kubelets(t) {
		one, two := Normalise(load(t, paths[0])), Normalise(load(t, paths[1]))
		for _, d := range slices.Concat(Compare(one, two), Compare(two, one), Compare(one, one)) {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// mutants change a recording as a faulty node would have produced it. Each reports whether there
// was something to change.
var mutants = map[string]func(*Recording) bool{
	"the reason of an end is another one": eachState(func(s *v1.ContainerState) bool {
		return s.Terminated != nil && set(&s.Terminated.Reason, "ContainerCannotRun")
	}),
	"the exit code is another one": eachState(func(s *v1.ContainerState) bool {
		return s.Terminated != nil && set(&s.Terminated.ExitCode, 99)
	}),
	"startedAt is lost while it runs": eachState(func(s *v1.ContainerState) bool {
		return s.Running != nil && set(&s.Running.StartedAt, metav1.Time{})
	}),
	"startedAt of an end is lost": eachState(func(s *v1.ContainerState) bool {
		return s.Terminated != nil && !s.Terminated.StartedAt.IsZero() && set(&s.Terminated.StartedAt, metav1.Time{})
	}),
	"the message of what is waited for is another one": eachState(func(s *v1.ContainerState) bool {
		return s.Waiting != nil && set(&s.Waiting.Message, "soon")
	}),
	"lastState is missing": eachStatus(func(s *v1.ContainerStatus) bool {
		return s.LastTerminationState.Terminated != nil && set(&s.LastTerminationState, v1.ContainerState{})
	}),
	"a restart is not counted": eachStatus(func(s *v1.ContainerStatus) bool {
		return s.RestartCount > 0 && set(&s.RestartCount, s.RestartCount-1)
	}),
	"started is lost": eachStatus(func(s *v1.ContainerStatus) bool {
		return s.Started != nil && *s.Started && set(&s.Started, nil)
	}),
	"the image is another one": eachStatus(func(s *v1.ContainerStatus) bool { return set(&s.Image, "registry.lab/other:v1") }),
	"a container's status is missing": eachPod(func(p *v1.Pod) bool {
		n := len(p.Status.ContainerStatuses)
		p.Status.ContainerStatuses = nil
		return n > 0
	}),
	"the pod has no address": eachPod(func(p *v1.Pod) bool {
		n := len(p.Status.PodIPs)
		p.Status.PodIPs, p.Status.PodIP = nil, ""
		return n > 0
	}),
	"the class of service is another one": eachPod(func(p *v1.Pod) bool { return set(&p.Status.QOSClass, v1.PodQOSGuaranteed) }),
	"the generation was not observed":     eachPod(func(p *v1.Pod) bool { return set(&p.Status.ObservedGeneration, 0) }),
	"a condition's reason is another one": eachPod(func(p *v1.Pod) (done bool) {
		for i := range p.Status.Conditions {
			if c := &p.Status.Conditions[i]; c.Type == v1.PodReady && c.Status == v1.ConditionFalse {
				done = set(&c.Reason, "Because")
			}
		}
		return done
	}),
	"a condition is missing": eachPod(func(p *v1.Pod) bool {
		n := len(p.Status.Conditions)
		p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodInitialized })
		return n > len(p.Status.Conditions)
	}),
	"a condition flips once more": func(r *Recording) bool {
		for i, e := range r.Entries {
			if e.Pod == nil || e.Deleted || e.Pod.DeletionTimestamp != nil {
				continue
			}
			for j, c := range e.Pod.Status.Conditions {
				if c.Type != v1.PodReady || c.Status != v1.ConditionTrue {
					continue
				}
				flip, back := e.Pod.DeepCopy(), e.Pod.DeepCopy()
				flip.Status.Conditions[j].Status = v1.ConditionFalse
				r.Entries = slices.Insert(r.Entries, i+1,
					Entry{At: e.At.Add(10 * time.Millisecond), Pod: flip}, Entry{At: e.At.Add(20 * time.Millisecond), Pod: back})
				return true
			}
		}
		return false
	},
	"the phases come in another order": func(r *Recording) bool {
		var phases []*v1.PodPhase
		for _, e := range r.Entries {
			if e.Pod != nil {
				if n := len(phases); n == 0 || *phases[n-1] != e.Pod.Status.Phase {
					phases = append(phases, &e.Pod.Status.Phase)
				}
			}
		}
		if len(phases) < 2 {
			return false
		}
		*phases[0], *phases[1] = *phases[1], *phases[0]
		return true
	},
	"a state that lasted is left out": eachStatus(func(s *v1.ContainerStatus) bool {
		return s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff" && set(&s.State, s.LastTerminationState)
	}),
	"it ran for longer": eachState(func(s *v1.ContainerState) bool {
		return s.Terminated != nil && set(&s.Terminated.StartedAt, metav1.Time{Time: s.Terminated.StartedAt.Add(-20 * time.Second)})
	}),
	"it took longer to go": func(r *Recording) bool {
		last := &r.Entries[len(r.Entries)-1]
		for i := range r.Entries {
			if r.Entries[i].Deleted {
				last = &r.Entries[i]
			}
		}
		last.At = last.At.Add(20 * time.Second)
		return last.Deleted
	},
	"an event is left out": func(r *Recording) bool {
		n := len(r.Entries)
		r.Entries = slices.DeleteFunc(r.Entries, func(e Entry) bool { return e.Event != nil && e.Event.Reason == "Started" })
		return n > len(r.Entries)
	},
	"an event comes twice": func(r *Recording) bool {
		for i, e := range r.Entries {
			if e.Event != nil && e.Event.Reason == "Created" {
				again := e.Event.DeepCopy()
				again.UID, again.Name = "again", "again"
				r.Entries = slices.Insert(r.Entries, i+1, Entry{At: e.At, Event: again})
				return true
			}
		}
		return false
	},
	"an event is counted twice": eachEvent("Created", func(e *v1.Event) { e.Count++ }),
	"an event has another message": eachEvent("Started", func(e *v1.Event) {
		e.Message += " now"
	}),
	"an event has another reason":          eachEvent("Started", func(e *v1.Event) { e.Reason = "Began" }),
	"an event has another type":            eachEvent("Started", func(e *v1.Event) { e.Type = v1.EventTypeWarning }),
	"an event is of another part":          eachEvent("Started", func(e *v1.Event) { e.InvolvedObject.FieldPath = "" }),
	"an event is reported by someone else": eachEvent("Started", func(e *v1.Event) { e.Source.Component = "other" }),
	"two events come in the other order": func(r *Recording) bool {
		created, started := -1, -1
		for i, e := range r.Entries {
			switch {
			case e.Event == nil:
			case created < 0 && e.Event.Reason == "Created":
				created = i
			case created >= 0 && started < 0 && e.Event.Reason == "Started" && e.Event.InvolvedObject.FieldPath == r.Entries[created].Event.InvolvedObject.FieldPath:
				started = i
			}
		}
		if started < 0 {
			return false
		}
		r.Entries[created].Event, r.Entries[started].Event = r.Entries[started].Event, r.Entries[created].Event
		return true
	},
	"the second container starts before the first has ended": func(r *Recording) bool {
		done := false
		for _, e := range r.Entries {
			if e.Pod == nil || len(e.Pod.Status.InitContainerStatuses) < 2 {
				continue
			}
			s := &e.Pod.Status.InitContainerStatuses[1].State
			for _, at := range []*metav1.Time{startedAt(s)} {
				if at != nil && !at.IsZero() {
					at.Time, done = at.Add(-3*time.Second), true
				}
			}
		}
		return done
	},
}

func startedAt(s *v1.ContainerState) *metav1.Time {
	switch {
	case s.Running != nil:
		return &s.Running.StartedAt
	case s.Terminated != nil:
		return &s.Terminated.StartedAt
	}
	return nil
}

func set[T any](where *T, what T) bool {
	*where = what
	return true
}

func eachPod(change func(*v1.Pod) bool) func(*Recording) bool {
	return func(r *Recording) (done bool) {
		for _, e := range r.Entries {
			if e.Pod != nil && change(e.Pod) {
				done = true
			}
		}
		return done
	}
}

func eachStatus(change func(*v1.ContainerStatus) bool) func(*Recording) bool {
	return eachPod(func(p *v1.Pod) (done bool) {
		for s := range pod.Statuses(&p.Status) {
			if change(s) {
				done = true
			}
		}
		return done
	})
}

func eachState(change func(*v1.ContainerState) bool) func(*Recording) bool {
	return eachStatus(func(s *v1.ContainerStatus) bool {
		state, last := change(&s.State), change(&s.LastTerminationState)
		return state || last
	})
}

// eachEvent changes the events with a reason.
func eachEvent(reason string, change func(*v1.Event)) func(*Recording) bool {
	return func(r *Recording) (done bool) {
		for _, e := range r.Entries {
			if e.Event != nil && e.Event.Reason == reason {
				change(e.Event)
				done = true
			}
		}
		return done
	}
}

// Each mutant is caught in every recording that it can change, and it can change at least one.
func TestMutantsAreCaught(t *testing.T) {
	for name, mutate := range mutants {
		t.Run(name, func(t *testing.T) {
			changed := 0
			for scenario, paths := range kubelets(t) {
				mutant := load(t, paths[1])
				if !mutate(&mutant) {
					continue
				}
				changed++
				if len(Compare(Normalise(load(t, paths[0])), Normalise(mutant))) == 0 {
					t.Errorf("%s: nothing differs", scenario)
				}
			}
			if changed == 0 {
				t.Error("there is no recording that it changes")
			}
		})
	}
}
