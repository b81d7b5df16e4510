// Package oom records events on the node about processes that the kernel killed because the host
// itself was out of memory, like the kubelet's oomWatcher. A container that exceeds its own limit
// is reported by the runtime as OOMKilled.
//
// A kubelet follows the kernel log all the time. Over SSH that would hold a session and a process
// on the host for ever. This package takes the kernel's count of such kills from the regular
// measurements, and reads the log only when the count has grown.
package oom

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
)

// Host is the part of host.Host that this package needs.
type Host interface {
	Run(ctx context.Context, cmd host.Command) (host.Result, error)
}

// Config configures a Watcher; both fields are required.
type Config struct {
	Host Host
	// Event records an event on the node.
	Event func(kind, reason, message string)
}

const (
	reason = "SystemOOM" // the kubelet's
	// deadline of one read of the kernel log.
	deadline = 10 * time.Second
	// most is how many lines are read: the kernel may have killed hundreds of processes at once.
	most = 100
)

// Watcher is for use by one goroutine.
type Watcher struct {
	cfg   Config
	known bool
	kills int64 // kills that were reported, or happened before the first call
}

// New makes a Watcher.
func New(c Config) (*Watcher, error) {
	if c.Host == nil || c.Event == nil {
		return nil, errors.New("oom: Host and Event are required")
	}
	return &Watcher{cfg: c}, nil
}

// script prints the end of the kernel log's kills, then the current count of kills.
var script = fmt.Sprintf("dmesg | grep 'Killed process' | tail -n %d; grep '^oom_kill ' /proc/vmstat", most)

// Saw takes how many processes the kernel has killed since the host booted
// (host.Measured.OOMKills), and records an event for each new one. Kills before the first call are
// not reported: an earlier process did so.
func (w *Watcher) Saw(ctx context.Context, kills int64) {
	switch {
	case kills < 0: // the host does not provide the count
		return
	case !w.known:
		w.known, w.kills = true, kills
		return
	case kills < w.kills:
		w.kills = 0 // the host has rebooted
	}
	if kills == w.kills {
		return
	}
	log := klog.FromContext(ctx)
	r, err := w.cfg.Host.Run(ctx, host.Command{Args: []string{"sh", "-c", script}, Timeout: deadline})
	if errors.Is(err, host.ErrUnreachable) || ctx.Err() != nil {
		return // the next measurement has the count too
	}
	lines, now := parse(string(r.Stdout))
	now = max(now, kills)
	fresh := lines[max(0, len(lines)-int(min(now-w.kills, most))):]
	if len(fresh) == 0 {
		log.Error(err, "Failed to read the kernel log; the names of OOM-killed processes are unknown", "stderr", strings.TrimSpace(string(r.Stderr)))
	}
	log.Error(nil, "Detected system OOM kills", "processes", now-w.kills)
	w.kills = now
	for _, k := range fresh {
		if k.system {
			w.cfg.Event(v1.EventTypeWarning, reason, fmt.Sprintf("System OOM encountered, victim process: %s, pid: %d", k.name, k.pid))
		}
	}
}

// kill is one line of the kernel log.
type kill struct {
	pid    int
	name   string // of the program, as the kernel has it: at most 15 bytes
	system bool   // the host was out of memory, not a cgroup
}

// killed matches such a line after the timestamp that dmesg writes. The text before it is the
// kernel's: "Out of memory" for the host, "Memory cgroup out of memory" for a cgroup. A program
// chooses its own name, which may look like anything.
var killed = regexp.MustCompile(`^(?:<\d+>)?(?:\[[^\]]*\] )?([A-Z][A-Za-z_ ()]*): Killed process (\d+)(?:, UID \d+,)? \((.*)\),? total-vm:`)

// parse reads the output of script. The count is 0 if the output has none.
func parse(out string) (kills []kill, count int64) {
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			count, _ = strconv.ParseInt(n, 10, 64)
			continue
		}
		m := killed.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		pid, err := strconv.Atoi(m[2])
		if err != nil {
			continue
		}
		kills = append(kills, kill{pid: pid, name: m[3], system: strings.HasPrefix(m[1], "Out of memory")})
	}
	return kills, count
}
