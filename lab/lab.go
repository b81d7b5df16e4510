// Package lab runs a whole Kubernetes cluster on one machine as ordinary processes: a control
// plane, a registry, and hosts that share nothing but the kernel. It needs no network and no
// external registry.
package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/node"
)

// Config selects the lab and its programs.
type Config struct {
	Dir   string     // absolute
	Index int        // -1: that of the lab in Dir, or the lowest free one
	Hosts int        // 0: as many as the lab has, or one
	Bare  bool       // a new lab's hosts have an sshd and nothing else: the caller runs the pods there
	Audit bool       // a new lab's API server logs its requests
	Tools node.Tools // its First applies to a new lab
	Out   io.Writer  // progress, for people
}

// state is kept in Dir/lab.json. Its presence marks Dir as ours to remove.
type state struct {
	Index int  `json:"index"`
	Hosts int  `json:"hosts"`
	Bare  bool `json:"bare,omitempty"`
	Audit bool `json:"audit,omitempty"`
	// First is Tools.First.
	First string `json:"first,omitempty"`
	// Runtime is Tools.Runtime; empty for a lab that predates the choice.
	Runtime layout.Runtime `json:"runtime,omitempty"`
	// MadeDirs are mount points that the machine did not have before.
	MadeDirs []string `json:"madeDirs,omitempty"`
}

// runtime returns the runtime of the lab's hosts.
func (s state) runtime() layout.Runtime {
	if s.Runtime == "" {
		return layout.Containerd
	}
	return s.Runtime
}

const stateFile = "lab.json"

func readState(dir string) (state, error) {
	var s state
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%s: %w", filepath.Join(dir, stateFile), err)
	}
	return s, nil
}

func (s state) write(dir string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, stateFile), data)
}

// writeFile replaces a file atomically: a kill leaves the old content or the new.
func writeFile(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// find returns the lab in dir.
func find(dir string) (layout.Lab, state, error) {
	s, err := readState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return layout.Lab{}, s, fmt.Errorf("there is no lab in %s: bowline-lab up", dir)
	}
	return layout.Lab{Dir: dir, Index: s.Index}, s, err
}

// Find returns the lab in dir and how many hosts it has.
func Find(dir string) (layout.Lab, int, error) {
	lab, s, err := find(dir)
	return lab, s.Hosts, err
}

// FindHost returns a host of the lab by its name.
func FindHost(dir, name string) (layout.Host, error) {
	lab, s, err := find(dir)
	if err != nil {
		return layout.Host{}, err
	}
	var names []string
	for _, h := range lab.Hosts(s.Hosts) {
		if h.Name() == name {
			return h, nil
		}
		names = append(names, h.Name())
	}
	return layout.Host{}, fmt.Errorf("the lab in %s has no host %q, it has %v", dir, name, names)
}

// lock takes the machine-wide lock that serializes all creation and removal of labs. It is held
// until release is called or the process ends, and until every process that it started has ended or
// become a daemon: whatever a killed command began is over before the next command looks.
func lock(out io.Writer) (release func(), err error) {
	path := filepath.Join(layout.RunDir, "lock")
	for said := false; ; {
		if err := os.MkdirAll(layout.RunDir, 0o755); err != nil {
			return nil, err
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the removal of the last lab removed the directory
		}
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == unix.EWOULDBLOCK {
			if !said {
				fmt.Fprintln(out, "waiting for another bowline-lab to finish")
				said = true
			}
			err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		}
		if err != nil {
			file.Close()
			if err == unix.EINTR {
				continue
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// The previous holder may have removed the file that we now hold.
		if mine, err := file.Stat(); err == nil {
			if there, err := os.Stat(path); err == nil && os.SameFile(mine, there) {
				// Children inherit the descriptor, and with it the lock.
				if _, err := unix.FcntlInt(file.Fd(), unix.F_SETFD, 0); err != nil {
					file.Close()
					return nil, err
				}
				return func() { file.Close() }, nil
			}
		}
		file.Close()
	}
}

// claims returns the lab directories by index.
func claims() (map[int]string, error) {
	found := map[int]string{}
	for i := range layout.MaxIndex + 1 {
		data, err := os.ReadFile(claimFile(i))
		if err == nil {
			found[i] = string(data)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return found, nil
}

func claimFile(index int) string { return filepath.Join(layout.RunDir, fmt.Sprintf("index-%d", index)) }

// claim assigns an index to the lab in dir for this boot: the wanted one, or with want -1 the
// lowest free one.
func claim(dir string, want int) (int, error) {
	taken, err := claims()
	if err != nil {
		return 0, err
	}
	for i := range layout.MaxIndex + 1 {
		if taken[i] == dir && (want == -1 || want == i) {
			return i, nil
		}
	}
	for i := range layout.MaxIndex + 1 {
		if want != -1 && want != i {
			continue
		}
		if other, ok := taken[i]; ok {
			if want == i {
				return 0, fmt.Errorf("index %d belongs to the lab in %s: take it down with \"bowline-lab --dir %s down\", or choose another --index", i, other, other)
			}
			continue
		}
		return i, writeFile(claimFile(i), []byte(dir))
	}
	return 0, fmt.Errorf("all %d indexes for labs are taken: take one down with bowline-lab --dir DIR down", layout.MaxIndex+1)
}

// makeTargets creates the mount points of a host's binds that the machine lacks, and returns the
// created ones, parents before children.
func makeTargets(lab layout.Lab) ([]string, error) {
	var made []string
	for _, b := range lab.Hosts(1)[0].Binds() {
		var missing []string
		for dir := b.Target; dir != "/"; dir = filepath.Dir(dir) {
			if _, err := os.Lstat(dir); err == nil {
				break
			}
			missing = append(missing, dir)
		}
		slices.Reverse(missing)
		for _, dir := range missing {
			if err := os.Mkdir(dir, 0o755); err != nil {
				return made, err
			}
			made = append(made, dir)
		}
	}
	return made, nil
}
