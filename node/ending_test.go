package node

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/ownership"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

var errInUse = &owner.RefusedError{Decision: owner.Decision{Kind: owner.HeldByOther, Problem: "another Bowline manages this host", Fix: "stop it"}}

// TestEndReasons: what ends a driver has an event if a user of the node can do something about it, and if
// nothing else tells.
func TestEndReasons(t *testing.T) {
	exceeded := budget.New(budget.Limits{}).Exceed(budget.ReplyBytes, "the reply to ListPodSandbox")
	for name, c := range map[string]struct {
		at   stage
		err  error
		want string
	}{
		"stopped":                      {stageServing, nil, ""},
		"in use":                       {stageSetup, fmt.Errorf("claim: %w", errInUse), "HostInUse"},
		"in use, after it was served":  {stageServing, errInUse, "HostInUse"},
		"an owner file that is broken": {stageSetup, &owner.RefusedError{Decision: owner.Decision{Kind: owner.FileUnclear}}, "KubeletSetupFailed"},
		"the lock of a local host":     {stageServing, hint.Add(ownership.ErrLockLost, "look for another"), "LockLost"},
		"cannot be set up":             {stageSetup, errors.New("make the root directory's mount shared: no"), "KubeletSetupFailed"},
		"two hosts with one name":      {stageConnected, errors.New("the name is taken"), ""},
		"a part ended":                 {stageServing, errors.New("probes: ended by itself"), ""},
		"the host is away":             {stageSetup, fmt.Errorf("look: %w", host.ErrUnreachable), ""},
		"the runtime is down":          {stageSetup, &cri.Error{Kind: cri.KindTransport, Method: "Version", Err: errors.New("no")}, ""},
		"a budget":                     {stageSetup, exceeded, ""},
	} {
		if got := endReason(c.at, c.err); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestRecordEnd: the Node of the host, and no other, shows why its driver has ended. A driver that fails all
// the time for the same reason has one event, which is renewed.
func TestRecordEnd(t *testing.T) {
	ours := map[string]string{provider.AnnotationDriver: "bowline", v1alpha1.HostAnnotation: "box-1"}
	for name, c := range map[string]struct {
		annotations map[string]string // of the Node; nil: there is none
		unmet       bool              // the API server is not known to be the node's
		cancelled   bool              // the driver was stopped
		want        []string
	}{
		"ours":            {annotations: ours, want: []string{"13 times Warning HostInUse another Bowline manages this host. Stop it", "1 times Warning KubeletSetupFailed no room"}},
		"of another Host": {annotations: map[string]string{provider.AnnotationDriver: "bowline", v1alpha1.HostAnnotation: "box-2"}},
		"a kubelet's":     {annotations: map[string]string{"x": "y"}},
		"none yet":        {},
		"unmet":           {annotations: ours, unmet: true},
		"stopped":         {annotations: ours, cancelled: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := kubernetesfake.NewClientset()
				if c.annotations != nil {
					testutil.Must(t, client.Tracker().Add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "box", Annotations: c.annotations}, Status: v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{KubeletVersion: "v1"}}}))
				}
				n := &Node{name: "box", cfg: &config.Host{HostObject: "box-1"}, stage: stageSetup, cluster: &cluster.Connection{Client: client, Ready: make(chan struct{})}}
				if !c.unmet {
					close(n.cluster.Ready)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancelled {
					cancel()
				}
				for range 61 { // an hour
					n.recordEnd(ctx, errInUse)
					time.Sleep(time.Minute)
				}
				n.recordEnd(ctx, errors.New("no room"))
				list, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
				testutil.Must(t, err)
				var got []string
				for _, e := range list.Items {
					if e.InvolvedObject.Kind != "Node" || e.InvolvedObject.Name != "box" || e.InvolvedObject.UID != "box" {
						t.Errorf("the event is about %+v", e.InvolvedObject)
					}
					got = append(got, fmt.Sprintf("%d times %s %s %s", e.Count, e.Type, e.Reason, e.Message))
				}
				if len(got) == 2 && got[0] > got[1] != (c.want[0] > c.want[1]) {
					got[0], got[1] = got[1], got[0]
				}
				if d := cmp.Diff(c.want, got); d != "" {
					t.Error(d)
				}
			})
		})
	}
}
