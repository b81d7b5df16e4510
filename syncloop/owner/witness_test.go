package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// TestEveryWitness enumerates, for the Service, the Node and the CA: it agrees, it differs, it is
// not recorded, it is not seen; with and without a sandbox of the node, and with and without its
// pod in the API server.
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
					// Without a Service the record is like the first release's, which used the
					// Service's UID as the cluster's.
					file := record(Identity{"stable", "n1"})
					file.Witnesses = Witnesses{Service: s.recorded, Node: n.recorded, CA: ca(b.recorded)}
					e := Evidence{Self: Identity{"now", "n1"}, FilePath: "/f", File: file,
						Witnesses: Witnesses{Service: s.seen, Node: n.seen, CA: ca(b.seen)}}
					if running > 0 {
						e.Sandboxes = []Sandbox{{ID: "1", Pod: "a/b", PodUID: "u", Stamp: "stable/n1", Kubelet: true, Ready: true}}
						e.Pods = []KnownPod{{UID: "another"}}
					}
					if running == 2 {
						e.Pods = append(e.Pods, KnownPod{UID: "u"})
					}
					want := OtherCluster
					switch {
					case service == agrees || node == agrees || running == 2:
						want = Accepted
					case bundle == agrees && node != differs && running == 0:
						want = Accepted
					case n.recorded == "" && n.seen != "" && b.recorded == "" && running == 0: // of a first release
						want = Accepted
					}
					d := Decide(e)
					count[d.Kind]++
					if d.Kind != want {
						t.Errorf("Service %v, Node %v, CA %v, running %d: %s, want %s", s, n, b, running, d.Kind, want)
					}
					if d.Kind == Accepted && (d.Identity.Stamp() != "stable/n1" || d.Ours != len(e.Sandboxes)) {
						t.Errorf("Service %v, Node %v, CA %v, running %d: managed as %s, %d ours", s, n, b, running, d.Identity, d.Ours)
					}
				}
			}
		}
	}
	if count[Accepted] == 0 || count[OtherCluster] == 0 {
		t.Error("one outcome never occurred")
	}
}

// TestFirstReleaseWithoutPods: an owner file of the first release has nothing to compare but the
// Service. An idle host with one is accepted only by a cluster that has its Node, and only for the
// node in the file.
func TestFirstReleaseWithoutPods(t *testing.T) {
	registered := Witnesses{Service: "c9", Node: "node-1", CA: []string{"ca"}}
	for name, c := range map[string]struct {
		self Identity
		seen Witnesses
		runs string // stamp of a sandbox
		want Kind
	}{
		"the Service is recreated": {Identity{"c9", "n1"}, registered, "", Accepted},
		"the Service is missing":   {Identity{"", "n1"}, Witnesses{Node: "node-1"}, "", Accepted},
		"no such Node":             {Identity{"c9", "n1"}, Witnesses{Service: "c9", CA: []string{"ca"}}, "", OtherCluster},
		"another node":             {Identity{"c9", "n2"}, registered, "", OtherCluster},
		"another node, pods":       {Identity{"c9", "n2"}, registered, "c1/n1", OtherCluster},
		"unknown pods":             {Identity{"c9", "n1"}, registered, "c1/n1", OtherCluster},
		"pods of another owner":    {Identity{"c9", "n1"}, registered, "c2/n1", OtherSandbox},
	} {
		e := Evidence{Self: c.self, Witnesses: c.seen, FilePath: "/f", File: record(Identity{"c1", "n1"})}
		if c.runs != "" {
			e.Sandboxes = []Sandbox{{ID: "1", Pod: "a/b", PodUID: "u", Stamp: c.runs, Ready: true}}
		}
		d := Decide(e)
		if d.Kind != c.want || c.want == Accepted && d.Identity.Stamp() != "c1/n1" {
			t.Errorf("%s: %s as %s, want %s", name, d.Kind, d.Identity, c.want)
		}
	}
}

