package fake

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// Op is what happened to a sandbox or a container.
type Op string

const (
	OpRunSandbox    Op = "run sandbox"
	OpStopSandbox   Op = "stop sandbox" // it was ready before
	OpRemoveSandbox Op = "remove sandbox"
	OpCreate        Op = "create"
	OpStart         Op = "start"
	OpTerm          Op = "signal TERM" // the stop signal was delivered
	OpKill          Op = "signal KILL"
	OpExit          Op = "exit" // Code
	OpExec          Op = "exec" // Detail is the command
	OpRemove        Op = "remove"
	OpPull          Op = "pull"   // Detail is the image
	OpUpdate        Op = "update" // Detail is "shares S quota Q memory M"
)

// Entry is one line of the task log, which only grows.
type Entry struct {
	Time      time.Time
	Op        Op
	Pod       string // namespace/name (uid)
	Name      string // container's metadata name
	Attempt   uint32
	ID        string
	SandboxID string
	Code      int32
	Detail    string
}

// Log returns the task log, oldest entry first.
func (r *Runtime) Log() []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.log)
}

// Count counts the entries of an operation; if name is not empty, only those of that container.
func (r *Runtime) Count(op Op, name string) int {
	n := 0
	for _, e := range r.Log() {
		if e.Op == op && (name == "" || e.Name == name) {
			n++
		}
	}
	return n
}

// note adds an entry; the caller holds r.mu.
func (r *Runtime) note(e Entry) {
	e.Time = time.Now()
	r.log = append(r.log, e)
}

// newID returns an ID in containerd's form.
func newID() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// find returns the object whose ID equals, or uniquely begins with, id.
func find[V any](m map[string]V, id string) (v V, ok bool) {
	if v, ok = m[id]; ok || id == "" {
		return v, ok
	}
	for k, candidate := range m {
		if strings.HasPrefix(k, id) {
			if ok {
				var zero V
				return zero, false
			}
			v, ok = candidate, true
		}
	}
	return v, ok
}

// matches reports whether labels have all of want.
func matches(labels, want map[string]string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
