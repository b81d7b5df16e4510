package local

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestSubPathChangesBeforeTheMount: what was checked is mounted, whatever a pod does between the
// check and the mount.
func TestSubPathChangesBeforeTheMount(t *testing.T) {
	any, err := New(Config{})
	testutil.Must(t, err)
	h := any.(*Host)
	outside := filepath.Join(t.TempDir(), "outside")
	must := func(err error) {
		t.Helper()
		testutil.Must(t, err)
	}
	write := func(p, content string) {
		t.Helper()
		must(os.MkdirAll(filepath.Dir(p), 0o755))
		must(os.WriteFile(p, []byte(content), 0o644))
	}
	write(outside+"/file", "outside")
	for name, change := range map[string]func(root string) error{
		"the directory becomes a link out": func(root string) error {
			return errors.Join(os.Rename(root+"/d", root+"/away"), os.Symlink(outside, root+"/d"))
		},
		"the file becomes a link out": func(root string) error {
			return errors.Join(os.Rename(root+"/d/file", root+"/away"), os.Symlink(outside+"/file", root+"/d/file"))
		},
		"the file becomes a FIFO": func(root string) error {
			return errors.Join(os.Rename(root+"/d/file", root+"/away"), unix.Mkfifo(root+"/d/file", 0o644))
		},
		"the directory becomes another": func(root string) error {
			return errors.Join(os.Rename(root+"/d", root+"/away"), os.Mkdir(root+"/d", 0o755))
		},
	} {
		for part, at := range map[string]string{"d/file": "", "d": "/file"} {
			t.Run(name+", "+part, func(t *testing.T) {
				dir := t.TempDir()
				s := host.SubPath{Root: dir + "/v", Path: part, Target: dir + "/t"}
				write(s.Root+"/d/file", "inside")
				h.beforeBind = func() { must(change(s.Root)) }
				began := time.Now()
				err := h.BindSubPath(t.Context(), s)
				if errors.Is(err, unix.EPERM) {
					t.Skipf("this machine lets us mount nothing: %v", err)
				}
				must(err)
				t.Cleanup(func() { _ = unix.Unmount(s.Target, unix.MNT_DETACH) })
				if took := time.Since(began); took > mountDeadline/2 {
					t.Errorf("took %s", took)
				}
				if part == "d" && name[:8] == "the file" {
					// The checked directory is mounted, with its current content: a link in it
					// resolves within the container's own root.
					var st, now unix.Stat_t
					must(errors.Join(unix.Stat(s.Target, &st), unix.Stat(s.Root+"/d", &now)))
					if st.Ino != now.Ino {
						t.Error("another directory is mounted")
					}
					return
				}
				f, err := os.OpenFile(s.Target+at, os.O_RDONLY|unix.O_NONBLOCK, 0)
				must(err)
				defer f.Close()
				buf := make([]byte, 100)
				n, err := f.Read(buf)
				if err != nil || string(buf[:n]) != "inside" {
					t.Errorf("the mount shows %q, %v", buf[:n], err)
				}
			})
		}
	}
}

// TestSubPathRemovedMeanwhile: a removed directory is not mounted.
func TestSubPathRemovedMeanwhile(t *testing.T) {
	root := t.TempDir()
	testutil.Must(t, os.Mkdir(root+"/d", 0o755))
	w, err := walkFrom(root)
	testutil.Must(t, err)
	defer w.close()
	testutil.Must(t, w.walk(t.Context(), "d"))
	testutil.Must(t, w.within())
	elsewhere := t.TempDir() + "/d"
	testutil.Must(t, os.Rename(root+"/d", elsewhere))
	if err := w.within(); !errors.Is(err, host.ErrSubPathUnsafe) {
		t.Errorf("moved out: %v", err)
	}
	testutil.Must(t, os.Remove(elsewhere))
	if err := w.within(); !errors.Is(err, host.ErrSubPathUnsafe) {
		t.Errorf("removed: %v", err)
	}
}

// TestSubPathFlips: 200 subPaths while a name alternates between a directory, a file, a FIFO and
// a link to outside, with a switch between each check and its mount.
func TestSubPathFlips(t *testing.T) {
	any, err := New(Config{})
	testutil.Must(t, err)
	h := any.(*Host)
	dir := t.TempDir()
	root, target := dir+"/v", dir+"/t"
	must := func(err error) {
		t.Helper()
		testutil.Must(t, err)
	}
	must(os.Mkdir(dir+"/outside", 0o755))
	must(os.WriteFile(dir+"/outside/x", []byte("outside"), 0o644))
	must(os.MkdirAll(root+"/dir", 0o755))
	must(os.WriteFile(root+"/dir/x", []byte("inside"), 0o644))
	must(os.WriteFile(root+"/file", []byte("inside"), 0o644))
	must(unix.Mkfifo(root+"/fifo", 0o644))
	must(os.Symlink("../outside", root+"/link"))
	must(os.Symlink(dir+"/outside/x", root+"/linkfile"))

	flips := 0
	flipped := make(chan struct{})
	h.beforeBind = func() { // let the pod switch now, and wait until it has
		flipped <- struct{}{}
		<-flipped
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		names := []string{"dir", "link", "file", "linkfile", "fifo"}
		flip := func() {
			a, b := names[flips%5], names[(flips+1)%5]
			_ = unix.Renameat2(unix.AT_FDCWD, root+"/"+a, unix.AT_FDCWD, root+"/"+b, unix.RENAME_EXCHANGE)
			flips++
		}
		for {
			select {
			case _, more := <-flipped:
				if !more {
					return
				}
				flip()
				flipped <- struct{}{}
			default:
				flip()
			}
		}
	}()
	t.Cleanup(func() {
		close(flipped)
		<-done
		_ = unix.Unmount(target, unix.MNT_DETACH)
	})
	bound := 0
	for i := range 200 {
		began := time.Now()
		err := h.BindSubPath(t.Context(), host.SubPath{Root: root, Path: []string{"dir", "dir/x", "file", "fifo", "link/x"}[i%5], Target: target})
		if errors.Is(err, unix.EPERM) {
			t.Skipf("this machine lets us mount nothing: %v", err)
		}
		if took := time.Since(began); took > mountDeadline/2 {
			t.Fatalf("took %s", took)
		}
		if err != nil {
			continue
		}
		bound++
		for _, p := range []string{target, target + "/x"} {
			fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
			if err != nil {
				continue
			}
			buf := make([]byte, 100)
			if n, _ := unix.Read(fd, buf); n > 0 && string(buf[:n]) != "inside" {
				t.Errorf("what is outside is seen: %q", buf[:n])
			}
			_ = unix.Close(fd)
		}
	}
	t.Logf("%d of 200 bound", bound)
	if bound == 0 {
		t.Error("none was bound: nothing was tried")
	}
}
