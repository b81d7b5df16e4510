package links

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/cri/fake"
)

// life is what a runtime's log says about one pod.
type life struct {
	ready   []string       // sandboxes
	began   map[string]int // by sandbox: containers started in it
	starts  map[string]int // by container name
	running []string       // containers
}

// judge reads a runtime's log and returns the violations. deleted is when the deletion of a pod was
// requested, by its name in the log.
func judge(log []fake.Entry, deleted map[string]time.Time) (map[string]*life, []string) {
	lives := map[string]*life{}
	var bad []string
	for _, e := range log {
		if e.Pod == "" {
			continue
		}
		l := lives[e.Pod]
		if l == nil {
			l = &life{began: map[string]int{}, starts: map[string]int{}}
			lives[e.Pod] = l
		}
		at, asked := deleted[e.Pod]
		wanted := asked && !e.Time.Before(at)
		fault := func(format string, args ...any) {
			bad = append(bad, fmt.Sprintf("%s %s: %s", e.Time.Format("15:04:05.000"), e.Pod, fmt.Sprintf(format, args...)))
		}
		switch e.Op {
		case fake.OpRunSandbox:
			if l.ready = append(l.ready, e.ID); len(l.ready) > 1 {
				fault("%d sandboxes at once", len(l.ready))
			}
		case fake.OpStopSandbox:
			l.ready = slices.DeleteFunc(l.ready, func(id string) bool { return id == e.ID })
			if l.began[e.ID] > 0 && !wanted {
				fault("its sandbox was stopped")
			}
		case fake.OpStart:
			l.running = append(l.running, e.ID)
			l.began[e.SandboxID]++
			if l.starts[e.Name]++; l.starts[e.Name] > 1 {
				fault("%s was started %d times", e.Name, l.starts[e.Name])
			}
		case fake.OpTerm:
			if !wanted {
				fault("%s was told to end", e.Name)
			}
		case fake.OpKill:
			fault("%s was killed without its grace", e.Name)
		case fake.OpExit:
			l.running = slices.DeleteFunc(l.running, func(id string) bool { return id == e.ID })
			if !wanted {
				fault("%s ended with %d", e.Name, e.Code)
			}
		}
	}
	return lives, bad
}

func TestJudge(t *testing.T) {
	const pod = "n/p (u)"
	at := time.Unix(1000, 0)
	entry := func(op fake.Op, id string) fake.Entry {
		at = at.Add(time.Second)
		return fake.Entry{Time: at, Op: op, Pod: pod, Name: "main", ID: id, SandboxID: "s1"}
	}
	up := []fake.Entry{entry(fake.OpRunSandbox, "s1"), entry(fake.OpCreate, "c0"), entry(fake.OpRemove, "c0"), entry(fake.OpCreate, "c1"), entry(fake.OpStart, "c1")}
	asked := map[string]time.Time{pod: at.Add(time.Nanosecond)}
	term, exit, stop := entry(fake.OpTerm, "c1"), entry(fake.OpExit, "c1"), entry(fake.OpStopSandbox, "s1")
	for name, c := range map[string]struct {
		log     []fake.Entry
		deleted map[string]time.Time
		want    string
	}{
		"up":                    {up, nil, ""},
		"and deleted":           {append(up[:5:5], term, exit, stop), asked, ""},
		"told to end":           {append(up[:5:5], term), nil, "told to end"},
		"ended":                 {append(up[:5:5], exit), nil, "ended with 0"},
		"ended before":          {append(up[:5:5], exit), map[string]time.Time{pod: at.Add(time.Hour)}, "ended with 0"},
		"killed":                {append(up[:5:5], entry(fake.OpKill, "c1")), asked, "killed without its grace"},
		"sandbox stopped":       {append(up[:5:5], stop), nil, "sandbox was stopped"},
		"an empty one stopped":  {[]fake.Entry{up[0], stop, entry(fake.OpRunSandbox, "s2")}, nil, ""},
		"two sandboxes":         {append(up[:5:5], entry(fake.OpRunSandbox, "s2")), nil, "2 sandboxes at once"},
		"started again":         {append(up[:5:5], term, exit, entry(fake.OpStart, "c2")), asked, "started 2 times"},
		"the same runs twice":   {append(up[:5:5], entry(fake.OpStart, "c2")), nil, "started 2 times"},
		"another pod's no harm": {append(up[:5:5], fake.Entry{Op: fake.OpPull, Detail: "image"}), nil, ""},
	} {
		lives, bad := judge(c.log, c.deleted)
		if got := strings.Join(bad, "; "); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if l := lives[pod]; name == "and deleted" && (len(l.running) != 0 || len(l.ready) != 0) || name == "up" && (len(l.running) != 1 || len(l.ready) != 1) {
			t.Errorf("%s: left is %+v", name, l)
		}
	}
}
