package fleet

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// hostsFile returns a configuration of remote hosts with these names.
func hostsFile(names ...string) string {
	text := "apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nkubeconfig: k\nhosts:\n"
	for _, n := range names {
		text += fmt.Sprintf("- {nodeName: %s, endpoint: 'ssh://root@%s/s', ssh: {knownHosts: [k]}}\n", n, n)
	}
	return text
}

// words is a log that the test reads.
type words struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (w *words) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.Write(b)
}

// since returns what was logged since the last call.
func (w *words) since() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := w.all.String()
	w.all.Reset()
	return text
}

// watched is a configuration file that is watched in a synctest bubble.
type watched struct {
	t     *testing.T
	log   words
	mu    sync.Mutex
	hosts []string
	times int // how often it was applied
}

func watch(t *testing.T, path string, now chan os.Signal) *watched {
	w := &watched{t: t}
	f, err := OpenConfig(path, func(c *config.BowlineConfiguration) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.times++
		w.hosts = nil
		for name := range ByName(c) {
			w.hosts = append(w.hosts, name)
		}
		slices.Sort(w.hosts)
	})
	testutil.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ctx = klog.NewContext(ctx, textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&w.log))))
	done := make(chan struct{})
	go func() { defer close(done); f.Watch(ctx, now) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// is checks what was applied so far, and what was logged since the last call.
func (w *watched) is(what string, times int, hosts string, said ...string) {
	w.t.Helper()
	log := w.log.since()
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := strings.Join(w.hosts, " "); w.times != times || got != hosts {
		w.t.Errorf("%s: hosts %q, applied %d times; want %q, %d times", what, got, w.times, hosts, times)
	}
	for _, word := range said {
		if !strings.Contains(log, word) {
			w.t.Errorf("%s: %q is not in the log: %s", what, word, log)
		}
	}
	want := 1
	if len(said) == 0 {
		want = 0
	}
	if n := strings.Count(log, "\n"); n != want {
		w.t.Errorf("%s: %d lines in the log, want %d: %s", what, n, want, log)
	}
}

// twoLooks is long enough for a change to be applied.
const twoLooks = 2*lookPeriod + lookPeriod/2

func TestConfigFileChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "config.yaml")
		write := func(path, text string) {
			t.Helper()
			testutil.Must(t, os.WriteFile(path, []byte(text), 0o600))
		}
		write(path, hostsFile("a"))
		now := make(chan os.Signal, 1)
		w := watch(t, path, now)
		w.is("at first", 1, "a")
		time.Sleep(time.Minute)
		w.is("without a change", 1, "a")

		write(path, hostsFile("a", "b"))
		time.Sleep(twoLooks)
		w.is("written in place", 2, "a b", "Applied the changed configuration file", path, "hosts=2")

		write(dir+"/.swap", hostsFile("a", "c"))
		testutil.Must(t, os.Rename(dir+"/.swap", path))
		time.Sleep(twoLooks)
		w.is("renamed over", 3, "a c", "Applied the changed")

		// The same length as before.
		write(path, hostsFile("a", "d"))
		time.Sleep(twoLooks)
		w.is("of one length", 4, "a d", "Applied the changed")

		write(path, strings.Replace(hostsFile("a"), "ssh://", "tcp://", 1)+"maxPods: -3\n")
		time.Sleep(twoLooks)
		w.is("with two mistakes", 4, "a d", "Ignored the invalid configuration file", path, "hosts[0].endpoint", "maxPods")
		time.Sleep(time.Minute)
		w.is("and left so", 4, "a d")

		write(path, hostsFile("a", "a"))
		time.Sleep(twoLooks)
		w.is("with one host twice", 4, "a d", "Ignored the invalid configuration file", "hosts[1].endpoint: Duplicate value", "hosts[1].name")

		write(path, hostsFile("a", "d"))
		time.Sleep(twoLooks)
		w.is("fixed", 4, "a d", "Found the configuration file equal to the configuration in use again")

		testutil.Must(t, os.Remove(path))
		time.Sleep(twoLooks)
		w.is("gone", 4, "a d", "Failed to read the configuration file", path)
		time.Sleep(time.Minute)
		w.is("and still gone", 4, "a d")
		write(path, hostsFile("e"))
		time.Sleep(twoLooks)
		w.is("come back", 5, "e", "Applied the changed")
	})
}

// A kubelet changes a mounted ConfigMap by swapping the symbolic link "..data".
func TestConfigFileOfAConfigMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		swap := func(version, text string) {
			t.Helper()
			for _, err := range []error{
				os.Mkdir(filepath.Join(dir, version), 0o755),
				os.WriteFile(filepath.Join(dir, version, "config.yaml"), []byte(text), 0o600),
				os.Symlink(version, dir+"/..data_tmp"),
				os.Rename(dir+"/..data_tmp", dir+"/..data"),
			} {
				testutil.Must(t, err)
			}
		}
		swap("..1", hostsFile("a"))
		testutil.Must(t, os.Symlink("..data/config.yaml", dir+"/config.yaml"))
		w := watch(t, dir+"/config.yaml", nil)
		swap("..2", hostsFile("a", "b"))
		testutil.Must(t, os.RemoveAll(dir+"/..1"))
		time.Sleep(twoLooks)
		w.is("swapped", 2, "a b", "Applied the changed")
	})
}

// A file that is being written, truncated first, is never taken for one with fewer hosts.
func TestConfigFileHalfWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "config.yaml")
		whole := hostsFile("a", "b", "c")
		testutil.Must(t, os.WriteFile(path, []byte(hostsFile("a", "b")), 0o600))
		w := watch(t, path, nil)
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
		testutil.Must(t, err)
		defer f.Close()
		for line := range strings.Lines(whole) {
			if _, err := f.WriteString(line); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lookPeriod * 3 / 4)
		}
		time.Sleep(twoLooks)
		w.is("written line by line", 2, "a b c", "Applied the changed")
	})
}

func TestConfigFileAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "config.yaml")
		testutil.Must(t, os.WriteFile(path, []byte(hostsFile("a")), 0o600))
		now := make(chan os.Signal, 1)
		w := watch(t, path, now)
		now <- syscall.SIGHUP
		synctest.Wait()
		w.is("unchanged", 1, "a", "Skipped the unchanged configuration file")
		testutil.Must(t, os.WriteFile(path, []byte(hostsFile("b")), 0o600))
		now <- syscall.SIGHUP
		synctest.Wait()
		w.is("at once", 2, "b", "Applied the changed")
	})
}

func TestOpenConfigRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	never := func(*config.BowlineConfiguration) { t.Error("it was applied") }
	if _, err := OpenConfig(path, never); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("no file: %v", err)
	}
	testutil.Must(t, os.WriteFile(path, []byte(hostsFile("A_B")), 0o600))
	if _, err := OpenConfig(path, never); err == nil || !strings.Contains(err.Error(), "hosts[0].nodeName") {
		t.Errorf("a wrong file: %v", err)
	}
}
