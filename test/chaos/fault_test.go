package chaos

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// call is one call of a pod's life: the nth of this caller with this label.
type call struct {
	label, site string
	nth         int
}

func (c call) String() string { return fmt.Sprintf("%s@%s#%d", c.label, c.site, c.nth) }

// fault is one fault at one call.
type fault struct {
	call
	point, action string
	delay         time.Duration // at the point "during"
}

func (f fault) String() string {
	if f.random() {
		return "after " + f.delay.String()
	}
	s := f.call.String() + "/" + f.strikesAt()
	if f.delay > 0 {
		s += "/" + f.delay.String()
	}
	return s
}

// kills reports whether the fault ends the process.
func (f fault) kills() bool { return f.action == "kill" || f.stops() }

// stops reports whether it ends the process by SIGTERM.
func (f fault) stops() bool { return f.action == "stop" }

// exit is how the process ends.
func (f fault) exit() int {
	if f.stops() {
		return 0
	}
	return -1
}

// strikesAt names what the fault does at which point of its call.
func (f fault) strikesAt() string { return f.point + "/" + f.action }

// lifecycleExec reports whether the call is a hook's exec.
func (f fault) lifecycleExec() bool {
	return f.label == "cri/ExecSync" && strings.HasPrefix(f.site, "syncloop/lifecycle.")
}

// spec is the fault in the format that a Bowline with faults reads; id distinguishes it from an
// equal one.
func (f fault) spec(id int64) string {
	return fmt.Sprintf("id=%d,label=%s,site=%s,nth=%d,point=%s,action=%s,delay=%s",
		id, f.label, f.site, f.nth, f.point, f.action, max(f.delay, time.Millisecond))
}

// atRandom is a kill at a moment that no call marks.
func atRandom(delay time.Duration) fault {
	return fault{point: "at", action: "kill", delay: delay}
}

func (f fault) random() bool { return f.point == "at" }

// The two calls that start a task.
const (
	startContainer = "cri/StartContainer"
	runSandbox     = "cri/RunPodSandbox"
)

// cutStart reports whether a call that starts a task had been sent and not answered when a process
// was killed. The runtime gives up such a start, so it may lose the task.
func cutStart(entries []entry, start string) bool {
	flying, point := 0, ""
	for _, e := range entries {
		switch {
		case e.what == "begin" && flying > 0:
			return true
		case e.what == "arm":
			point = e.label
		case e.what == "call" && e.label == start:
			flying++
		case e.what == "done" && e.label == start:
			flying--
		case e.what == "strike":
			if strings.Contains(point, "action=stop") {
				return false // a start outlives the stop of its process
			}
			if e.label == start && strings.Contains(point, "point=before") {
				flying-- // it was not sent
			}
			return flying > 0
		}
	}
	return false
}

// points are the points of the matrix, with their actions.
var points = [][2]string{
	{"before", "kill"}, {"withheld", "kill"}, {"after", "kill"},
	{"before", "error"}, {"withheld", "error"},
}

// reads are the labels that change nothing on the host. They only decide how often a call is
// struck: a label that is missing here is struck at each of its calls.
var reads = map[string]bool{
	"cri/Version": true, "cri/Status": true, "cri/RuntimeConfig": true, "cri/ContainerdVersion": true, "cri/Subscribe": true,
	"cri/ListPodSandbox": true, "cri/PodSandboxStatus": true, "cri/ListContainers": true, "cri/ContainerStatus": true,
	"cri/ImageStatus": true, "cri/ListImages": true, "cri/ImageFsInfo": true,
	"host/ReadFile": true, "host/ReadTail": true, "host/Stat": true, "host/List": true, "host/ListMounts": true,
	"host/FileSizes": true, "host/ListCgroups": true, "host/Facts": true, "host/ClockOffset": true, "host/Open": true,
}

// callLog is the file to which a Bowline with faults writes its calls. It can be read from a mark
// on.
type callLog struct{ path string }

// mark is the current end of the log.
func (l callLog) mark() int64 {
	info, err := os.Stat(l.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// entry is one line of the log.
type entry struct{ what, label, site string }

// since returns the lines after a mark.
func (l callLog) since(mark int64) []entry {
	data, err := os.ReadFile(l.path)
	if err != nil || int64(len(data)) <= mark {
		return nil
	}
	return parseCalls(string(data[mark:]))
}

func parseCalls(text string) []entry {
	var list []entry
	for _, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		e := entry{what: fields[0]}
		if len(fields) > 1 {
			e.label = fields[1]
		}
		if len(fields) > 2 {
			e.site = fields[2]
		}
		list = append(list, e)
	}
	return list
}

// struck reports whether a fault has struck.
func struck(entries []entry) bool {
	for _, e := range entries {
		if e.what == "strike" {
			return true
		}
	}
	return false
}

// counts returns how often each caller made each call.
func counts(entries []entry) map[call]int {
	n := map[call]int{}
	for _, e := range entries {
		if e.what == "call" {
			n[call{label: e.label, site: e.site}]++
		}
	}
	return n
}
