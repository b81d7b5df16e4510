package links

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/test/labtest"
	"github.com/bowline-k8s/bowline/test/oracle"
)

// instances returns the containers and sandboxes of a runtime's log.
func instances(log []fake.Entry) []labtest.Instance {
	var list []labtest.Instance
	byID := map[string]int{}
	for _, e := range log {
		if e.Pod == "" {
			continue
		}
		n, known := byID[e.ID]
		if !known {
			n, byID[e.ID] = len(list), len(list)
			list = append(list, labtest.Instance{ID: e.ID, Sandbox: e.Op == fake.OpRunSandbox, UID: e.Pod, Pod: e.Pod, Container: e.Name, Created: e.Time})
		}
		switch i := &list[n]; e.Op {
		case fake.OpRunSandbox, fake.OpStart:
			i.Started = e.Time
		case fake.OpStopSandbox, fake.OpExit:
			i.Exited, i.Code = e.Time, int(e.Code)
		}
	}
	return list
}

// check returns the violations in a runtime's log. deleted is when the deletion of a pod was
// requested, by its name in the log.
func check(log []fake.Entry, deleted map[string]time.Time) []string {
	all := instances(log)
	bad := append(oracle.OneStart(all, 0),
		oracle.OneAtATime(all, func(a, b *labtest.Instance) bool { return a.UID == b.UID && a.Sandbox && b.Sandbox })...)
	began := map[string]bool{} // sandboxes in which a container was started
	for _, e := range log {
		at, asked := deleted[e.Pod]
		early := !asked || e.Time.Before(at)
		fault := func(what string) {
			bad = append(bad, fmt.Sprintf("%s %s: %s %s", oracle.Clock(e.Time), e.Pod, e.Name, what))
		}
		switch e.Op {
		case fake.OpStart:
			began[e.SandboxID] = true
		case fake.OpStopSandbox:
			if began[e.ID] && early {
				fault("sandbox was stopped")
			}
		case fake.OpTerm:
			if early {
				fault("got its signal to end")
			}
		case fake.OpKill:
			fault("was killed without its grace")
		case fake.OpExit:
			if early {
				fault(fmt.Sprintf("ended with %d", e.Code))
			}
		}
	}
	return bad
}

// running counts the containers and the sandboxes of a pod that run.
func running(all []labtest.Instance, pod string) (containers, sandboxes int) {
	for n := range all {
		switch i := &all[n]; {
		case i.UID != pod || !i.Runs():
		case i.Sandbox:
			sandboxes++
		default:
			containers++
		}
	}
	return containers, sandboxes
}

func TestRules(t *testing.T) {
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
		"got its signal":        {append(up[:5:5], term), nil, "got its signal to end"},
		"ended":                 {append(up[:5:5], exit), nil, "ended with 0"},
		"ended before":          {append(up[:5:5], exit), map[string]time.Time{pod: at.Add(time.Hour)}, "ended with 0"},
		"killed":                {append(up[:5:5], entry(fake.OpKill, "c1")), asked, "killed without its grace"},
		"sandbox stopped":       {append(up[:5:5], stop), nil, "sandbox was stopped"},
		"an empty one stopped":  {[]fake.Entry{up[0], stop, entry(fake.OpRunSandbox, "s2")}, nil, ""},
		"two sandboxes":         {append(up[:5:5], entry(fake.OpRunSandbox, "s2")), nil, "had not ended before the sandbox"},
		"started again":         {append(up[:5:5], term, exit, entry(fake.OpStart, "c2")), asked, "started 2 times"},
		"the same runs twice":   {append(up[:5:5], entry(fake.OpStart, "c2")), nil, "started 2 times"},
		"another pod's no harm": {append(up[:5:5], fake.Entry{Op: fake.OpPull, Detail: "image"}), nil, ""},
	} {
		if got := strings.Join(check(c.log, c.deleted), "; "); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		in, ready := running(instances(c.log), pod)
		if name == "and deleted" && (in != 0 || ready != 0) || name == "up" && (in != 1 || ready != 1) {
			t.Errorf("%s: left are %d containers in %d sandboxes", name, in, ready)
		}
	}
}
