package ssh_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestTreeShellKilled: the writer's shell is killed at random moments. ..data always shows one
// complete version, and the next writer removes the rest.
func TestTreeShellKilled(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir() + "/volume"
	version := func(n int) host.Tree {
		w := host.Tree{}
		for f := range 20 {
			w[fmt.Sprintf("d%d/f", f)] = host.TreeFile{Data: []byte(strings.Repeat(fmt.Sprintln("version", n), 500)), Mode: 0o644}
		}
		return w
	}
	whole := func() {
		t.Helper()
		contents := map[string]bool{}
		for f := range 20 {
			got := testutil.ReadFile(t, fmt.Sprintf("%s/..data/d%d/f", dir, f))
			contents[string(got)] = true
		}
		if len(contents) != 1 {
			t.Fatalf("%d versions are mixed", len(contents))
		}
	}
	survivor := open(t, ssh.Config{})
	closeHost(t, survivor)
	testutil.Must(t, survivor.WriteTree(ctx, dir, version(0)))
	began := time.Now()
	testutil.Must(t, survivor.WriteTree(ctx, dir, version(1)))
	usual := time.Since(began)
	killed := 0
	for n := range 30 {
		tr := &shtest.Transport{}
		h := open(t, ssh.Config{Transport: tr})
		timer := time.AfterFunc(time.Duration(rand.Int64N(int64(usual))), func() {
			// The loop's children lead groups of their own, so kill the script too. Do not use
			// kill(1): that of procps 4.0.2 applies -KILL -12345 to all processes.
			s := tr.Sessions()[0]
			children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", s.Process.Pid, s.Process.Pid))
			s.Process.Kill()
			for _, field := range strings.Fields(string(children)) {
				pid, err := strconv.Atoi(field)
				if group, groupErr := syscall.Getpgid(pid); err == nil && groupErr == nil && pid > 1 && group == pid {
					syscall.Kill(-pid, syscall.SIGKILL)
				}
			}
		})
		if err := h.WriteTree(ctx, dir, version(2+n)); err != nil {
			if !errors.Is(err, host.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
			killed++
		}
		timer.Stop()
		h.Close()
		whole()
	}
	t.Logf("%d of 30 writers were killed", killed)
	testutil.Must(t, survivor.WriteTree(ctx, dir, version(100)))
	whole()
	left, err := filepath.Glob(dir + "/..2*")
	if err != nil || len(left) != 1 {
		t.Errorf("versions left: %v, %v", left, err)
	}
}

// TestTreeBytes: all bytes in content, and odd names.
func TestTreeBytes(t *testing.T) {
	ctx := context.Background()
	h := open(t, ssh.Config{})
	closeHost(t, h)
	dir := t.TempDir()
	all := make([]byte, 0, 70_000)
	for i := range 70_000 {
		all = append(all, byte(i*7))
	}
	tree := host.Tree{"-n": {Data: []byte("-n"), Mode: 0o640}, "a\nb/it's %s\\": {Data: all, Mode: 0o600}, "ü $(x) `y`": {Data: []byte("%d\\n'#end"), Mode: 0o644},
		"#end": {Mode: 0o644}}
	for range 2 {
		testutil.Must(t, h.WriteTree(ctx, dir, tree))
		for p, f := range tree {
			if got, err := os.ReadFile(filepath.Join(dir, p)); err != nil || !slices.Equal(got, f.Data) {
				t.Errorf("%q: %d bytes, %v; want %d", p, len(got), err, len(f.Data))
			}
		}
	}
}

// TestChownGroupKeepsSetuid: as the kubelet does.
func TestChownGroupKeepsSetuid(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives files away")
	}
	h := open(t, ssh.Config{})
	closeHost(t, h)
	p := t.TempDir() + "/tool"
	testutil.Must(t, errors.Join(os.WriteFile(p, nil, 0o755), os.Chmod(p, 0o755|fs.ModeSetuid)))
	testutil.Must(t, h.ChownGroup(context.Background(), p, 4321, false))
	if st, err := os.Stat(p); err != nil || st.Mode() != 0o775|fs.ModeSetuid {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

// TestReadTailSwapped: a pod replaces its file with a link to a secret, and back, at random
// moments. ReadTail never reads the secret.
func TestReadTailSwapped(t *testing.T) {
	ctx := context.Background()
	h := open(t, ssh.Config{})
	closeHost(t, h)
	d := t.TempDir()
	testutil.Must(t, errors.Join(os.WriteFile(d+"/secret", []byte("secret"), 0o600), os.WriteFile(d+"/a", []byte("mine"), 0o644)))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if n%2 == 0 {
				os.Symlink("secret", d+"/next")
			} else {
				os.WriteFile(d+"/next", []byte("mine"), 0o644)
			}
			os.Rename(d+"/next", d+"/a")
			for range rand.IntN(3000) { // up to the duration of a few reads
				os.Lstat(d + "/a")
			}
		}
	})
	read := 0
	for range 300 {
		got, err := h.ReadTail(ctx, d+"/a", 100)
		if err != nil {
			continue
		}
		read++
		if s := string(got); s != "mine" && s != "" {
			t.Errorf("read %q", s)
		}
	}
	close(stop)
	wg.Wait()
	if read == 0 {
		t.Error("no read found the file")
	}
	t.Logf("%d of 300 reads found the file", read)
}

// TestReadTailOfAFIFO: a pod replaces its file with a FIFO after the check that it is a regular
// file, so that the open blocks. The host ends the request, and leaves no program behind.
func TestReadTailOfAFIFO(t *testing.T) {
	t.Parallel()
	d := t.TempDir()
	bin, fifo := filepath.Join(d, "bin"), filepath.Join(d, "fifo")
	testutil.Must(t, errors.Join(os.Mkdir(bin, 0o755), syscall.Mkfifo(fifo, 0o600), os.WriteFile(d+"/a", []byte("mine"), 0o644),
		os.WriteFile(filepath.Join(bin, "stat"), []byte("#!/bin/sh\nexec cat '"+fifo+"'\n"), 0o755)))
	h := open(t, ssh.Config{Path: bin + ":" + shell.DefaultPath})
	closeHost(t, h)
	if got, err := h.ReadTail(t.Context(), d+"/a", 100); err == nil {
		t.Errorf("read %q", got)
	}
	// Without a reader, a FIFO cannot be opened for writing.
	f, err := os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		f.Close()
	}
	if !errors.Is(err, syscall.ENXIO) {
		t.Errorf("a program still reads the FIFO: %v", err)
	}
}
