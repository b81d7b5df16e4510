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
	"github.com/bowline-k8s/bowline/test/labtest"
)

// dirEnv names the machine for the second process that hosttest starts.
const dirEnv = "BOWLINE_VM_SUITE_DIR"

func TestMain(m *testing.M) {
	if os.Getenv("BOWLINE_VM") != "1" {
		os.Exit(labtest.SkipAll(m, "set BOWLINE_VM=1 to run these tests on a virtual machine (root)"))
	}
	hosttest.Main(m, func() (host.Host, error) {
		machine, err := Attach(os.Getenv(dirEnv))
		if err != nil {
			return nil, err
		}
		return far(machine)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// boot is a machine of the test's own, or the one that runs already.
func boot(t *testing.T, cgroups int) *Machine {
	t.Helper()
	if dir := os.Getenv("BOWLINE_VM_DIR"); dir != "" {
		machine, err := Attach(dir)
		must(t, err)
		out, err := machine.Run(t.Context(), "stat -fc %T /sys/fs/cgroup")
		must(t, err)
		if (out == "cgroup2fs") != (cgroups == 2) {
			t.Skip("the machine that runs has control groups of the other version")
		}
		return machine
	}
	dir := filepath.Join(t.TempDir(), "vm")
	machine, err := Start(t.Context(), dir, cgroups)
	must(t, err)
	t.Cleanup(func() {
		machine.Stop()
		if t.Failed() {
			console, _ := os.ReadFile(filepath.Join(dir, "console"))
			t.Logf("the machine's console ends:\n%s", console[max(0, len(console)-2000):])
		}
	})
	return machine
}

// linked is a host that takes its link with it.
type linked struct {
	host.Host
	link *link.Link
}

func (l linked) Close() error { return errors.Join(l.Host.Close(), l.link.Close()) }

// far is the machine as Bowline sees it.
func far(m *Machine) (host.Host, error) {
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

// suite is the suite of machines, near and far, as far as it is of what a machine has to
// have of its own: control groups, and a server of files. The rest of it knows no
// difference between machines.
func suite(t *testing.T, machine *Machine) {
	t.Run("far", func(t *testing.T) {
		t.Setenv(dirEnv, machine.Dir)
		t.Setenv(hosttest.NFSEnv, exported)
		shares(t, machine)
		hosttest.Run(t, func(t *testing.T) host.Host {
			h, err := far(machine)
			must(t, err)
			return h
		}, "/var/tmp/hosttest", "Slices", "Cgroups", "Shared")
	})
	t.Run("near", func(t *testing.T) {
		binary := filepath.Join(t.TempDir(), "local.test")
		build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", binary, "github.com/bowline-k8s/bowline/host/local")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		data, err := os.ReadFile(binary)
		must(t, err)
		must(t, machine.Write(t.Context(), "/var/tmp/local.test", "755", data))
		out, err := machine.Run(t.Context(), "cd /var/tmp && "+hosttest.NFSEnv+"="+exported+" ./local.test -test.v -test.run 'TestSuite$/^(Slices|Cgroups|Shared)$' 2>&1")
		must(t, err)
		t.Log(out)
	})
}
