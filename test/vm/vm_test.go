package vm

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/hosttest"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// dirEnv names the machine for the second process that hosttest starts.
const dirEnv = "BOWLINE_VM_SUITE_DIR"

func TestMain(m *testing.M) {
	if os.Getenv("BOWLINE_VM") != "1" {
		os.Exit(m.Run()) // boot skips each test
	}
	hosttest.Main(m, func() (host.Host, error) {
		machine, err := Attach(os.Getenv(dirEnv))
		if err != nil {
			return nil, err
		}
		return remote(machine)
	})
}

// boot returns a new machine, or the one that runs already.
func boot(t *testing.T, cgroups int) *Machine {
	t.Helper()
	if os.Getenv("BOWLINE_VM") != "1" {
		t.Skip("set BOWLINE_VM=1 to run the tests on a virtual machine (root)")
	}
	if dir := os.Getenv("BOWLINE_VM_DIR"); dir != "" {
		machine, err := Attach(dir)
		testutil.Must(t, err)
		out, err := machine.Run(t.Context(), "stat -fc %T /sys/fs/cgroup")
		testutil.Must(t, err)
		if (out == "cgroup2fs") != (cgroups == 2) {
			t.Skip("the machine that runs has control groups of the other version")
		}
		return machine
	}
	dir := filepath.Join(t.TempDir(), "vm")
	machine, err := Start(t.Context(), dir, cgroups)
	testutil.Must(t, err)
	t.Cleanup(func() {
		machine.Stop()
		if t.Failed() {
			console, _ := os.ReadFile(filepath.Join(dir, "console"))
			t.Logf("the machine's console ends:\n%s", console[max(0, len(console)-2000):])
		}
	})
	return machine
}

// linked is a host that closes its link with it.
type linked struct {
	host.Host
	link *link.Link
}

func (l linked) Close() error { return errors.Join(l.Host.Close(), l.link.Close()) }

// remote is the machine as Bowline sees it.
func remote(m *Machine) (host.Host, error) {
	target, err := endpoint.Resolve(m.Endpoint(), endpoint.Options{
		Credentials: endpoint.Credentials{KeyFile: m.Key}, HostKeys: []string{m.HostKey},
	})
	if err != nil {
		return nil, err
	}
	l, err := link.New(link.Config{Target: target, Wait: time.Minute})
	if err != nil {
		return nil, err
	}
	go func() { _ = l.Run(context.Background()) }()
	h, err := ssh.New(context.Background(), ssh.Config{Name: "vm", Transport: l})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return linked{h, l}, nil
}

// suite runs the part of the host suite, local and remote, that needs a machine of its own: cgroups
// and an NFS server. The rest does not depend on the machine.
func suite(t *testing.T, machine *Machine) {
	t.Run("remote", func(t *testing.T) {
		t.Setenv(dirEnv, machine.Dir)
		t.Setenv(hosttest.NFSEnv, exported)
		shares(t, machine)
		hosttest.Run(t, func(t *testing.T) host.Host {
			h, err := remote(machine)
			testutil.Must(t, err)
			return h
		}, "/var/tmp/hosttest", "Slices", "Cgroups", "Shared")
	})
	t.Run("local", func(t *testing.T) {
		binary := filepath.Join(t.TempDir(), "local.test")
		build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", binary, "github.com/bowline-k8s/bowline/host/local")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		data := testutil.ReadFile(t, binary)
		testutil.Must(t, machine.Write(t.Context(), "/var/tmp/local.test", "755", data))
		out, err := machine.Run(t.Context(), "cd /var/tmp && "+hosttest.NFSEnv+"="+exported+" ./local.test -test.v -test.run 'TestSuite$/^(Slices|Cgroups|Shared)$' 2>&1")
		testutil.Must(t, err)
		t.Log(out)
	})
}
