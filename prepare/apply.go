package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/schema"
	"github.com/bowline-k8s/bowline/hostcheck"
)

// Machine is the part of a host.Host that this package needs.
type Machine interface {
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
	WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error
	MkdirAll(ctx context.Context, path string, mode fs.FileMode, owner *host.Owner) error
	Stat(ctx context.Context, path string) (host.FileInfo, error)
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
	Remove(ctx context.Context, path string) error
	RemoveTree(ctx context.Context, path string, unmount ...string) error
	Run(ctx context.Context, cmd host.Command) (host.Result, error)
}

const (
	maxFile  = 1 << 20
	runTime  = 30 * time.Second // of one command
	restarts = 2 * time.Minute  // of containerd, on a loaded machine
)

var restartContainerd = []string{"systemctl", "restart", "containerd"}

// schemaVersion of the record.
const schemaVersion = 1

// Record is what Prepare changed on a machine.
type Record struct {
	SchemaVersion int       `json:"schemaVersion"`
	At            time.Time `json:"at"`
	Fixes         []Fix     `json:"fixes"`
	// Absent are directories of a node that did not exist before.
	Absent []string `json:"absent,omitempty"`
}

// RecordPath is the path of the record below a root directory.
func RecordPath(rootDir string) string { return path.Join(rootDir, "bowline", "prepared.json") }

// ReadRecord reads the record; nil if there is none.
func ReadRecord(ctx context.Context, m Machine, rootDir string) (*Record, error) {
	file := RecordPath(rootDir)
	data, err := m.ReadFile(ctx, file, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of host prepare: %w", err)
	}
	r := &Record{}
	if err := schema.Decode(data, schemaVersion, r); err != nil {
		return nil, fmt.Errorf("cannot parse %s, the record of host prepare: %w", file, err)
	}
	return r, nil
}

func (r *Record) write(ctx context.Context, m Machine, rootDir string) error {
	r.SchemaVersion = schemaVersion
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the record of host prepare: %w", err)
	}
	if err := m.WriteFile(ctx, RecordPath(rootDir), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the record of host prepare: %w", err)
	}
	return nil
}

// Inspect gathers what Decide needs in addition to what a check found.
func Inspect(ctx context.Context, m Machine, rootDir string, found hostcheck.Found) (Facts, error) {
	s := Facts{}
	record, err := ReadRecord(ctx, m, rootDir)
	if err != nil {
		return s, err
	}
	if record != nil {
		s.Subnet = record.chosen()
	}
	config, err := m.Run(ctx, host.Command{Args: []string{"readlink", "-f", hostcheck.ContainerdConfig}, Timeout: runTime})
	if err != nil {
		return s, fmt.Errorf("inspect the host: %w", err)
	}
	real := strings.TrimSpace(string(config.Stdout))
	if config.ExitCode != 0 || !path.IsAbs(real) {
		real = hostcheck.ContainerdConfig
	}
	files := map[string]*File{real: &s.Config, SysctlFile: &s.SysctlFile, ModuleFile: &s.ModuleFile}
	if found.ConfDir != "" {
		files[NetworkPath(found.ConfDir)] = &s.NetworkFile
	}
	for p, f := range files {
		if *f, err = inspect(ctx, m, p); err != nil {
			return s, fmt.Errorf("inspect the host: %w", err)
		}
	}
	routes, err := m.ReadFile(ctx, "/proc/net/route", maxFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("inspect the host: %w", err)
	}
	s.Routes = parseRoutes(string(routes))
	try, err := m.Run(ctx, host.Command{Args: []string{"sh", "-c", "modprobe -n -q br_netfilter 2>/dev/null"}, Timeout: runTime})
	if err != nil {
		return s, fmt.Errorf("inspect the host: %w", err)
	}
	s.Loadable = try.ExitCode == 0
	return s, nil
}

func inspect(ctx context.Context, m Machine, p string) (File, error) {
	f := File{Path: p}
	info, err := m.Stat(ctx, p)
	if err == nil {
		data, err := m.ReadFile(ctx, p, maxFile)
		text := string(data)
		f.Data, f.Mode = &text, info.Mode.Perm()
		return f, err
	}
	for dir := p; errors.Is(err, fs.ErrNotExist) && dir != "/"; {
		dir = path.Dir(dir)
		if _, err = m.Stat(ctx, dir); errors.Is(err, fs.ErrNotExist) {
			f.Dirs = append(f.Dirs, dir)
		}
	}
	slices.Reverse(f.Dirs)
	return f, err
}

// Apply applies the fixes in order. It records each before it begins, so that Undo knows about an
// interrupted one.
func Apply(ctx context.Context, m Machine, rootDir string, fixes []Fix) error {
	r, err := ReadRecord(ctx, m, rootDir)
	if err != nil {
		return err
	}
	if r == nil {
		r = &Record{}
		if r.Absent, err = absent(ctx, m, rootDir); err != nil {
			return err
		}
	}
	r.At = time.Now().UTC().Truncate(time.Second)
	for _, fix := range fixes {
		r.Fixes = append(r.Fixes, fix)
		if err := r.write(ctx, m, rootDir); err != nil {
			return err
		}
		if err := apply(ctx, m, fix); err != nil {
			return fmt.Errorf("%s: %w", fix.Name, err)
		}
	}
	return nil
}

// nodeDirs are directories that a node creates, the deepest first.
func nodeDirs(rootDir string) []string {
	return []string{path.Join(rootDir, "pods"), rootDir, "/var/log/pods", "/var/log/containers", "/var/lib/cni/networks", "/var/lib/cni/results", "/var/lib/cni"}
}

func absent(ctx context.Context, m Machine, rootDir string) ([]string, error) {
	var dirs []string
	for _, dir := range nodeDirs(rootDir) {
		_, err := m.Stat(ctx, dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			dirs = append(dirs, dir)
		case err != nil:
			return nil, fmt.Errorf("inspect the host: %w", err)
		}
	}
	return dirs, nil
}

func apply(ctx context.Context, m Machine, fix Fix) error {
	if fix.Module != "" {
		if err := run(ctx, m, runTime, "modprobe", fix.Module); err != nil {
			return err
		}
	}
	for _, e := range fix.Edits {
		for _, dir := range e.Dirs {
			if err := m.MkdirAll(ctx, dir, 0o755, nil); err != nil {
				return fmt.Errorf("make %s: %w", dir, err)
			}
		}
		if err := m.WriteFile(ctx, e.Path, []byte(e.New), e.Mode); err != nil {
			return fmt.Errorf("write %s: %w", e.Path, err)
		}
	}
	for _, s := range fix.Kernel {
		if err := set(ctx, m, s.path(), s.New); err != nil {
			return err
		}
	}
	if fix.Restart {
		return restart(ctx, m)
	}
	return nil
}

func restart(ctx context.Context, m Machine) error {
	if err := run(ctx, m, restarts, restartContainerd...); err != nil {
		return hint.Add(err, "restart containerd yourself: its configuration is written")
	}
	return nil
}

func set(ctx context.Context, m Machine, file, value string) error {
	return run(ctx, m, runTime, "sh", "-c", `printf '%s\n' "$2" >"$1"`, "sh", file, value)
}

// run runs a command that must exit with 0.
func run(ctx context.Context, m Machine, timeout time.Duration, args ...string) error {
	res, err := m.Run(ctx, host.Command{Args: args, Timeout: timeout})
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	if res.ExitCode != 0 {
		return fmt.Errorf("%s ended with %d: %s", strings.Join(args, " "), res.ExitCode, strings.TrimSpace(string(res.Stderr)))
	}
	return nil
}
