package syncloop_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// wantOne fails the test unless exactly one event with this reason was recorded, which begins so.
func (w *world) wantOne(reason, prefix string) {
	w.t.Helper()
	if got := w.eventsOf(reason); len(got) != 1 || !strings.HasPrefix(got[0], prefix) {
		w.t.Errorf("the events %s are %q, want one %q", reason, got, prefix)
	}
}

// TestNetworkNotReady: a pod that waits for the runtime's network says so, once. One on the host's network
// does not wait, and one that runs has what it needs.
func TestNetworkNotReady(t *testing.T) {
	w := newParallelWorld(t)
	w.up()
	w.createReady(newPod("earlier"))
	w.rt.SetCondition("NetworkReady", false, "NetworkPluginNotReady", "cni plugin not initialized")
	w.until("the loop knows it", func() bool { return slices.Contains(w.node.errorLogs(), "Found the runtime's network not ready") })
	w.api.create(with(newPod("host"), func(p *v1.Pod) { p.Spec.HostNetwork = true }))
	w.api.create(newPod("web"))
	w.untilReady("host")
	w.until("an event says why", func() bool { return len(w.eventsOf("NetworkNotReady")) > 0 })
	w.rt.SetCondition("NetworkReady", true, "", "")
	w.untilReady("web")
	w.wantOne("NetworkNotReady", "Pod/web : network is not ready: container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized")
}

// TestFailedSync: a pod of which the runtime shows no status has a kubelet's events, and no pod beside it.
func TestFailedSync(t *testing.T) {
	for method, wanted := range map[string][]string{
		"ContainerStatus":  {"FailedSync"},
		"PodSandboxStatus": {"FailedSync", "FailedPodSandBoxStatus"},
	} {
		t.Run(method, func(t *testing.T) {
			w := up(t)
			w.createReady(newPod("other"))
			w.rt.Inject(method, fake.Fault{Before: status.Error(codes.Unknown, "shim is broken"), Times: -1})
			w.api.create(newPod("web"))
			w.until("events say so", func() bool {
				return !slices.ContainsFunc(wanted, func(reason string) bool { return len(w.eventsOf(reason)) == 0 })
			})
			w.rt.ClearFaults()
			w.untilReady("web")
			for reason, prefix := range map[string]string{"FailedSync": "Pod/web : error determining status: ", "FailedPodSandBoxStatus": "Pod/web : Unable to get pod sandbox status: "} {
				for _, got := range w.eventsOf(reason) {
					if !strings.HasPrefix(got, prefix) || !strings.HasSuffix(got, "shim is broken") || !slices.Contains(wanted, reason) {
						t.Errorf("%s: %s", reason, got)
					}
				}
			}
		})
	}
}

// TestEventsOfAHostThatRefuses: a cgroup and a directory that cannot be made have a kubelet's events
// instead of those of a sandbox or of a volume.
func TestEventsOfAHostThatRefuses(t *testing.T) {
	w := up(t)
	w.host.noCgroups.Store(true)
	w.api.create(newPod("web"))
	w.until("an event says so", func() bool { return len(w.eventsOf("FailedCreatePodContainer")) > 0 })
	w.host.noCgroups.Store(false)
	w.untilReady("web")
	w.host.noDirs.Store(true)
	w.api.create(newPod("late"))
	w.until("an event says so", func() bool { return len(w.eventsOf("Failed")) > 0 })
	w.host.noDirs.Store(false)
	w.untilReady("late")
	for reason, prefix := range map[string]string{
		"FailedCreatePodContainer": "Pod/web : unable to ensure pod container exists: make the pod's cgroup: write ",
		"Failed":                   "Pod/late : error making pod data directories: make the directories of pod ns/late: ",
	} {
		for _, got := range w.eventsOf(reason) {
			if !strings.HasPrefix(got, prefix) {
				t.Errorf("%s: %s", reason, got)
			}
		}
	}
	for _, reason := range []string{"FailedCreatePodSandBox", "FailedMount"} {
		if got := w.eventsOf(reason); len(got) > 0 {
			t.Errorf("%s: %q", reason, got)
		}
	}
}

// TestFailedKillPod: the event is on the pod, as a kubelet's, and not on the container that does not stop.
func TestFailedKillPod(t *testing.T) {
	w := up(t)
	w.createReady(newPod("web"))
	w.rt.Inject("StopContainer", fake.Fault{Before: status.Error(codes.Unknown, "shim is broken")})
	w.api.delete("web", 1)
	w.untilGone()
	w.wantOne("FailedKillPod", `Pod/web : error killing pod: stop container "app": `)
}

// TestExceededGracePeriod: a pod that is evicted, and that the runtime does not stop in time, has a kubelet's
// event, once.
func TestExceededGracePeriod(t *testing.T) {
	w := up(t)
	p := w.createReady(newPod("web"))
	hold := make(chan struct{})
	w.rt.Inject("StopContainer", fake.Fault{Hold: hold})
	w.node.loop.End(p.UID, plan.Terminate{At: time.Now(), Grace: time.Second, Cause: plan.CauseEvicted, Reason: "Evicted"})
	w.until("an event says so", func() bool { return len(w.eventsOf("ExceededGracePeriod")) > 0 })
	close(hold)
	w.until("it has ended", func() bool { return done(w.api.pod("web")) })
	w.wantOne("ExceededGracePeriod", "Pod/web : Container runtime did not kill the pod within specified grace period.")
}

// TestMissingClusterDNS: like a kubelet, the node says so as well as the pod.
func TestMissingClusterDNS(t *testing.T) {
	w := newParallelWorld(t)
	w.noDNS = true
	w.up()
	w.createReady(newPod("web"))
	const words = `node does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. Falling back to "Default" policy.`
	got := w.eventsOf("MissingClusterDNS")
	slices.Sort(got)
	if len(got) != 2 || got[0] != "Node/node : "+words || !strings.HasPrefix(got[1], `Pod/web : pod: "web_ns(`) || !strings.HasSuffix(got[1], words) {
		t.Errorf("the events are %q", got)
	}
}