// TestServiceIsRecreated: a host stays a node of its cluster and keeps its stamp when the Service
// default/kubernetes has another UID at the next start; also with an owner file of the first
// release, and without any.
func TestServiceIsRecreated(t *testing.T) {
	old := Witnesses{Service: "c1", Node: "node-1", CA: []string{"ca"}}
	now := Witnesses{Service: "c9", Node: "node-1", CA: []string{"ca"}}
	const first = `{"clusterUID": "c1", "nodeName": "n1", "instance": "i", "pid": 7, "startedAt": "2026-01-02T03:04:05Z", "version": "v"}`
	for name, c := range map[string]struct {
		write   string // replaces the owner file of the first claim
		pods    []KnownPod
		idle    bool // no pod runs at the second claim
		refused Kind
	}{
		"":                                 {},
		"file of a first release":          {write: first, pods: []KnownPod{{UID: "u"}}},
		"file of a first release, no pods": {write: first, idle: true},
		"its pods are elsewhere":           {write: first, refused: OtherCluster},
		"NULs":                             {write: "\x00\x00\x00", pods: []KnownPod{{UID: "u"}}},
		"garbage":                          {write: "hello", pods: []KnownPod{{UID: "u"}}},
		"NULs, unknown pods":               {write: "\x00\x00\x00", refused: OtherSandbox},
		"garbage, unknown pods":            {write: "hello", refused: FileUnclear},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := &listed{}
			c1 := configIn(dir, newHost(t), r)
			c1.Witnesses = old
			claim := take(t, c1)
			r.set(nil, ours)
			testutil.Must(t, claim.Release(t.Context()))
			path := FilePath(c1.RootDir)
			if c.write != "" {
				testutil.Must(t, os.WriteFile(path, []byte(c.write), 0o644))
			}
			if c.idle {
				r.set(nil)
			}
			c2 := c1
			c2.ClusterUID, c2.Witnesses = now.Service, now
			c2.Pods = func(context.Context) ([]KnownPod, error) { return c.pods, nil }
			if c.refused != 0 {
				_, err := Take(t.Context(), c2)
				wantRefused(t, err, c.refused)
				if data, err := os.ReadFile(path); err != nil || string(data) != c.write {
					t.Errorf("the owner file is %q, %v", data, err)
				}
				return
			}
			claim = take(t, c2)
			run := 1
			if c.idle {
				run = 0
			}
			if claim.Stamp() != "c1/n1" || claim.Found().Ours != run || claim.Found().Foreign != 0 {
				t.Errorf("managed as %s, found %+v", claim.Stamp(), claim.Found())
			}
			data, err := os.ReadFile(path)
			file, bad := ParseRecord(data)
			if err != nil || bad != nil || file.Stamp() != "c1/n1" || file.Witnesses.Service != "c9" || file.Witnesses.Node != "node-1" {
				t.Errorf("the owner file is %s: %v, %v", data, err, bad)
			}
		})
	}
}

// TestAPIServerCannotBeAsked: if the API server does not answer, the claim fails but is not
// refused.
func TestAPIServerCannotBeAsked(t *testing.T) {
	theirs := &runtimeapi.PodSandbox{Id: "x", Metadata: &runtimeapi.PodSandboxMetadata{}, Labels: map[string]string{pod.LabelOwner: "c0/n1"}}
	c := configIn(t.TempDir(), newHost(t), &listed{sandboxes: []*runtimeapi.PodSandbox{theirs}})
	away := errors.New("away")
	c.Pods = func(context.Context) ([]KnownPod, error) { return nil, away }
	if _, err := Take(t.Context(), c); !errors.Is(err, away) {
		t.Errorf("error %v", err)
	}
}

