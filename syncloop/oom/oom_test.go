package oom

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// Lines as several kernel versions, and the dmesg of util-linux and of busybox, write them.
const lines = `[ 1234.567890] Out of memory: Killed process 812 (stress) total-vm:8192kB, anon-rss:512kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:60kB oom_score_adj:0
[Mon Nov 23 10:00:00 2026] Memory cgroup out of memory: Killed process 813 (alloc) total-vm:8192kB, anon-rss:512kB
<3>[ 1236.000000] Out of memory (oom_kill_allocating_task): Killed process 814 (a (b) c) total-vm:1kB, anon-rss:1kB
[ 1237.000000] Memory cgroup out of memory: Killed process 815 (] Out of memory) total-vm:1kB
[ 1238.000000] Memory cgroup out of memory: Killed process 816 (x: Killed proce) total-vm:1kB
[ 1239.000000] oom_reaper: reaped process 816 (x), now anon-rss:0kB
[ 1240.000000] Out of memory: Killed process 817, UID 1000, (old) total-vm:1kB
[ 1241.000000] Out of memory: Killed process  (none) total-vm:1kB
oom_kill 6
`

func TestParse(t *testing.T) {
	kills, count := parse(lines)
	want := []kill{{812, "stress", true}, {813, "alloc", false}, {814, "a (b) c", true}, {815, "] Out of memory", false}, {816, "x: Killed proce", false}, {817, "old", true}}
	if diff := cmp.Diff(want, kills, cmp.AllowUnexported(kill{})); diff != "" || count != 6 {
		t.Errorf("count %d, %s", count, diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(lines)
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, out string) {
		kills, _ := parse(out)
		for _, k := range kills {
			if k.pid < 0 || !strings.Contains(out, k.name) {
				t.Errorf("%+v is not of %q", k, out)
			}
		}
	})
}

// machine kills processes and keeps a log; script prints the end of it.
type machine struct {
	log   []string
	count int64
	err   error
	asked int
	late  func() // called before the log is read
}

func (m *machine) kill(pid int, words string) {
	m.log = append(m.log, fmt.Sprintf("[ %d.0] %s: Killed process %d (p%d) total-vm:1kB\n", pid, words, pid, pid))
	m.count++
}

func (m *machine) Run(context.Context, host.Command) (host.Result, error) {
	m.asked++
	if m.err != nil {
		return host.Result{}, m.err
	}
	if m.late != nil {
		m.late()
	}
	return host.Result{Stdout: []byte(strings.Join(m.log[max(0, len(m.log)-most):], "") + fmt.Sprintf("oom_kill %d\n", m.count))}, nil
}

const (
	systems = "Out of memory"
	cgroups = "Memory cgroup out of memory"
)

func TestSaw(t *testing.T) {
	m := &machine{}
	m.kill(1, systems)
	var told []string
	w, err := New(Config{Host: m, Event: func(_, reason, message string) { told = append(told, reason+" "+message) }})
	testutil.Must(t, err)
	look := func(what string, want ...int) {
		t.Helper()
		w.Saw(t.Context(), m.count)
		var words []string
		for _, pid := range want {
			words = append(words, fmt.Sprintf("SystemOOM System OOM encountered, victim process: p%d, pid: %d", pid, pid))
		}
		if !slices.Equal(told, words) {
			t.Errorf("%s: told %q, want %q", what, told, words)
		}
		told = nil
	}
	look("what was before")
	look("nothing new")
	if m.asked != 0 {
		t.Errorf("the log was read %d times for nothing", m.asked)
	}
	m.kill(2, cgroups)
	look("a container's own limit")
	m.kill(3, systems)
	m.kill(4, cgroups)
	m.kill(5, systems)
	look("three at once", 3, 5)
	m.kill(6, systems)
	m.late = func() { m.late = nil; m.kill(7, systems) }
	look("one more while the log is read", 6, 7)
	look("and that one not again")
	m.kill(8, systems)
	m.err = host.ErrUnreachable
	look("the link is down")
	m.err = nil
	look("and up again", 8)
	m.kill(9, systems)
	m.err = errors.New("no sh")
	look("read the kernel log")
	m.err = nil
	look("nor is it told later")
	m.log, m.count = nil, 0
	m.kill(10, systems)
	look("the machine has come up again", 10)
	w.Saw(t.Context(), -1)
	look("a measure without a count")
	var many []int
	for pid := 1000; pid < 1000+2*most; pid++ {
		m.kill(pid, systems)
		if pid >= 1000+most {
			many = append(many, pid)
		}
	}
	look("very many", many...)
	if _, err := New(Config{}); err == nil {
		t.Error("a Watcher of nothing was made")
	}
}
