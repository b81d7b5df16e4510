// Package fakehosts makes fake remote hosts. Each is a bare host of a lab, that is, a set of mount, UTS,
// network and cgroup namespaces with a real sshd inside, whose container runtime is a fake that the
// test controls. A wire leads to each host's sshd.
package fakehosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// Set is a cluster and its machines.
type Set struct {
	Lab      *labtest.Lab
	Machines []*Machine
}

// Machine is one remote host.
type Machine struct {
	*labtest.Host
	Runtime *fake.Runtime
	Wire    *labtest.Wire
}

// Start brings up a cluster with n machines, with its files below dir; Close removes it. The clocks
// of the first machines are ahead of ours by clocks.
func Start(ctx context.Context, dir string, n int, clocks ...time.Duration) (*Set, error) {
	lab, err := labtest.Start(ctx, dir, n, "--bare")
	if err != nil {
		return nil, err
	}
	f := &Set{Lab: lab}
	for i := range lab.Status.Hosts {
		clock := time.Duration(0)
		if i < len(clocks) {
			clock = clocks[i]
		}
		m, err := newMachine(&lab.Status.Hosts[i], clock)
		if err == nil && clock != 0 {
			err = f.setDate(ctx, m, clock)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close(context.WithoutCancel(ctx)))
		}
		f.Machines = append(f.Machines, m)
	}
	return f, nil
}

func newMachine(h *labtest.Host, clock time.Duration) (*Machine, error) {
	m := &Machine{Host: h}
	// The fake chooses the socket's name; the machine expects it under the runtime's.
	socket := m.Path(h.RuntimeSocket)
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, err
	}
	var err error
	if m.Runtime, err = fake.Start(fake.Config{Dir: filepath.Dir(socket), Root: m.Path("/"), Clock: clock}); err != nil {
		return nil, fmt.Errorf("runtime of %s: %w", h.Name, err)
	}
	if err := os.Symlink(filepath.Base(m.Runtime.Socket), socket); err != nil {
		m.Runtime.Close()
		return nil, err
	}
	if m.Wire, err = labtest.NewWire(h.SSH.Address); err != nil {
		m.Runtime.Close()
		return nil, err
	}
	return m, nil
}

// setDate makes the date command on the machine show the machine's clock. Linux has no namespace
// for the wall clock, so a wrapper adds the difference.
func (f *Set) setDate(ctx context.Context, m *Machine, clock time.Duration) error {
	const date = "/usr/bin/date"
	data, err := os.ReadFile(date)
	if err != nil {
		return err
	}
	dir := filepath.Join(f.Lab.Dir, "date-"+m.Name)
	real, ours := filepath.Join(dir, "real"), filepath.Join(dir, "date")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(real, data, 0o755); err != nil {
		return err
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %s -d '%d seconds' \"$@\"\n", real, int(clock.Seconds()))
	if err := os.WriteFile(ours, []byte(script), 0o755); err != nil {
		return err
	}
	if out, err := f.Lab.Exec(ctx, m.Name, "mount", "--bind", ours, date).CombinedOutput(); err != nil {
		return fmt.Errorf("set the date of %s: %w: %s", m.Name, err, out)
	}
	return nil
}

// Path is the path of a machine's file as seen from outside.
func (m *Machine) Path(path string) string {
	return strings.TrimSuffix(fmt.Sprintf("/proc/%d/root%s", m.PID, path), "/")
}

// Close ends the machines and the cluster.
func (f *Set) Close(ctx context.Context) error {
	for _, m := range f.Machines {
		m.Wire.Close()
		m.Runtime.Close()
	}
	return f.Lab.Down(ctx)
}

// WriteConfig writes a BowlineConfiguration of all machines, each reached over its wire, and
// returns its path.
func (f *Set) WriteConfig() (string, error) {
	text := f.Lab.ConfigHead()
	for _, m := range f.Machines {
		lines, err := f.Lab.SSHLines(m.Name, m.Wire.Address())
		if err != nil {
			return "", err
		}
		text += f.Lab.ConfigHost(m.Name, lines...)
	}
	path := filepath.Join(f.Lab.Dir, "bowline-fakehosts.yaml")
	return path, os.WriteFile(path, []byte(text), 0o644)
}
