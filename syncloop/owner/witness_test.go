package owner

import (
	"context"
	"errors"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// TestEveryWitness enumerates, for the Service, the Node and the CA, that it agrees, that
// it differs, that nothing is recorded of it and that nothing is seen of it; with and
// without a sandbox of the node, and with and without its pod in the API server.
func TestEveryWitness(t *testing.T) {
	type pair struct{ recorded, seen string }
	states := []pair{{"a", "a"}, {"a", "b"}, {"", "b"}, {"a", ""}}
	const agrees, differs = 0, 1
	ca := func(s string) []string {
		if s == "" {
			return nil
		}
		return []string{"shared-by-none-" + s, s}
	}
	count := map[Kind]int{}
	for service, s := range states {
		for node, n := range states {
			for bundle, b := range states {
				for running := range 3 { // none; one; one that the API server has
					// An empty Service in the record is the file of a first release, which has
					// its UID for the cluster's.
					file := record(Identity{"stable", "n1"})
					file.Witnesses = Witnesses{Service: s.recorded, Node: n.recorded, CA: ca(b.recorded)}
					e := Evidence{Self: Identity{"now", "n1"}, FilePath: "/f", File: file,
						Witnesses: Witnesses{Service: s.seen, Node: n.seen, CA: ca(b.seen)}}
					if running > 0 {
						e.Sandboxes = []Sandbox{{ID: "1", Pod: "a/b", PodUID: "u", Stamp: "stable/n1", Kubelet: true, Ready: true}}
						e.Pods = []types.UID{"another"}
					}
					if running == 2 {
						e.Pods = append(e.Pods, "u")
					}
					want := OtherCluster
					switch {
					case service == agrees || node == agrees || running == 2:
						want = Accepted
					case bundle == agrees && node != differs && running == 0:
						want = Accepted
					}
					d := Decide(e)
					count[d.Kind]++
					if d.Kind != want {
						t.Errorf("Service %v, Node %v, CA %v, running %d: %s, want %s", s, n, b, running, d.Kind, want)
					}
					if d.Kind == Accepted && (d.Identity.Stamp() != "stable/n1" || d.Ours != len(e.Sandboxes)) {
						t.Errorf("Service %v, Node %v, CA %v, running %d: driven as %s, %d ours", s, n, b, running, d.Identity, d.Ours)
					}
				}
			}
		}
	}
	if count[Accepted] == 0 || count[OtherCluster] == 0 {
		t.Error("one outcome never occurred")
	}
}

// TestServiceIsRecreated: a machine stays a node of its cluster, and keeps its stamp,
// when the Service default/kubernetes has another UID at the next start; also by the
// owner file of a first release, and without any.
func TestServiceIsRecreated(t *testing.T) {
	old := Witnesses{Service: "c1", Node: "node-1", CA: []string{"ca"}}
	now := Witnesses{Service: "c9", Node: "node-1", CA: []string{"ca"}}
	const first = `{"clusterUID": "c1", "nodeName": "n1", "instance": "i", "pid": 7, "startedAt": "2026-01-02T03:04:05Z", "version": "v"}`
	for name, c := range map[string]struct {
		write   string // in place of what the first claim has written
		pods    []types.UID
		refused Kind
	}{
		"":                        {},
		"file of a first release": {write: first, pods: []types.UID{"u"}},
		"its pods are elsewhere":  {write: first, refused: OtherCluster},
		"NULs":                    {write: "\x00\x00\x00", pods: []types.UID{"u"}},
		"garbage":                 {write: "hello", pods: []types.UID{"u"}},
		"NULs, unknown pods":      {write: "\x00\x00\x00", refused: OtherSandbox},
		"garbage, unknown pods":   {write: "hello", refused: FileUnclear},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := &listed{}
			c1 := configIn(dir, newHost(t), r)
			c1.Witnesses = old
			claim := take(t, c1)
			r.set(nil, ours)
			if err := claim.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			path := FilePath(c1.RootDir)
			if c.write != "" {
				if err := os.WriteFile(path, []byte(c.write), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			c2 := c1
			c2.ClusterUID, c2.Witnesses = now.Service, now
			c2.Pods = func(context.Context) ([]types.UID, error) { return c.pods, nil }
			if c.refused != 0 {
				_, err := Take(t.Context(), c2)
				wantRefused(t, err, c.refused)
				if data, err := os.ReadFile(path); err != nil || string(data) != c.write {
					t.Errorf("the owner file is %q, %v", data, err)
				}
				return
			}
			claim = take(t, c2)
			if claim.Stamp() != "c1/n1" || claim.Found().Ours != 1 || claim.Found().Foreign != 0 {
				t.Errorf("driven as %s, found %+v", claim.Stamp(), claim.Found())
			}
			data, err := os.ReadFile(path)
			file, bad := ParseRecord(data)
			if err != nil || bad != nil || file.Stamp() != "c1/n1" || file.Witnesses.Service != "c9" || file.Witnesses.Node != "node-1" {
				t.Errorf("the owner file is %s: %v, %v", data, err, bad)
			}
		})
	}
}

// TestAPIServerCannotBeAsked: not knowing is no refusal.
func TestAPIServerCannotBeAsked(t *testing.T) {
	theirs := &runtimeapi.PodSandbox{Id: "x", Metadata: &runtimeapi.PodSandboxMetadata{}, Labels: map[string]string{pod.LabelOwner: "c0/n1"}}
	c := configIn(t.TempDir(), newHost(t), &listed{sandboxes: []*runtimeapi.PodSandbox{theirs}})
	away := errors.New("away")
	c.Pods = func(context.Context) ([]types.UID, error) { return nil, away }
	if _, err := Take(t.Context(), c); !errors.Is(err, away) {
		t.Errorf("error %v", err)
	}
}
