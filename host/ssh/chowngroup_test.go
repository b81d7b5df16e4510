package ssh_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// groupers are hosts with all ways to change a tree: with and without a mount namespace, with
// coreutils and with busybox.
func groupers(t *testing.T, transport func() ssh.Transport) map[string]*ssh.Host {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root gives files away")
	}
	none := t.TempDir()
	testutil.Must(t, os.WriteFile(none+"/unshare", []byte("#!/bin/sh\nexit 1\n"), 0o755))
	usual := "/usr/sbin:/usr/bin:/sbin:/bin"
	configs := map[string]ssh.Config{"namespace": {}, "directories": {Path: none + ":" + usual}, "directories, bash": {Shell: "/bin/bash", Path: none + ":" + usual}}
	if dir, sh := shtest.Busybox(t); dir != "" {
		configs["busybox"] = ssh.Config{Shell: sh, Path: dir + ":" + usual}
		configs["busybox, directories"] = ssh.Config{Shell: sh, Path: none + ":" + dir + ":" + usual}
	}
	hosts := map[string]*ssh.Host{}
	for name, c := range configs {
		if transport != nil {
			c.Transport = transport()
		}
		hosts[name] = open(t, c)
		closeHost(t, hosts[name])
	}
	return hosts
}

// TestChownGroupOfLiveVolume: a pod replaces a directory and a file of its volume with links to
// outside, as fast as it can, while another pod with an fsGroup starts. No file outside changes.
func TestChownGroupOfLiveVolume(t *testing.T) {
	for name, h := range groupers(t, nil) {
		t.Run(name, func(t *testing.T) {
			d := t.TempDir()
			outside, volume := d+"/outside", d+"/volume"
			testutil.Must(t, errors.Join(os.MkdirAll(outside, 0o755), os.MkdirAll(volume+"/a", 0o755), os.MkdirAll(volume+"/b", 0o755)))
			names := make([]string, 400)
			for i := range names {
				names[i] = fmt.Sprintf("f%d", i)
				mode := fs.FileMode(0o600)
				if i%10 == 0 {
					mode |= fs.ModeSetuid // it must not get another owner with it
				}
				if err := errors.Join(os.WriteFile(filepath.Join(outside, names[i]), nil, 0o600),
					os.WriteFile(filepath.Join(volume, "a", names[i]), nil, 0o600), os.Chmod(filepath.Join(volume, "a", names[i]), mode)); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.Symlink(outside, volume+"/link"), os.Symlink(outside+"/f0", volume+"/b/link"),
				os.WriteFile(volume+"/b/f", nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			stop := make(chan struct{})
			var pod sync.WaitGroup
			pod.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					_ = unix.Renameat2(unix.AT_FDCWD, volume+"/a", unix.AT_FDCWD, volume+"/link", unix.RENAME_EXCHANGE)
					_ = unix.Renameat2(unix.AT_FDCWD, volume+"/b/f", unix.AT_FDCWD, volume+"/b/link", unix.RENAME_EXCHANGE)
				}
			})
			until := time.Now().Add(2 * time.Second)
			for n := 0; n < 3 || time.Now().Before(until) && n < 50; n++ {
				// An error is allowed, because names change during the call.
				_ = h.ChownGroup(context.Background(), volume, int64(4000+n), false)
			}
			close(stop)
			pod.Wait()
			for _, n := range append(names, ".") {
				st, err := os.Lstat(filepath.Join(outside, n))
				testutil.Must(t, err)
				want := fs.FileMode(0o600)
				if n == "." {
					want = 0o755 | fs.ModeDir
				}
				if gid := st.Sys().(*syscall.Stat_t).Gid; gid != 0 || st.Mode() != want {
					t.Fatalf("%s of outside has the group %d and the mode %v", n, gid, st.Mode())
				}
			}
		})
	}
}

