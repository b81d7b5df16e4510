// Package oom tells on the node of processes that the kernel has killed because the
// machine itself had no memory left: the kubelet's oomWatcher. A container that exceeds
// its own limit is the runtime's to tell, as OOMKilled.
//
// A kubelet follows the kernel's log all the time, which over SSH would hold a session
// and a process of the machine for ever. Here the kernel's count of such kills is read
// beside what else is measured, and its log only when the count has grown.
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

// Host is what is needed of the machine; host.Host is one.
type Host interface {
	Run(ctx context.Context, cmd host.Command) (host.Result, error)
}

// Config of a Watcher; both are required.
type Config struct {
	Host Host
	// Event records an event on the node.
	Event func(kind, reason, message string)
}

const (
	reason = "SystemOOM" // the kubelet's
	// deadline of one look into the kernel's log.
	deadline = 10 * time.Second
	// most lines that are looked at: the kernel may have killed hundreds at once.
	most = 100
)

// Watcher is used by one goroutine.
type Watcher struct {
	cfg   Config
	known bool
	kills int64 // that are told of, or were there before us
}

// New makes a Watcher.
func New(c Config) (*Watcher, error) {
	if c.Host == nil || c.Event == nil {
		return nil, errors.New("oom: Host and Event are required")
	}
	return &Watcher{cfg: c}, nil
}

// script is the end of the kernel's log of kills, and how many there were by then.
var script = fmt.Sprintf("dmesg | grep 'Killed process' | tail -n %d; grep '^oom_kill ' /proc/vmstat", most)

// Saw is told how many processes the kernel has killed since the machine came up
// (host.Measured.OOMKills), and tells of those of which it has not told. What happened
// before the first call was told by who was here then.
func (w *Watcher) Saw(ctx context.Context, kills int64) {
	switch {
	case kills < 0: // the machine does not say
		return
	case !w.known:
		w.known, w.kills = true, kills
		return
	case kills < w.kills:
		w.kills = 0 // it has come up anew
	}
	if kills == w.kills {
		return
	}
	log := klog.FromContext(ctx)
	r, err := w.cfg.Host.Run(ctx, host.Command{Args: []string{"sh", "-c", script}, Timeout: deadline})
	if errors.Is(err, host.ErrUnreachable) || ctx.Err() != nil {
		return // the count is there at the next look too
	}
	lines, now := parse(string(r.Stdout))
	now = max(now, kills)
	fresh := lines[max(0, len(lines)-int(min(now-w.kills, most))):]
	if len(fresh) == 0 {
		log.Info("Which processes the kernel has killed is not known, as its log cannot be read", "err", err, "stderr", strings.TrimSpace(string(r.Stderr)))
	}
	log.Info("The kernel has killed processes for want of memory", "processes", now-w.kills)
	w.kills = now
	for _, k := range fresh {
		if k.system {
			w.cfg.Event(v1.EventTypeWarning, reason, fmt.Sprintf("System OOM encountered, victim process: %s, pid: %d", k.name, k.pid))
		}
	}
}

// kill is one line of the kernel's log.
type kill struct {
	pid    int
	name   string // of the program, as the kernel has it: 15 bytes at most
	system bool   // the machine had none left, not a cgroup
}

// killed is such a line, behind the time that dmesg writes. The words before are the
// kernel's: "Out of memory" of the machine, "Memory cgroup out of memory" of a cgroup. The
// name is the program's own choice, and may look like anything.
var killed = regexp.MustCompile(`^(?:<\d+>)?(?:\[[^\]]*\] )?([A-Z][A-Za-z_ ()]*): Killed process (\d+)(?:, UID \d+,)? \((.*)\),? total-vm:`)

// parse reads what script prints. The count is 0 if it is not there.
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
