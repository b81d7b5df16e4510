package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// memory is a machine of files and directories that records the commands it runs.
type memory struct {
	files map[string]string // names of directories end with "/"
	ran   []string
	fails string // the command, or the file to write, that fails
}

func newMemory(files ...string) *memory {
	m := &memory{files: map[string]string{"/": "", "/etc/": "", "/proc/sys/net/ipv4/ip_forward": "0"}}
	for _, f := range files {
		m.files[f] = "old\n"
	}
	return m
}

func missing(p string) error { return &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist} }

func (m *memory) ReadFile(_ context.Context, p string, _ int64) ([]byte, error) {
	data, has := m.files[p]
	if !has {
		return nil, missing(p)
	}
	return []byte(data), nil
}

func (m *memory) WriteFile(_ context.Context, p string, data []byte, _ fs.FileMode) error {
	if p == m.fails {
		return errors.New("the disk is full")
	}
	m.files[p] = string(data)
	return nil
}

func (m *memory) MkdirAll(_ context.Context, p string, _ fs.FileMode, _ *host.Owner) error {
	m.files[p+"/"] = ""
	return nil
}

func (m *memory) Stat(_ context.Context, p string) (host.FileInfo, error) {
	if _, has := m.files[p]; has {
		return host.FileInfo{Name: path.Base(p), Mode: 0o640}, nil
	}
	if _, has := m.files[strings.TrimSuffix(p, "/")+"/"]; has {
		return host.FileInfo{Name: path.Base(p), Mode: fs.ModeDir | 0o755}, nil
	}
	return host.FileInfo{}, missing(p)
}

func (m *memory) List(_ context.Context, dir string) (infos []host.FileInfo, err error) {
	for _, f := range slices.Sorted(maps.Keys(m.files)) {
		if f != dir+"/" && path.Dir(strings.TrimSuffix(f, "/")) == dir {
			infos = append(infos, host.FileInfo{Name: path.Base(f)})
		}
	}
	return infos, nil
}

func (m *memory) Remove(_ context.Context, p string) error {
	if _, has := m.files[p]; has {
		delete(m.files, p)
		return nil
	}
	for f := range m.files {
		if f != p+"/" && strings.HasPrefix(f, p+"/") {
			return fmt.Errorf("%s: directory not empty", p)
		}
	}
	if _, has := m.files[p+"/"]; !has {
		return missing(p)
	}
	delete(m.files, p+"/")
	return nil
}

func (m *memory) RemoveTree(_ context.Context, p string, _ ...string) error {
	maps.DeleteFunc(m.files, func(f, _ string) bool { return f == p || strings.HasPrefix(f, p+"/") })
	return nil
}

func (m *memory) Run(_ context.Context, c host.Command) (host.Result, error) {
	line := strings.Join(c.Args, " ")
	if c.Timeout <= 0 || m.fails != "" && strings.HasPrefix(line, m.fails) {
		return host.Result{ExitCode: 1, Stderr: []byte("no")}, nil
	}
	switch {
	case c.Args[0] == "sh": // set
		m.files[c.Args[4]] = c.Args[5]
	case line == "ip link delete "+bridgeName:
		_ = m.RemoveTree(context.Background(), "/sys/class/net/"+bridgeName)
	}
	m.ran = append(m.ran, line)
	return host.Result{}, nil
}

// all has one of each fix.
func all() []Fix {
	return []Fix{
		{Name: FixKernel, Kernel: []Setting{{forwarding, "0", "1"}}, Edits: []Edit{{Path: SysctlFile, New: "x=1\n", Mode: 0o644, Dirs: []string{"/etc/sysctl.d"}}}},
		{Name: FixCRI, Edits: []Edit{{Path: "/etc/config.toml", Old: text("old\n"), New: "new\n", Mode: 0o640}}, Restart: true},
		{Name: FixNetwork, Edits: []Edit{{Path: "/etc/cni/net.d/b", New: "n\n", Mode: 0o644, Dirs: []string{"/etc/cni", "/etc/cni/net.d"}}}, Bridge: bridgeName, Leavings: addressDir},
	}
}

