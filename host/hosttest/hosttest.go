// Package hosttest is the test suite that every host.Host passes. It inspects the host only
// through the Host under test and through programs that Host.Run starts, so it tests a local and
// a remote host in the same way.
package hosttest

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Opener makes a new Host, as another session or process would have it. The suite closes it.
type Opener func(t *testing.T) host.Host

// Run runs the whole suite. root is an absolute path on the host that does not exist or is
// empty; the suite works below it and leaves nothing there. The TestMain of the test binary must
// call Main. only selects tests by name; all by default.
func Run(t *testing.T, open Opener, root string, only ...string) {
	m := &machine{open: open, root: root}
	m.h = m.another(t)
	m.isRoot = m.output(t, "id", "-u") == "0"
	t.Cleanup(func() {
		if err := m.h.RemoveTree(context.Background(), root); err != nil {
			t.Errorf("the suite leaves something behind: %v", err)
		}
	})
	for _, s := range []struct {
		name string
		f    func(*testing.T, *machine)
	}{
		{"Files", testFiles},
		{"Tail", testTail},
		{"FileSizes", testFileSizes},
		{"Rename", testRename},
		{"Compress", testCompress},
		{"Directories", testDirectories},
		{"Make", testMake},
		{"Tree", testTree},
		{"TreeLarge", testTreeLarge},
		{"TreeFull", testTreeFull},
		{"TreeReaders", testTreeReaders},
		{"TreeKilled", testTreeKilled},
		{"RemoveTree", testRemoveTree},
		{"ChownGroup", testChownGroup},
		{"Sample", testSample},
		{"Mounts", testMounts},
		{"Shared", testShared},
		{"SharedType", testSharedType},
		{"SubPath", testSubPath},
		{"SubPathRace", testSubPathRace},
		{"Cgroups", testCgroups},
		{"Slices", testSlices},
		{"Run", testRun},
		{"Start", testStart},
		{"Network", testNetwork},
		{"Facts", testFacts},
		{"Meters", testMeters},
		{"Lock", testLock},
		{"LockProcess", testLockProcess},
		{"Deadlines", testDeadlines},
	} {
		if len(only) > 0 && !slices.Contains(only, s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) { s.f(t, m) })
	}
}

// machine is the host under test, with the suite's facts about it.
type machine struct {
	h      host.Host
	open   Opener
	root   string
	isRoot bool
}

func (m *machine) another(t *testing.T) host.Host {
	t.Helper()
	h := m.open(t)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("close %s: %v", h.Name(), err)
		}
	})
	return h
}

// dir creates a new directory below the root.
func (m *machine) dir(t *testing.T) string {
	t.Helper()
	d := path.Join(m.root, strings.ToLower(rand.Text()[:10]))
	testutil.Must(t, m.h.MkdirAll(context.Background(), d, 0o755, nil))
	return d
}

// run runs a program on the host and fails the test unless it exits with zero.
func (m *machine) run(t *testing.T, args ...string) {
	t.Helper()
	m.output(t, args...)
}

func (m *machine) output(t *testing.T, args ...string) string {
	t.Helper()
	r, err := m.h.Run(context.Background(), host.Command{Args: args, Timeout: 20 * time.Second})
	testutil.Must(t, err)
	if r.ExitCode != 0 {
		t.Fatalf("%v: exit code %d: %s", args, r.ExitCode, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout))
}

func (m *machine) write(t *testing.T, p, content string) {
	t.Helper()
	testutil.Must(t, m.h.WriteFile(context.Background(), p, []byte(content), 0o644))
}

// wantFile fails unless p holds content.
func (m *machine) wantFile(t *testing.T, p, content string) {
	t.Helper()
	got, err := m.h.ReadFile(context.Background(), p, 1<<20)
	testutil.Must(t, err)
	if string(got) != content {
		t.Errorf("%s holds %q, want %q", p, got, content)
	}
}

func (m *machine) exists(t *testing.T, p string) bool {
	t.Helper()
	_, err := m.h.Stat(context.Background(), p)
	if err != nil && !isNotExist(err) {
		t.Fatalf("stat %s: %v", p, err)
	}
	return err == nil
}

// wantErr fails unless err is target.
func wantErr(t *testing.T, err, target error, is func(error, error) bool) {
	t.Helper()
	if !is(err, target) {
		t.Errorf("error %v, want one that is %q", err, target)
	}
}

// The task of the second process, and its path.
const (
	doEnv   = "BOWLINE_HOSTTEST_DO"
	pathEnv = "BOWLINE_HOSTTEST_PATH"
)

// Main runs the tests. In a second process that the suite starts, it takes a lock or writes
// trees until it is killed.
func Main(m *testing.M, open func() (host.Host, error)) {
	do, p := os.Getenv(doEnv), os.Getenv(pathEnv)
	if do == "" {
		os.Exit(m.Run())
	}
	ctx := context.Background()
	h, err := open()
	if err == nil && do == "lock" {
		_, err = h.Lock(ctx, p, []byte("the second process"))
	}
	if err == nil {
		fmt.Println("ready")
	}
	if err == nil && do == "write" {
		go func() {
			for n := 0; ; n++ {
				if err := h.WriteTree(ctx, p, versionTree(n)); err != nil {
					fmt.Println("error:", err)
					os.Exit(1)
				}
			}
		}()
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	// Until it is killed, or the parent ends, which closes our standard input.
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// second starts this test binary again; kill ends it with SIGKILL and waits.
func second(t *testing.T, do, path string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), doEnv+"="+do, pathEnv+"="+path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	var once sync.Once
	kill = func() {
		once.Do(func() {
			cmd.Process.Kill()
			cmd.Wait()
			in.Close()
		})
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("the second process says %q, %v; does TestMain call hosttest.Main?", line, err)
	}
	return kill
}
