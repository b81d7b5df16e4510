package chaos

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/test/labtest"
	"github.com/bowline-k8s/bowline/test/oracle"
)

// trace is everything known of one life from outside Bowline.
type trace struct {
	fault    *fault // nil: none
	versions []*v1.Pod
	lines    [][]string
	// creates and starts are containerd's counts.
	creates, starts int
	// inside counts the containers that had entered and not left when the API object went.
	inside int
	// cut is set if a start was in flight when the process was killed. The runtime may have given
	// it up.
	cut bool
	// cutSandbox is the same for a sandbox, which another one then replaces.
	cutSandbox bool
}

// check returns the violations of the package comment's rules.
func (t trace) check() []string {
	var bad []string
	again := 0
	if t.cut {
		again = 1
	}
	bad = append(bad, runs(t.lines, again)...)
	bad = append(bad, t.hooks()...)
	if t.inside > again {
		bad = append(bad, fmt.Sprintf("the API object went before %d containers had left", t.inside))
	}
	most := 3 + again
	if t.cutSandbox {
		most++
	}
	if t.starts < 3 || t.starts > most {
		bad = append(bad, fmt.Sprintf("containerd started %d tasks, want 3: sandbox, init and main", t.starts))
	}
	if t.creates < 3 || t.creates > 4 {
		bad = append(bad, fmt.Sprintf("containerd created %d containers, want 3, or 4 with one never started", t.creates))
	}
	bad = append(bad, steady(t.versions, again)...)
	return append(bad, ending(t.versions)...)
}

// executions returns the instances that wrote the lines; their times count lines, in seconds.
func executions(lines [][]string) []labtest.Instance {
	var list []labtest.Instance
	for n, l := range lines {
		now := time.Unix(int64(n)+1, 0)
		i := slices.IndexFunc(list, func(i labtest.Instance) bool { return i.Container == l[0] && i.ID == l[2] })
		switch {
		case l[1] == "enter":
			list = append(list, labtest.Instance{Container: l[0], ID: l[2], Created: now, Started: now})
		case l[1] == "leave" && i >= 0:
			list[i].Exited = now
		}
	}
	return list
}

// overlaps checks that no container enters while another one is inside.
func overlaps(lines [][]string) []string {
	return oracle.OneAtATime(executions(lines), func(_, _ *labtest.Instance) bool { return true })
}

// runs checks the lines of init and main: each enters once, init leaves before main enters, main
// leaves last. One of them may have begun up to again more times.
func runs(lines [][]string, again int) []string {
	bad := once(lines, again, "init", "main")
	if again == 0 { // one that was cut off leaves without a line
		bad = append(bad, overlaps(lines)...)
	}
	first := func(what string) int {
		for i, l := range lines {
			if l[0]+" "+l[1] == what {
				return i
			}
		}
		return -1
	}
	if first("main enter") < first("init leave") {
		bad = append(bad, "main entered before init had left")
	}
	return bad
}

// once checks that each container entered once and left once, or up to again more times.
func once(lines [][]string, again int, names ...string) []string {
	n := map[string]int{}
	for _, l := range lines {
		n[l[0]+" "+l[1]]++
	}
	var bad []string
	for _, name := range names {
		for _, what := range []string{name + " enter", name + " leave"} {
			if n[what] < 1 || n[what] > 1+again {
				bad = append(bad, fmt.Sprintf("%d times %q, want once", n[what], what))
			}
		}
	}
	return bad
}

// hooks checks how often postStart and preStop ran.
func (t trace) hooks() []string {
	count := func(name string) (n int) {
		for _, l := range t.lines {
			if l[0] == name {
				n++
			}
		}
		return n
	}
	postMin, postMax, preMin, preMax := 1, 1, 1, 1
	if f := t.fault; f != nil {
		switch {
		case f.kills():
			postMin, preMax = 0, 2
		case f.lifecycleExec() && f.point == "withheld":
			postMax, preMax = 2, 2
		case f.lifecycleExec():
			preMin = 0
		}
	}
	var bad []string
	if n := count("postStart"); n < postMin || n > postMax {
		bad = append(bad, fmt.Sprintf("postStart ran %d times, want %d to %d", n, postMin, postMax))
	}
	if n := count("preStop"); n < preMin || n > preMax {
		bad = append(bad, fmt.Sprintf("preStop ran %d times, want %d to %d", n, preMin, preMax))
	}
	return bad
}