// TestMirrorPodsAreProof: a host that runs only static pods is recognised by their mirror pods. The
// static pods' UID alone, which two clusters may share, is proof only if the CA agrees too.
func TestMirrorPodsAreProof(t *testing.T) {
	const seen = "2026-01-02T03:04:05.678901234Z"
	mirror := func(of, seen string) v1.Pod {
		return v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "m", Annotations: map[string]string{
			pod.AnnotationMirror: of, pod.AnnotationConfigHash: of, pod.AnnotationSeen: seen}}}
	}
	other := Witnesses{Service: "c9", Node: "node-9", CA: []string{"ca-9"}}
	for name, c := range map[string]struct {
		file     Witnesses
		now      Witnesses
		pod      v1.Pod
		accepted bool
	}{
		"its mirror pod":                          {now: other, pod: mirror("static", seen), accepted: true},
		"the same manifest in another cluster":    {now: other, pod: mirror("static", "2026-01-02T03:04:05.678901235Z")},
		"no time":                                 {now: other, pod: mirror("static", "")},
		"another manifest":                        {now: other, pod: mirror("changed", seen)},
		"a pod with the hash that is no mirror":   {now: other, pod: v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "m", Annotations: map[string]string{pod.AnnotationConfigHash: "static", pod.AnnotationSeen: seen}}}},
		"a later mirror pod, and the CA agrees":   {file: Witnesses{CA: []string{"ca-9"}}, now: other, pod: mirror("static", ""), accepted: true},
		"the Node is another, the CA agrees":      {file: Witnesses{Node: "node-1", CA: []string{"ca-9"}}, now: other, pod: mirror("static", "")},
		"the Service is missing, the Node is it":  {file: Witnesses{Node: "node-9"}, now: Witnesses{Node: "node-9"}, accepted: true},
		"the Service is missing, it is the pod's": {now: Witnesses{Node: "node-9"}, pod: mirror("static", seen), accepted: true},
		"the Service is missing, nothing agrees":  {file: Witnesses{Node: "node-1"}, now: Witnesses{Node: "node-9"}},
	} {
		for _, withFile := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, file %t", name, withFile), func(t *testing.T) {
				s := sandbox("static", map[string]string{pod.LabelPodUID: "static", pod.LabelOwner: "c1/n1"})
				s.Annotations = map[string]string{pod.AnnotationSeen: seen}
				r := &listed{sandboxes: []*runtimeapi.PodSandbox{s}}
				cfg := configIn(t.TempDir(), newHost(t), r)
				cfg.ClusterUID, cfg.Witnesses = c.now.Service, c.now
				cfg.Pods = func(context.Context) ([]KnownPod, error) { return KnownPods([]v1.Pod{c.pod}), nil }
				want := c.accepted
				if withFile {
					file := Record{Identity: Identity{"c1", "n1"}, Witnesses: c.file}
					testutil.Must(t, cfg.Host.WriteFile(t.Context(), FilePath(cfg.RootDir), file.bytes(), 0o644))
					if got := file.IsOf(c.now.Service, c.now, Sandboxes(r.sandboxes), KnownPods([]v1.Pod{c.pod})); got != want {
						t.Errorf("a machine that is managed already is of the cluster: %t", got)
					}
				} else {
					want = c.accepted && len(c.file.CA) == 0 && c.file.Node == "" // the cases that do not need the file's CA or Node
				}
				claim, err := Take(t.Context(), cfg)
				switch {
				case want && (err != nil || claim.Stamp() != "c1/n1" || claim.Found().Ours != 1):
					t.Errorf("%+v, %v", claim, err)
				case !want && err == nil:
					t.Errorf("accepted as %s", claim.Stamp())
				}
				if claim != nil {
					_ = claim.Release(t.Context())
				}
			})
		}
	}
}

// TestNoServiceAndNoNode: a host that is not a node yet waits for the Service.
func TestNoServiceAndNoNode(t *testing.T) {
	cfg := configIn(t.TempDir(), newHost(t), &listed{})
	cfg.ClusterUID, cfg.Witnesses = "", Witnesses{Node: "node-1"}
	var refused *RefusedError
	if _, err := Take(t.Context(), cfg); err == nil || errors.As(err, &refused) || !strings.Contains(err.Error(), "default/kubernetes is missing") {
		t.Errorf("%v", err)
	}
}

// writes counts the writes to a host, and fails them if failing is set.
type writes struct {
	Host
	n       int
	failing error
}

func (w *writes) WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	if w.n++; w.failing != nil {
		return w.failing
	}
	return w.Host.WriteFile(ctx, path, data, mode)
}

// TestWitnessesAreLearned: witnesses that are found after the claim are written to the owner file,
// once, and only while the host is held.
func TestWitnessesAreLearned(t *testing.T) {
	h := &writes{Host: newHost(t)}
	cfg := configIn(t.TempDir(), h, &listed{sandboxes: []*runtimeapi.PodSandbox{ours}})
	cfg.Witnesses = Witnesses{Service: self.ClusterUID, CA: []string{"ca"}}
	claim := take(t, cfg)
	before := h.n
	read := func() Record {
		t.Helper()
		data, err := h.ReadFile(t.Context(), FilePath(cfg.RootDir), maxRecord)
		file, bad := ParseRecord(data)
		if err != nil || bad != nil {
			t.Fatal(err, bad)
		}
		return *file
	}
	want := read()
	for range 2 {
		testutil.Must(t, claim.Learn(t.Context(), Witnesses{Node: "node-1"}))
	}
	want.Witnesses.Node = "node-1"
	if got := read(); !cmp.Equal(got, want) || h.n != before+1 {
		t.Errorf("the file after %d writes: %s", h.n-before, cmp.Diff(want, got))
	}
	h.failing = errors.New("no space left")
	if err := claim.Learn(t.Context(), Witnesses{Node: "node-2"}); !errors.Is(err, h.failing) {
		t.Fatal(err)
	}
	h.failing = nil
	if err := claim.Learn(t.Context(), Witnesses{Node: "node-2"}); err != nil || read().Witnesses.Node != "node-2" {
		t.Errorf("what could not be written is believed: %v, %+v", err, read())
	}
	testutil.Must(t, claim.Release(t.Context()))
	if err := claim.Learn(t.Context(), Witnesses{Node: "node-3"}); !errors.Is(err, ErrNotHeld) || read().Witnesses.Node != "node-2" {
		t.Errorf("written after the release: %v, %+v", err, read())
	}
}
