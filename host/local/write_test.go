package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// powerless is a file system that tracks what was synced, and the order of operations. A rename
// may reach the disk before the content, as on real file systems.
type powerless struct {
	files, onDisk map[string]*content // by path; a nil content is a directory
	did           []string
	cutAt         int // the operation at which the power is cut; 0: never
}

type content struct{ now, synced string }

var errPower = errors.New("the power is gone")

func (p *powerless) do(format string, args ...any) error {
	if p.did = append(p.did, fmt.Sprintf(format, args...)); p.cutAt > 0 && len(p.did) >= p.cutAt {
		return errPower
	}
	return nil
}

type dirInfo struct{ fs.FileInfo }

func (dirInfo) IsDir() bool { return true }

func (p *powerless) Stat(path string) (fs.FileInfo, error) {
	if _, ok := p.files[path]; !ok {
		return nil, fs.ErrNotExist
	}
	return dirInfo{}, nil
}

func (p *powerless) Mkdir(dir string, _ fs.FileMode) error {
	if err := p.do("mkdir %s", dir); err != nil {
		return err
	}
	p.files[dir] = nil
	return nil
}

func (p *powerless) Chmod(string, fs.FileMode) error { return nil }

func (p *powerless) Create(path string) (writtenFile, error) {
	if err := p.do("create"); err != nil {
		return nil, err
	}
	c := &content{}
	p.files[path] = c
	return powerlessFile{p, c}, nil
}

func (p *powerless) Rename(from, to string) error {
	if err := p.do("rename to %s", to); err != nil {
		return err
	}
	p.files[to] = p.files[from]
	delete(p.files, from)
	return nil
}

func (p *powerless) Remove(path string) error { delete(p.files, path); return nil }

func (p *powerless) SyncDir(dir string) error {
	if err := p.do("sync %s", dir); err != nil {
		return err
	}
	for path, c := range p.files {
		if filepath.Dir(path) == dir {
			p.onDisk[path] = c
		}
	}
	return nil
}

type powerlessFile struct {
	p *powerless
	c *content
}

func (f powerlessFile) Write(b []byte) (int, error) {
	if err := f.p.do("write"); err != nil {
		return 0, err
	}
	f.c.now += string(b)
	return len(b), nil
}
func (f powerlessFile) Chmod(fs.FileMode) error { return f.p.do("chmod") }
func (f powerlessFile) Close() error            { return nil }
func (f powerlessFile) Sync() error {
	err := f.p.do("sync the file")
	if err == nil {
		f.c.synced = f.c.now
	}
	return err
}

// afterwards returns what the path may hold after the power cut: with the synced names, and with
// all names, because the disk may have any of them.
func (p *powerless) afterwards(path string) []string {
	var out []string
	for _, names := range []map[string]*content{p.onDisk, p.files} {
		there := true
		for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
			_, ok := names[dir]
			there = there && ok
		}
		if c := names[path]; there && c != nil {
			out = append(out, c.synced)
		} else {
			out = append(out, "nothing")
		}
	}
	return out
}

func newPowerless(cutAt int) *powerless {
	old := &content{"old", "old"}
	return &powerless{cutAt: cutAt, files: map[string]*content{"/": nil, "/r": nil, "/r/file": old}, onDisk: map[string]*content{"/": nil, "/r": nil, "/r/file": old}}
}

// TestWriteSurvivesPowerCut cuts the power at each operation.
func TestWriteSurvivesPowerCut(t *testing.T) {
	for _, path := range []string{"/r/file", "/r/new/deep/file"} {
		before := "old"
		if path != "/r/file" {
			before = "nothing"
		}
		done := false
		for cut := 1; !done; cut++ {
			d := newPowerless(cut)
			err := writeFile(d, path, []byte("next"), 0o600, true)
			done = err == nil
			if !done && !errors.Is(err, errPower) {
				t.Fatal(err)
			}
			for _, got := range d.afterwards(path) {
				if got != "next" && (done || got != before) {
					t.Errorf("%s, power cut at operation %d (%s), returned %v: the file has %q", path, cut, d.did[len(d.did)-1], err, got)
				}
			}
		}
	}
}

// TestWriteOrder: without sync the content is lost, so the test above can fail.
func TestWriteOrder(t *testing.T) {
	for synced, want := range map[bool]string{
		true:  "mkdir /r/new, create, write, chmod, sync the file, rename to /r/new/file, sync /r, sync /r/new",
		false: "mkdir /r/new, create, write, chmod, rename to /r/new/file",
	} {
		d := newPowerless(0)
		testutil.Must(t, writeFile(d, "/r/new/file", []byte("next"), 0o600, synced))
		if got := strings.Join(d.did, ", "); got != want {
			t.Errorf("synced %v: %s", synced, got)
		}
		if kept := slices.Contains(d.afterwards("/r/new/file"), ""); kept == synced {
			t.Errorf("synced %v: the content was lost: %v", synced, kept)
		}
	}
}

// TestRealDiskSyncsDirectories: also on a file system that has nothing to sync.
func TestRealDiskSyncsDirectories(t *testing.T) {
	for _, dir := range []string{t.TempDir(), "/dev/shm"} {
		if err := (realDisk{}).SyncDir(dir); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if err := (realDisk{}).SyncDir("/is/not/there"); !errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
}
