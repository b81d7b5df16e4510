// Package hosttest is the suite that every host.Host passes. It looks at the
// machine only through the Host under test and through programs that Host.Run
// starts there, so that a far machine is tested as a near one is.
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
)

// Opener makes a Host of its own: a session, a process's view. The suite closes it.
type Opener func(t *testing.T) host.Host

// Run runs the whole suite. root is an absolute path on the machine that does
// not exist or is empty; the suite works below it and leaves nothing there. The
// test binary's TestMain must call Main. only names tests of it, all by default.
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
		{"StatAll", testStatAll},
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

// machine is the host under test and what the suite knows of it.
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

// dir makes a new directory below the root.
func (m *machine) dir(t *testing.T) string {
	t.Helper()
	d := path.Join(m.root, strings.ToLower(rand.Text()[:10]))
	must(t, m.h.MkdirAll(context.Background(), d, 0o755, nil))
	return d
}

// run starts a program on the machine and fails the test unless it exits with zero.
func (m *machine) run(t *testing.T, args ...string) {
	t.Helper()
	m.output(t, args...)
}

func (m *machine) output(t *testing.T, args ...string) string {
	t.Helper()
	r, err := m.h.Run(context.Background(), host.Command{Args: args, Timeout: 20 * time.Second})
	must(t, err)
	if r.ExitCode != 0 {
		t.Fatalf("%v: exit code %d: %s", args, r.ExitCode, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout))
}

func (m *machine) write(t *testing.T, p, content string) {
	t.Helper()
	must(t, m.h.WriteFile(context.Background(), p, []byte(content), 0o644))
}

// wantFile fails unless p holds content.
func (m *machine) wantFile(t *testing.T, p, content string) {
	t.Helper()
	got, err := m.h.ReadFile(context.Background(), p, 1<<20)
	must(t, err)
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr fails unless err is target.
func wantErr(t *testing.T, err, target error, is func(error, error) bool) {
	t.Helper()
	if !is(err, target) {
		t.Errorf("error %v, want one that is %q", err, target)
	}
}

// eventually polls until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("after 20 s: not yet: %s", what)
		case <-tick.C:
		}
	}
}

// What the second process is told to do, and the path to do it with.
const (
	doEnv   = "BOWLINE_HOSTTEST_DO"
	pathEnv = "BOWLINE_HOSTTEST_PATH"
)

// Main runs the tests; or, in a process that the suite started for the purpose,
// takes a lock or writes trees until it is killed.
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
	// Until killed, or until the parent's end closes our standard input.
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// second starts this test binary again; kill ends it by SIGKILL and waits.
func second(t *testing.T, do, path string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), doEnv+"="+do, pathEnv+"="+path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
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
