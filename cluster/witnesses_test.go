package cluster

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// TestSeenIsTheStartsRule: a release recognizes the cluster of a host exactly when a start does.
func TestSeenIsTheStartsRule(t *testing.T) {
	id := owner.Identity{ClusterUID: "first", NodeName: "n1"}
	client := kubernetesfake.NewClientset(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "p1"}})
	runs := func(uid string) []owner.Sandbox {
		return []owner.Sandbox{{ID: "1", Pod: "a/b", PodUID: uid, Stamp: id.Stamp(), Ready: true}}
	}
	recorded := owner.Witnesses{Service: "first", Node: "node-1", CA: []string{"ca"}}
	recreated := owner.Witnesses{Service: "now", CA: []string{"ca"}}
	for name, c := range map[string]struct {
		file, seen owner.Witnesses
		running    []owner.Sandbox
		want       bool
	}{
		"nothing changed":                       {recorded, recorded, nil, true},
		"idle, only the CA agrees":              {recorded, recreated, nil, true},
		"unknown pods, only the CA agrees":      {recorded, recreated, runs("p2"), false},
		"known pods, only the CA agrees":        {recorded, recreated, runs("p1"), true},
		"idle, another Node":                    {recorded, owner.Witnesses{Service: "now", Node: "node-2", CA: []string{"ca"}}, nil, false},
		"idle, another CA":                      {recorded, owner.Witnesses{Service: "now", CA: []string{"ca-2"}}, nil, false},
		"idle, a first release's file":          {owner.Witnesses{}, owner.Witnesses{Service: "now", Node: "node-1"}, nil, true},
		"idle, a first release's file, no Node": {owner.Witnesses{}, recreated, nil, false},
	} {
		file := &owner.Record{Identity: id, Witnesses: c.file}
		got, err := Seen{Client: client, Witnesses: c.seen}.Has(t.Context(), file, id, c.running)
		testutil.Must(t, err)
		pods, err := podsOf(t.Context(), client, id.NodeName)
		testutil.Must(t, err)
		d := owner.Decide(owner.Evidence{Self: owner.Identity{ClusterUID: c.seen.Service, NodeName: id.NodeName}, Witnesses: c.seen,
			Pods: pods, File: file, Sandboxes: c.running})
		if started := d.Kind == owner.Accepted; got != c.want || started != c.want {
			t.Errorf("%s: released %t, started %t; want %t", name, got, started, c.want)
		}
	}
	// Without an owner file, the stamps name the node.
	for uid, want := range map[string]bool{"p1": true, "p2": false} {
		if got, err := (Seen{Client: client, Witnesses: recreated}).Has(t.Context(), nil, id, runs(uid)); err != nil || got != want {
			t.Errorf("without a file, pod %s: %t, %v", uid, got, err)
		}
	}
}
