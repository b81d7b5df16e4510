package hostcheck

import (
	"fmt"
	"slices"
)

// Level is how a line is meant.
type Level string

const (
	OK      Level = "ok"
	Warning Level = "warning" // a node can be made of it, and something will be missed
	Failure Level = "failure" // no node can be made of it
)

// Line is one thing that was looked at.
type Line struct {
	Level   Level  `json:"level"`
	Subject string `json:"subject"` // one of the constants below
	Found   string `json:"found"`   // one sentence
	// Mend is what to do, a line each; a command or a line of configuration stands on
	// a line of its own. Empty for ok.
	Mend string `json:"fix,omitempty"`
}

// Report is all that was found, in the order of the subjects.
type Report struct {
	Endpoint string `json:"endpoint"`
	Fit      bool   `json:"fit"` // there is no failure
	Lines    []Line `json:"lines"`
	// NotLookedAt are the subjects that could not be asked after.
	NotLookedAt []string `json:"notLookedAt,omitempty"`
}

// What is looked at, in the order of the report.
const (
	Reachability = "reachability"
	HostKey      = "host key"
	Login        = "login"
	Rights       = "rights"
	Forwarding   = "forwarding" // of a far machine
	Exposure     = "exposure"   // of a far machine, where it is asked after
	Socket       = "socket"     // of this machine
	Runtime      = "runtime"
	Network      = "network"
	Cgroups      = "cgroups"
	Clock        = "clock"
	Disk         = "disk"
	Sysctls      = "sysctls"
	Swap         = "swap"
	Propagation  = "propagation" // of mounts
	SELinux      = "SELinux"
	Tools        = "tools"
	Driver       = "driver"
)

var (
	farSubjects  = []string{Reachability, HostKey, Login, Rights, Forwarding, Runtime, Network, Cgroups, Clock, Disk, Sysctls, Swap, Propagation, SELinux, Tools, Driver}
	nearSubjects = []string{Rights, Socket, Runtime, Network, Cgroups, Disk, Sysctls, Swap, Propagation, SELinux, Driver}
)

func (r *Report) add(lines ...Line) { r.Lines = append(r.Lines, lines...) }

// finish puts the lines in order and says what has none. Those of the way there stay
// as they came, which is one machine after the other.
func (r *Report) finish(subjects []string) {
	rank := func(l Line) int { return max(slices.Index(subjects, l.Subject), slices.Index(subjects, Login)) }
	slices.SortStableFunc(r.Lines, func(a, b Line) int { return rank(a) - rank(b) })
	r.Fit = r.count(Failure) == 0
	for _, s := range subjects {
		if !slices.ContainsFunc(r.Lines, func(l Line) bool { return l.Subject == s }) {
			r.NotLookedAt = append(r.NotLookedAt, s)
		}
	}
}

func (r *Report) count(level Level) int {
	n := 0
	for _, l := range r.Lines {
		if l.Level == level {
			n++
		}
	}
	return n
}

func ok(subject, format string, args ...any) Line {
	return Line{OK, subject, fmt.Sprintf(format, args...), ""}
}

// unknown is a thing that could not be found out, on a machine that answers.
func unknown(subject string, err error) Line {
	return Line{Warning, subject, "could not be looked at: " + err.Error(), "look at it by hand"}
}
