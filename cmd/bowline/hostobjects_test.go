package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/pool"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// TestJoined: hosts of the file and hosts of objects are set together; the file's stand.
func TestJoined(t *testing.T) {
	at := func(name, endpoint string) *config.Host {
		return &config.Host{Name: name, NodeName: name, Endpoint: "ssh://root@" + endpoint + "/s"}
	}
	j, got := &joined{}, map[string]*config.Host{}
	fromFile, fromObject := at("both", "a"), at("both", "b")
	j.fromFile(map[string]*config.Host{"both": fromFile})
	j.begin(func(all map[string]*config.Host) { got = all })
	if got["both"] != fromFile {
		t.Fatalf("at the beginning it is %v", got)
	}
	j.Set(map[string]*config.Host{"both": fromObject, "own": at("own", "c")})
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{"both", "own"}) || got["both"] != fromFile {
		t.Errorf("with objects it is %v", got)
	}
	for h, want := range map[*config.Host]bool{
		at("both", "x"): true, at("other", "a"): true, at("own", "c"): false,
		{Name: "z", NodeName: "both", Endpoint: "ssh://root@z/s"}: true,
	} {
		if j.taken(h) != want {
			t.Errorf("%+v: taken is %v", h, !want)
		}
	}
	j.fromFile(nil)
	if got["both"] != fromObject || len(got) != 2 {
		t.Errorf("without the file it is %v", got)
	}
}

// TestReportWithoutNode: before a node is there, and when it could not be, the pool's
// own words are what is known.
func TestReportWithoutNode(t *testing.T) {
	d := &drivers{byName: map[string]*driver{}}
	if _, ok := d.report("box", pool.State{}); ok {
		t.Error("a host that was not begun is reported")
	}
	cfg := &config.Host{Name: "box", HostObject: "box", Endpoint: "ssh://root@box/s", SSH: config.SSH{KnownHosts: []string{filepath.Join(t.TempDir(), "none")}}}
	if err := d.drive(t.Context(), cfg, nil); err == nil {
		t.Fatal("a machine without a pinned key was driven")
	}
	failed := errors.New("no route")
	if r, ok := d.report("box", pool.State{Phase: pool.Failed, Err: failed}); !ok || r.Config != cfg || r.Err != failed || r.NodeName != "" {
		t.Errorf("it is %+v", r)
	}
	d.keep(map[string]pool.State{"other": {}})
	if _, ok := d.report("box", pool.State{}); ok {
		t.Error("a host that the pool has not is reported")
	}
}

// TestReleaseOfAnother: a Host that is deleted empties no machine of another cluster's
// node, nor of another node.
func TestReleaseOfAnother(t *testing.T) {
	client := kubernetesfake.NewClientset(&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", UID: "ours"}})
	for file, want := range map[string]string{
		`{"clusterUID": "theirs", "nodeName": "box"}`: "not of the cluster ours",
		`{"clusterUID": "ours", "nodeName": "other"}`: `not "box"`,
	} {
		rt := fake.Run(t, fake.Config{})
		root := t.TempDir()
		path := owner.FilePath(root)
		if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(file), 0o600)); err != nil {
			t.Fatal(err)
		}
		cfg := &config.Host{Name: "box", NodeName: "box", HostObject: "box", Endpoint: "unix://" + rt.Socket, RootDirectory: root}
		if err := releaseMachine(t.Context(), cfg, client); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", file, err, want)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s: the owner file: %v", file, err)
		}
	}
}
