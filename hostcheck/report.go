package hostcheck

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/bowline-k8s/bowline/hint"
)

// Level is the severity of a Line.
type Level string

const (
	OK      Level = "ok"
	Warning Level = "warning" // the machine can become a node, with a limitation
	Failure Level = "failure" // the machine cannot become a node
)

// Line is the result of one check.
type Line struct {
	Level   Level  `json:"level"`
	Subject string `json:"subject"` // one of the constants below
	Found   string `json:"found"`   // one sentence
	// Fix says how to fix it. A command or a line of configuration is on a line of its own. Empty
	// for ok.
	Fix string `json:"fix,omitempty"`
}

// Report has all lines, in the order of the subjects.
type Report struct {
	Endpoint string `json:"endpoint"`
	Fit      bool   `json:"fit"` // no line is a Failure
	Lines    []Line `json:"lines"`
	// NotLookedAt are the subjects that could not be checked.
	NotLookedAt []string `json:"notLookedAt,omitempty"`
}

// Subjects, in the order of the report.
const (
	Reachability = "reachability"
	HostKey      = "host key"
	Login        = "login"
	Rights       = "rights"
	Forwarding   = "forwarding" // remote hosts only
	Exposure     = "exposure"   // remote hosts only, if Config.Expose is set
	Socket       = "socket"     // local host only
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
	remoteSubjects = []string{Reachability, HostKey, Login, Rights, Forwarding, Runtime, Network, Cgroups, Clock, Disk, Sysctls, Swap, Propagation, SELinux, Tools, Driver}
	localSubjects  = []string{Rights, Socket, Runtime, Network, Cgroups, Disk, Sysctls, Swap, Propagation, SELinux, Driver}
)

func (r *Report) add(lines ...Line) { r.Lines = append(r.Lines, lines...) }

// finish sorts the lines and lists the subjects without one. The lines about the hops keep their
// order, one machine after the other.
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

// unknown is the line of a check that failed although the machine answers.
func unknown(subject string, err error) Line {
	return Line{Warning, subject, "could not be checked: " + err.Error(), cmp.Or(hint.Of(err), "check it manually")}
}
