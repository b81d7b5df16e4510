package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/lab/cgroups"
	"github.com/bowline-k8s/bowline/lab/internal/testutil"
	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/node"
	"github.com/bowline-k8s/bowline/lab/proc"
)

// labTest skips a test that makes a real lab, unless BOWLINE_LAB_TEST is set, and returns the
// configuration of a lab for this test alone.
func labTest(t *testing.T, index int) (Config, *output) {
	t.Helper()
	if os.Getenv("BOWLINE_LAB_TEST") != "1" {
		t.Skip("makes a lab, as root: BOWLINE_LAB_TEST=1 hack/test-lab.sh")
	}
	cache := os.Getenv("BOWLINE_CACHE")
	if cache == "" {
		cache = "/var/cache/bowline"
	}
	dir, err := os.MkdirTemp("", "lab")
	testutil.Must(t, err)
	testutil.Must(t, os.Remove(dir))
	out := &output{}
	return Config{Dir: dir, Index: index, Out: out,
		Tools: node.Tools{Self: cache + "/bin/bowline-lab", Bin: cache + "/bin"}}, out
}

// output collects the output of a command.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.b.Reset()
	return o.b.String()
}

// machine lists everything on the machine that a lab could leave behind, one thing a line, without
// what belongs to other labs.
func machine(t *testing.T, index int) []string {
	t.Helper()
	var all []string
	other := func(s string) bool {
		for i := range layout.MaxIndex + 1 {
			l := layout.Lab{Index: i}
			if i != index && (strings.Contains(s, l.Name()) && !strings.Contains(s, l.Name()+"0") || strings.Contains(s, l.Bridge()) ||
				strings.Contains(s, fmt.Sprintf("index-%d", i)) || strings.Contains(s, l.NodeNet().Masked().String())) {
				return true
			}
		}
		return false
	}
	add := func(kind string, things ...string) {
		for _, s := range things {
			if !other(s) {
				all = append(all, kind+" "+s)
			}
		}
	}
	command := func(args ...string) []string {
		out, err := exec.Command(args[0], args[1:]...).Output()
		if err != nil {
			t.Fatalf("%s: %v", args[0], err)
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	for _, line := range command("cat", "/proc/self/mountinfo") {
		// Other tests mount in directories of their own.
		if fields := strings.Fields(line); len(fields) > 5 && !strings.HasPrefix(fields[4], os.TempDir()) {
			add("mount", strings.Join(fields[3:], " "))
		}
	}
	links, err := os.ReadDir("/sys/class/net")
	testutil.Must(t, err)
	for _, l := range links {
		add("link", l.Name())
	}
	add("route", command("ip", "route", "show", "table", "all")...)
	for _, line := range command("iptables-save") {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ":") {
			add("iptables", line)
		}
	}
	hierarchies, err := cgroups.Mounted()
	testutil.Must(t, err)
	for _, h := range hierarchies {
		dirs, err := filepath.Glob(h.Mount + "/*/.")
		testutil.Must(t, err)
		add("cgroup", dirs...)
	}
	for _, dir := range []string{"/run", "/run/*", "/etc", "/var/lib", "/var/log", "/var/cache"} {
		files, err := filepath.Glob(dir + "/*")
		testutil.Must(t, err)
		add("file", files...)
	}
	// Removing the last lab also removes the directory for all labs.
	all = slices.DeleteFunc(all, func(s string) bool {
		return s == "file "+layout.RunDir || s == "file "+layout.RunDir+"/lock" || s == "file "+layout.RunDir+"/made-dirs"
	})
	slices.Sort(all)
	return all
}

// leftovers lists the processes and mounts that name dir, and those of the given network namespaces
// that still have a process.
func leftovers(t *testing.T, dir string, netns []string) []string {
	t.Helper()
	var found []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	testutil.Must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			found = append(found, "mount "+line)
		}
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	testutil.Must(t, err)
	for _, p := range processes {
		if line, err := os.ReadFile(p + "/cmdline"); err == nil && bytes.Contains(line, []byte(dir)) {
			found = append(found, "process "+strings.ReplaceAll(string(line), "\x00", " "))
		}
		if ns, err := os.Readlink(p + "/ns/net"); err == nil && slices.Contains(netns, ns) {
			found = append(found, "namespace "+ns+" with process "+filepath.Base(p))
		}
	}
	return found
}

func difference(before, after []string) string {
	var b strings.Builder
	for _, s := range after {
		if !slices.Contains(before, s) {
			fmt.Fprintf(&b, "  left: %s\n", s)
		}
	}
	for _, s := range before {
		if !slices.Contains(after, s) {
			fmt.Fprintf(&b, "  taken: %s\n", s)
		}
	}
	return b.String()
}

func checkGone(t *testing.T, c Config, before, netns []string) {
	t.Helper()
	if diff := difference(before, machine(t, c.Index)); diff != "" {
		t.Errorf("the machine is not as it was:\n%s", diff)
	}
	if left := leftovers(t, c.Dir, netns); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if _, err := os.Stat(c.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v, want it gone", c.Dir, err)
	}
}

func processIDs(t *testing.T, dir string) map[string]proc.ID {
	t.Helper()
	records, err := proc.List(filepath.Join(dir, "run"))
	testutil.Must(t, err)
	ids := map[string]proc.ID{}
	for _, r := range records {
		ids[r.Name] = r.ID
	}
	return ids
}