const root = "/var/lib/kubelet"

func TestApplyAndUndo(t *testing.T) {
	ctx := t.Context()
	for name, c := range map[string]struct {
		between func(m *memory)
		fails   string // of Apply
		kept    []string
	}{
		"as it was": {},
		"pods have been there": {between: func(m *memory) {
			m.files["/sys/class/net/bowline0/"], m.files[addressDir+"/lock"] = "", ""
		}},
		"cut off in the middle":  {fails: "systemctl"},
		"cut off at the network": {fails: "/etc/cni/net.d/b"},
		"someone has changed a file": {between: func(m *memory) { m.files["/etc/config.toml"] = "mine\n" },
			kept: []string{"/etc/config.toml: it was changed since"}},
		"someone has removed a file": {between: func(m *memory) { delete(m.files, "/etc/config.toml") },
			kept: []string{"/etc/config.toml: it was changed since"}},
		"someone has brought it back": {between: func(m *memory) { m.files["/etc/config.toml"] = "old\n" }},
		"pods of others on the network": {between: func(m *memory) { m.files["/sys/class/net/bowline0/brif/veth1"] = "" },
			kept: []string{FixNetwork + ": pods of another program", FixKernel + ": pods of another program"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory("/etc/config.toml")
			before := maps.Clone(m.files)
			m.fails = c.fails
			err := Apply(ctx, m, root, all())
			if (err != nil) != (c.fails != "") {
				t.Fatalf("applied with %v", err)
			}
			m.fails = ""
			if c.between != nil {
				c.between(m)
			}
			r, err := ReadRecord(ctx, m, root)
			if err != nil || r == nil {
				t.Fatalf("the record: %v, %v", r, err)
			}
			var kept []string
			for _, restarts := range []bool{false, true} {
				kept = append(kept, Undo(ctx, m, r, restarts).Kept...)
			}
			if len(kept) != len(c.kept) {
				t.Fatalf("kept %q, want %q", kept, c.kept)
			}
			for i := range kept {
				if !strings.HasPrefix(kept[i], c.kept[i]) {
					t.Errorf("kept %q, want %q", kept[i], c.kept[i])
				}
			}
			if len(kept) > 0 {
				return
			}
			testutil.Must(t, Forget(ctx, m, r, root))
			if diff := cmp.Diff(before, m.files); diff != "" {
				t.Errorf("the machine is not as it was:\n%s", diff)
			}
		})
	}
}

// TestRestartsOnce: containerd is restarted only if something was restored.
func TestRestartsOnce(t *testing.T) {
	ctx := t.Context()
	m := newMemory("/etc/config.toml")
	testutil.Must(t, Apply(ctx, m, root, all()))
	r, err := ReadRecord(ctx, m, root)
	testutil.Must(t, err)
	for range 2 {
		if u := Undo(ctx, m, r, true); len(u.Kept) > 0 {
			t.Errorf("kept %q", u.Kept)
		}
	}
	n := 0
	for _, line := range m.ran {
		if line == "systemctl restart containerd" {
			n++
		}
	}
	if n != 2 { // by Apply, and by the first Undo
		t.Errorf("restarted %d times: %q", n, m.ran)
	}
}

// TestRecordedFirst: a fix is recorded before it is applied.
func TestRecordedFirst(t *testing.T) {
	m := newMemory("/etc/config.toml")
	m.fails = SysctlFile
	if err := Apply(t.Context(), m, root, all()); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Fatalf("applied with %v", err)
	}
	var r Record
	if err := json.Unmarshal([]byte(m.files[RecordPath(root)]), &r); err != nil || len(r.Fixes) != 1 || r.Fixes[0].Name != FixKernel {
		t.Errorf("the record is %s, %v", m.files[RecordPath(root)], err)
	}
	if !slices.Contains(r.Absent, root) {
		t.Errorf("absent were %q", r.Absent)
	}
}