// steady checks a pod's versions, in the order in which the API server sent them, for a life in
// which nothing restarts, or one container up to again times.
func steady(versions []*v1.Pod, again int) []string {
	bad := oracle.NoStatusBackwards(versions, false)
	for i := range versions {
		p := versions[i]
		say := func(format string, args ...any) {
			bad = append(bad, fmt.Sprintf("version %d (%s): ", i, p.ResourceVersion)+fmt.Sprintf(format, args...))
		}
		for _, c := range oracle.Statuses(p) {
			if c.RestartCount > int32(again) {
				say("%s has %d restarts", c.Name, c.RestartCount)
			}
			if t := c.LastTerminationState.Terminated; t != nil && again == 0 {
				say("%s has an earlier end: %s", c.Name, t.Reason)
			}
		}
		if p.Status.Phase == v1.PodFailed {
			say("the pod failed: %s %s", p.Status.Reason, p.Status.Message)
		}
		if i == 0 {
			continue
		}
		old := versions[i-1]
		if old.Status.PodIP != "" && p.Status.PodIP != old.Status.PodIP && p.DeletionTimestamp == nil {
			say("address %q after %q", p.Status.PodIP, old.Status.PodIP)
		}
		for _, t := range []v1.PodConditionType{v1.PodReadyToStartContainers, v1.PodInitialized, v1.ContainersReady, v1.PodReady} {
			was, is := isTrue(old, t), isTrue(p, t)
			if was && !is && p.DeletionTimestamp == nil {
				say("condition %s is lost: %v", t, labtest.Condition(p, t))
			}
			if !was && is && old.DeletionTimestamp != nil && (t == v1.PodReady || t == v1.ContainersReady) && everTrue(versions[:i], t) {
				say("condition %s is back while the pod ends", t)
			}
		}
		for _, c := range oracle.Statuses(old) {
			now := labtest.Container(p, c.Name)
			if now == nil || now.RestartCount == c.RestartCount+1 && again > 0 {
				continue // another instance
			}
			for _, what := range step(&c, now, p.DeletionTimestamp != nil) {
				say("%s: %s", c.Name, what)
			}
		}
	}
	return bad
}

// step checks one container's next status.
func step(old, now *v1.ContainerStatus, ending bool) []string {
	var bad []string
	if rank(now.State) < rank(old.State) {
		bad = append(bad, fmt.Sprintf("state %s after %s", words(now.State), words(old.State)))
	}
	// An instance whose process was never started may be replaced.
	if rank(old.State) > 0 && now.ContainerID != old.ContainerID {
		bad = append(bad, fmt.Sprintf("instance %q after %q", now.ContainerID, old.ContainerID))
	}
	if a, b := old.State.Running, now.State.Running; a != nil && b != nil && !a.StartedAt.Equal(&b.StartedAt) {
		bad = append(bad, fmt.Sprintf("started at %v after %v", b.StartedAt, a.StartedAt))
	}
	if a, b := old.State.Terminated, now.State.Terminated; a != nil && b != nil && (a.ExitCode != b.ExitCode || a.Reason != b.Reason || !a.FinishedAt.Equal(&b.FinishedAt)) {
		bad = append(bad, fmt.Sprintf("another end: %s after %s", words(now.State), words(old.State)))
	}
	if old.Ready && !now.Ready && !ending {
		bad = append(bad, "not ready any more")
	}
	return bad
}

// ending checks the last version.
func ending(versions []*v1.Pod) []string {
	var bad []string
	for _, t := range []v1.PodConditionType{v1.PodInitialized, v1.PodReady} {
		if !everTrue(versions, t) {
			bad = append(bad, fmt.Sprintf("condition %s was never true", t))
		}
	}
	if len(versions) == 0 {
		return bad
	}
	last := versions[len(versions)-1]
	if last.DeletionTimestamp == nil {
		bad = append(bad, "the pod went without having been deleted")
	}
	for _, name := range []string{"init", "main"} {
		c := labtest.Container(last, name)
		if c == nil || c.State.Terminated == nil || c.State.Terminated.ExitCode != 0 || c.State.Terminated.Reason != "Completed" {
			bad = append(bad, fmt.Sprintf("the last status does not say that %s completed: %s", name, labtest.Describe(last)))
		}
	}
	return bad
}

func isTrue(p *v1.Pod, t v1.PodConditionType) bool {
	c := labtest.Condition(p, t)
	return c != nil && c.Status == v1.ConditionTrue
}

func everTrue(versions []*v1.Pod, t v1.PodConditionType) bool {
	for _, p := range versions {
		if isTrue(p, t) {
			return true
		}
	}
	return false
}

func rank(s v1.ContainerState) int {
	switch {
	case s.Terminated != nil:
		return 2
	case s.Running != nil:
		return 1
	}
	return 0
}

func words(s v1.ContainerState) string {
	switch {
	case s.Terminated != nil:
		return fmt.Sprintf("terminated (%s, %d, %v)", s.Terminated.Reason, s.Terminated.ExitCode, s.Terminated.FinishedAt)
	case s.Running != nil:
		return "running"
	case s.Waiting != nil:
		return "waiting (" + s.Waiting.Reason + ")"
	}
	return "unknown"
}