// TestChownGroupTree: a whole deep and wide tree gets the group and modes that a kubelet gives
// it.
func TestChownGroupTree(t *testing.T) {
	for name, h := range groupers(t, nil) {
		t.Run(name, func(t *testing.T) {
			d := t.TempDir()
			v := d + "/it's a volume"
			deep := v
			for i := range 40 {
				deep += fmt.Sprintf("/d%d", i)
			}
			testutil.Must(t, os.MkdirAll(deep, 0o700))
			files := map[string][2]fs.FileMode{ // before and after
				"a\nb": {0o600, 0o660}, "ends\n": {0o600, 0o660}, "-n": {0o640, 0o660}, ".hidden": {0o400, 0o660}, "..x": {0o644, 0o664},
				"tool": {0o755 | fs.ModeSetuid, 0o775 | fs.ModeSetuid}, "group": {0o711 | fs.ModeSetgid, 0o771 | fs.ModeSetgid}, "*": {0, 0o660},
			}
			for i := range 700 {
				files[fmt.Sprintf("wide%d", i)] = [2]fs.FileMode{0o604, 0o664}
			}
			for _, dir := range []string{v, deep} {
				for n, mode := range files {
					testutil.Must(t, errors.Join(os.WriteFile(filepath.Join(dir, n), nil, 0o600), os.Chmod(filepath.Join(dir, n), mode[0])))
				}
			}
			testutil.Must(t, errors.Join(os.WriteFile(d+"/outside", nil, 0o600), os.Symlink(d+"/outside", v+"/link"), os.Symlink(d, v+"/up")))
			testutil.Must(t, h.ChownGroup(context.Background(), v, 4321, false))
			_ = filepath.WalkDir(v, func(p string, e fs.DirEntry, err error) error {
				testutil.Must(t, err)
				st, err := e.Info()
				testutil.Must(t, err)
				if gid := st.Sys().(*syscall.Stat_t).Gid; gid != 4321 {
					t.Errorf("%q has the group %d", p, gid)
				}
				want := files[filepath.Base(p)][1]
				switch {
				case e.IsDir():
					want = 0o770 | fs.ModeDir | fs.ModeSetgid
				case e.Type() == fs.ModeSymlink:
					return nil
				}
				if st.Mode() != want {
					t.Errorf("%q has %v, want %v", p, st.Mode(), want)
				}
				return nil
			})
			if st, err := os.Stat(d + "/outside"); err != nil || st.Mode() != 0o600 || st.Sys().(*syscall.Stat_t).Gid != 0 {
				t.Errorf("what a link leads to has %v, %v", st.Mode(), err)
			}
		})
	}
}

// TestChownGroupIsBrief: a thousand files that cannot be changed do not print a thousand lines.
func TestChownGroupIsBrief(t *testing.T) {
	var sent counting
	for name, h := range groupers(t, func() ssh.Transport { return &sent }) {
		t.Run(name, func(t *testing.T) {
			v := t.TempDir() + "/v"
			testutil.Must(t, os.Mkdir(v, 0o755))
			for i := range 1000 {
				testutil.Must(t, os.WriteFile(fmt.Sprintf("%s/%d", v, i), nil, 0o600))
			}
			if err := unix.Mount(v, v, "", unix.MS_BIND, ""); err != nil {
				t.Skip(err)
			}
			defer func() {
				if err := unix.Unmount(v, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			}()
			testutil.Must(t, unix.Mount("", v, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
			before := sent.bytes.Load()
			if err := h.ChownGroup(context.Background(), v, 4321, false); !errors.Is(err, unix.EROFS) {
				t.Fatalf("%.1000v", err)
			}
			if n := sent.bytes.Load() - before; n > 16<<10 {
				t.Errorf("the machine sent %d bytes", n)
			}
		})
	}
}

// counting counts the bytes that its sessions write.
type counting struct {
	shtest.Transport
	bytes atomic.Int64
}

func (c *counting) Start(ctx context.Context, command string) (link.Session, error) {
	s, err := c.Transport.Start(ctx, command)
	if err != nil {
		return nil, err
	}
	return counted{Session: s, bytes: &c.bytes}, nil
}

type counted struct {
	link.Session
	bytes *atomic.Int64
}

func (c counted) Stdout() io.Reader { return counter{c.Session.Stdout(), c.bytes} }
func (c counted) Stderr() io.Reader { return counter{c.Session.Stderr(), c.bytes} }

type counter struct {
	io.Reader
	bytes *atomic.Int64
}

func (c counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}
