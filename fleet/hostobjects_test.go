package fleet

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/cluster/clustertest"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/nodelogs"
	"github.com/bowline-k8s/bowline/pool"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// TestJoined: hosts of the file and of Host objects are set together; the file's take precedence.
func TestJoined(t *testing.T) {
	at := func(name, endpoint string) *config.Host {
		return &config.Host{Name: name, NodeName: name, Endpoint: "ssh://root@" + endpoint + "/s"}
	}
	j, got := &Sources{}, map[string]*config.Host{}
	fromFile, fromObject := at("both", "a"), at("both", "b")
	j.FromFile(map[string]*config.Host{"both": fromFile})
	j.Begin(func(all map[string]*config.Host) { got = all })
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
	j.FromFile(nil)
	if got["both"] != fromObject || len(got) != 2 {
		t.Errorf("without the file it is %v", got)
	}
}

// TestReportWithoutNode: before the node is built, and if it could not be, the report has the
// pool's state.
func TestReportWithoutNode(t *testing.T) {
	d := newDrivers(1)
	if _, ok := d.report("box", pool.State{}); ok {
		t.Error("a host that was not begun is reported")
	}
	cfg := &config.Host{Name: "box", HostObject: "box", Endpoint: "ssh://root@box/s", SSH: config.SSH{KnownHosts: []string{filepath.Join(t.TempDir(), "none")}}}
	if err := d.Manage(t.Context(), cfg, nil); err == nil {
		t.Fatal("a machine without a pinned key was managed")
	}
	failed := errors.New("no route")
	if r, ok := d.report("box", pool.State{Phase: pool.Failed, Err: failed}); !ok || r.Config != cfg || r.Err != failed || r.NodeName != "" {
		t.Errorf("it is %+v", r)
	}
	d.begin(&config.Host{Name: "starting"})
	d.keep(nil)
	if _, ok := d.report("starting", pool.State{}); !ok {
		t.Error("a host whose driver has just started was forgotten")
	}
	if err := d.Manage(t.Context(), cfg, nil); err == nil {
		t.Fatal("a machine without a pinned key was managed")
	}
	fmt.Fprintln(d.Logs, `Began host="box"`)
	before := d.metricsOf("box")
	d.keep(map[string]pool.State{"box": {}})
	if _, ok := d.report("box", pool.State{}); !ok || d.metricsOf("box") != before || !strings.Contains(logsOf(t, d, "box"), "Began") {
		t.Error("a host that the pool has was forgotten")
	}
	d.keep(map[string]pool.State{"other": {}})
	if _, ok := d.report("box", pool.State{}); ok || d.metricsOf("box") == before || strings.Contains(logsOf(t, d, "box"), "Began") {
		t.Error("a host that the pool no longer has was not forgotten")
	}
}

func logsOf(t *testing.T, d *Drivers, host string) string {
	t.Helper()
	var b strings.Builder
	testutil.Must(t, d.Logs.Print(t.Context(), &b, host, "n1", nodelogs.Options{}))
	return b.String()
}

// TestReleaseOfAnother: deleting a Host does not empty the host of another cluster's node, or of
// another node.
func TestReleaseOfAnother(t *testing.T) {
	client := kubernetesfake.NewClientset(&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", UID: "ours"}})
	for file, want := range map[string]string{
		`{"clusterUID": "theirs", "nodeName": "box"}`: "not to cluster ours",
		`{"clusterUID": "ours", "nodeName": "other"}`: `not to node "box"`,
	} {
		rt := fake.Run(t, fake.Config{})
		root := t.TempDir()
		path := owner.FilePath(root)
		testutil.Must(t, errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(file), 0o600)))
		cfg := &config.Host{Name: "box", NodeName: "box", HostObject: "box", Endpoint: "unix://" + rt.Socket, RootDirectory: root}
		if err := releaseMachine(t.Context(), cfg, client, &rest.Config{}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", file, err, want)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s: the owner file: %v", file, err)
		}
	}
}

// TestReleaseWithoutServiceAndNode: the Service was recreated and the Node deleted. The CA of the
// Host objects' client still tells that the idle host is of this cluster.
func TestReleaseWithoutServiceAndNode(t *testing.T) {
	now := time.Now()
	ca, _ := clustertest.ClientCertificate(t, now, now.Add(time.Hour))
	block, _ := pem.Decode(ca)
	cert, err := x509.ParseCertificate(block.Bytes)
	testutil.Must(t, err)
	key := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	client := kubernetesfake.NewClientset(&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", UID: "recreated"}})
	rt, root := fake.Run(t, fake.Config{}), t.TempDir()
	path := owner.FilePath(root)
	testutil.Must(t, errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, fmt.Appendf(nil,
		`{"schemaVersion": 1, "clusterUID": "first", "nodeName": "box", "witnesses": {"serviceUID": "first", "nodeUID": "deleted", "ca": [%q]}}`, hex.EncodeToString(key[:])), 0o600)))
	// With its lock held by another, the host is recognized and then left as it is.
	here, err := local.New(local.Config{Name: "here"})
	testutil.Must(t, err)
	lock, err := here.Lock(t.Context(), path+".lock", nil)
	testutil.Must(t, err)
	defer lock.Close()
	cfg := &config.Host{Name: "box", NodeName: "box", HostObject: "box", Endpoint: "unix://" + rt.Socket, RootDirectory: root}
	access := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
	if err := releaseMachine(t.Context(), cfg, client, access, nil); err == nil || !strings.Contains(err.Error(), "another process manages this host") {
		t.Errorf("%v", err)
	}
}

// TestDriversEndLast: drivers run until left is closed, however long after the stop that is. A
// source that fails ends everything, and its error is returned.
func TestDriversEndLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var managed atomic.Bool
		newPool := func() *pool.Pool {
			p := pool.New(func(ctx context.Context, _ *config.Host) error {
				managed.Store(true)
				<-ctx.Done()
				managed.Store(false)
				return nil
			}, pool.Options{})
			p.Set(map[string]*config.Host{"box": {Name: "box"}})
			return p
		}
		ctx, cancel := context.WithCancel(t.Context())
		left, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- Run(ctx, newPool(), left, func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(5 * time.Second) // of synctest time
				close(left)
				return nil
			})
		}()
		time.Sleep(time.Second)
		cancel()
		time.Sleep(4 * time.Second)
		if !managed.Load() {
			t.Error("the driver ended before the hosts were given away")
		}
		time.Sleep(2 * time.Second)
		if err := <-done; err != nil || managed.Load() {
			t.Errorf("it ended with %v, managed is %v", err, managed.Load())
		}

		left = make(chan struct{})
		close(left)
		taken := errors.New("the name belongs to another")
		if err := Run(t.Context(), newPool(), left, func(context.Context) error { return taken }); !errors.Is(err, taken) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// TestReplicaName: the name is the configuration's, else the pod's, else the hostname.
func TestReplicaName(t *testing.T) {
	t.Setenv("POD_NAME", "")
	machine, err := os.Hostname()
	if err != nil {
		t.Skip(err)
	}
	for _, want := range []string{strings.ToLower(machine), "pod", "own"} {
		cfg := &config.Replicas{}
		switch want {
		case "pod":
			t.Setenv("POD_NAME", "pod")
		case "own":
			cfg.Name = "own"
		}
		if got, err := replicaName(cfg); got != want || err != nil {
			t.Errorf("it is %q, %v, and not %q", got, err, want)
		}
	}
}