// TestLab goes through the whole life of a lab.
func TestLab(t *testing.T) {
	c, out := labTest(t, 14)
	c.Hosts = 2
	ctx := t.Context()
	before := machine(t, c.Index)
	t.Cleanup(func() {
		if err := Down(context.Background(), c); err != nil {
			t.Error(err)
		}
	})
	start := time.Now()
	testutil.Must(t, Up(ctx, c))
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("up after %s, want 30 s at most", took)
	}
	t.Logf("up: %s", out.take())
	status := mustStatus(t, c)
	if status.State != "up" || status.Cluster.UID == "" || len(status.Hosts) != 2 {
		t.Fatalf("status is %+v", status)
	}

	t.Run("up again does nothing", func(t *testing.T) {
		first := processIDs(t, c.Dir)
		testutil.Must(t, Up(ctx, c))
		if said := out.take(); !strings.Contains(said, "is up already") {
			t.Errorf("it says %q", said)
		}
		for name, id := range processIDs(t, c.Dir) {
			if first[name] != id {
				t.Errorf("%s was started again", name)
			}
		}
	})
	t.Run("exec", func(t *testing.T) { testExec(t, c) })
	t.Run("hosts share nothing", func(t *testing.T) { testIsolation(t, c, status) })
	pod := runPod(t, c, status.Hosts[0])
	t.Run("pod", func(t *testing.T) { pod.test(t, c, status) })
	t.Run("what was killed comes back", func(t *testing.T) {
		ids := processIDs(t, c.Dir)
		names := []string{"host1-keeper", "host1-containerd", "host2-kube-proxy", "kube-apiserver", "registry"}
		for _, name := range names {
			if !ids[name].Signal(syscall.SIGKILL) {
				t.Errorf("%s cannot be killed", name)
			}
		}
		if err := poll(ctx, 10*time.Second, func() error {
			// Up takes a process that is still on its way out for a running one, and fails when it ends.
			for _, name := range names {
				if ids[name].Alive() {
					return fmt.Errorf("%s is still there", name)
				}
			}
			if s := mustStatus(t, c); s.State != "partial" {
				return fmt.Errorf("state is %s", s.State)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		testutil.Must(t, Up(ctx, c))
		t.Logf("resumed: %s", out.take())
		if s := mustStatus(t, c); s.State != "up" {
			t.Errorf("state is %s", s.State)
		}
		pod.stillRuns(t, mustStatus(t, c).Hosts[0])
	})
	t.Run("a host that died is made again", func(t *testing.T) {
		killed := mustStatus(t, c).Hosts[1]
		testutil.Must(t, cgroups.Kill(ctx, killed.Cgroup))
		// Two at once: one waits for the other and finds nothing to do.
		errs := make(chan error, 2)
		for range 2 {
			go func() { errs <- Up(ctx, c) }()
		}
		for range 2 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		t.Logf("resumed: %s", out.take())
		if s := mustStatus(t, c); s.State != "up" || s.Hosts[1].PID == killed.PID {
			t.Errorf("state is %s, host2 has process %d", s.State, s.Hosts[1].PID)
		}
		pod.stillRuns(t, mustStatus(t, c).Hosts[0])
	})
	var netns []string
	for _, h := range mustStatus(t, c).Hosts {
		ids, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", h.PID))
		testutil.Must(t, err)
		netns = append(netns, ids)
	}
	testutil.Must(t, Down(ctx, c))
	t.Logf("down: %s", out.take())
	checkGone(t, c, before, netns)
	if err := Down(ctx, c); err != nil {
		t.Errorf("down again: %v", err)
	}
}

func mustStatus(t *testing.T, c Config) *Status {
	t.Helper()
	s, err := GetStatus(t.Context(), c)
	testutil.Must(t, err)
	return s
}

// TestDownAfterKilledUp kills up at various moments. down then leaves nothing behind, and up can
// also finish the work.
func TestDownAfterKilledUp(t *testing.T) {
	for _, after := range []time.Duration{5 * time.Millisecond, 30 * time.Millisecond, 80 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond, 3 * time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			c, out := labTest(t, 15)
			before := machine(t, c.Index)
			cmd := exec.Command(c.Tools.Self, "--dir", c.Dir, "up", "--index", "15", "--hosts", "2")
			cmd.Stderr = out
			testutil.Must(t, cmd.Start())
			time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
			_ = cmd.Wait()
			t.Logf("killed after: %s", out.take())
			if after == 80*time.Millisecond || after == 400*time.Millisecond {
				if err := Up(t.Context(), c); err != nil {
					t.Errorf("up after the kill: %v", err)
				}
			}
			testutil.Must(t, Down(t.Context(), c))
			checkGone(t, c, before, nil)
		})
	}
}

func TestIndexesDoNotCollide(t *testing.T) {
	c, _ := labTest(t, 15)
	t.Cleanup(func() {
		_ = os.Remove(claimFile(15))
		if err := cleanRunDir(); err != nil {
			t.Error(err)
		}
	})
	release, err := lock(c.Out)
	testutil.Must(t, err)
	defer release()
	if got, err := claim(c.Dir, 15); err != nil || got != 15 {
		t.Fatalf("claim: %d, %v", got, err)
	}
	if got, err := claim(c.Dir, -1); err != nil || got != 15 {
		t.Errorf("the same lab again: %d, %v", got, err)
	}
	if _, err := claim("/elsewhere", 15); err == nil || !strings.Contains(err.Error(), c.Dir) {
		t.Errorf("another lab: %v, want a word about %s", err, c.Dir)
	}
}
