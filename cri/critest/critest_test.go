package critest_test

import (
	"context"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/critest"
	"github.com/bowline-k8s/bowline/cri/critest/testmachine"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestMain(m *testing.M) {
	testmachine.Main()
	os.Exit(m.Run())
}

func connect(t *testing.T, socket string) *cri.Client {
	t.Helper()
	c, err := cri.Connect(t.Context(), cri.Config{Endpoint: "unix://" + socket, Dial: func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}})
	testutil.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestFake(t *testing.T) {
	const image = "registry.test/bowline-test:1"
	for name, config := range map[string]fake.Config{
		"with events": {}, "without": {NoEvents: true}, "with those of the CRI": {NoEvents: true, CRIEvents: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config.Registry = map[string]fake.RegistryImage{image: {}}
			r := fake.Run(t, config)
			var d net.Dialer
			target := critest.Target{Client: connect(t, r.Socket), Image: image, Missing: "registry.test/missing:1",
				Dir: t.TempDir(), Dial: d.DialContext, NoEvents: config.NoEvents && !config.CRIEvents, CRIEvents: config.CRIEvents}
			if !config.NoEvents {
				target.Planter = r.Planter()
			}
			critest.Run(t, target)
		})
	}
}

// TestContainerd runs the suite on containerds that it starts itself. BOWLINE_TEST_CONTAINERD lists
// directories as name=/dir, separated by commas. Each has a binary containerd (or
// bowline-containerd) and containerd-shim-runc-v2. It needs root, runc and CNI plugins.
func TestContainerd(t *testing.T) {
	env := os.Getenv("BOWLINE_TEST_CONTAINERD")
	if env == "" {
		t.Skip("BOWLINE_TEST_CONTAINERD is not set")
	}
	image := buildImage(t)
	for _, entry := range strings.Split(env, ",") {
		name, dir, ok := strings.Cut(entry, "=")
		if !ok {
			t.Fatalf("BOWLINE_TEST_CONTAINERD: %q is not name=/dir", entry)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			work, err := os.MkdirTemp("", "cri")
			testutil.Must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			m, err := testmachine.Start(ctx, testmachine.Config{Dir: work, Containerd: binary(t, dir), ShimDir: dir,
				CNIDir: cniDir(t), Image: image})
			testutil.Must(t, err)
			t.Cleanup(func() {
				if t.Failed() {
					log, _ := os.ReadFile(filepath.Join(work, "containerd.log"))
					t.Logf("containerd's log ends:\n%s", log[max(0, len(log)-8000):])
				}
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
			critest.Run(t, critest.Target{Client: connect(t, m.Socket), Image: m.Image, Missing: strings.Replace(m.Image, "test:", "missing:", 1),
				Dir: t.TempDir(), Dial: m.Dial, CgroupParent: m.CgroupParent(), Planter: plant(t, m.Socket)})
		})
	}
}

// TestEndpoints runs the suite on runtimes that are already running, in this network and mount
// namespace. BOWLINE_CRI_ENDPOINTS lists them as name=unix:///socket, separated by commas; the name
// crio selects the expectations for CRI-O. They pull the test image from a registry that the test
// serves on loopback.
func TestEndpoints(t *testing.T) {
	env := os.Getenv("BOWLINE_CRI_ENDPOINTS")
	if env == "" {
		t.Skip("BOWLINE_CRI_ENDPOINTS is not set")
	}
	registry, err := testmachine.Registry(buildImage(t), runtime.GOARCH)
	testutil.Must(t, err)
	server := httptest.NewServer(registry)
	defer server.Close()
	image := strings.TrimPrefix(server.URL, "http://") + "/" + testmachine.ImageName
	for _, entry := range strings.Split(env, ",") {
		name, socket, ok := strings.Cut(entry, "=unix://")
		if !ok {
			t.Fatalf("BOWLINE_CRI_ENDPOINTS: %q is not name=unix:///socket", entry)
		}
		t.Run(name, func(t *testing.T) {
			var d net.Dialer
			critest.Run(t, critest.Target{Client: connect(t, socket), Image: image, Missing: strings.Replace(image, "test:", "missing:", 1),
				Dir: t.TempDir(), Dial: d.DialContext, CRIEvents: name == "crio", CRIO: name == "crio"})
		})
	}
}

// plant returns a Planter that is connected to containerd's own services.
func plant(t *testing.T, socket string) critest.Planter {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	testutil.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return critest.ContainerdPlanter(conn)
}

func binary(t *testing.T, dir string) string {
	t.Helper()
	for _, name := range []string{"containerd", "bowline-containerd"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return filepath.Join(dir, name)
		}
	}
	t.Fatalf("no containerd in %s", dir)
	return ""
}

func cniDir(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin"} {
		if _, err := os.Stat(filepath.Join(dir, "host-local")); err == nil {
			return dir
		}
	}
	t.Fatal("no CNI plugins: apt-get install containernetworking-plugins")
	return ""
}

// buildImage builds the test program as a static binary.
func buildImage(t *testing.T) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, "./testmachine/testprogram")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the test program: %v\n%s", err, text)
	}
	data := testutil.ReadFile(t, out)
	return data
}
