package chaos

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// evidence is everything known of one life from outside Bowline.
type evidence struct {
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

// judge returns the violations of the package comment's rules.
func (e evidence) judge() []string {
	var bad []string
	again := 0
	if e.cut {
		again = 1
	}
	bad = append(bad, runs(e.lines, again)...)
	bad = append(bad, e.hooks()...)
	if e.inside > again {
		bad = append(bad, fmt.Sprintf("the API object went before %d containers had left", e.inside))
	}
	most := 3 + again
	if e.cutSandbox {
		most++
	}
	if e.starts < 3 || e.starts > most {
		bad = append(bad, fmt.Sprintf("containerd started %d tasks, want 3: sandbox, init and main", e.starts))
	}
	if e.creates < 3 || e.creates > 4 {
		bad = append(bad, fmt.Sprintf("containerd created %d containers, want 3, or 4 with one never started", e.creates))
	}
	bad = append(bad, backwards(e.versions, again)...)
	return append(bad, ending(e.versions)...)
}

// runs judges the lines of init and main: each enters once, init leaves before main enters, main
// leaves last. One of them may have begun up to again more times.
func runs(lines [][]string, again int) []string {
	n := map[string]int{}
	var bad []string
	inside := ""
	for _, l := range lines {
		what := l[0] + " " + l[1]
		switch what {
		case "init enter", "main enter":
			if inside != "" && again == 0 { // one that was cut off leaves without a line
				bad = append(bad, fmt.Sprintf("%s entered while %s was inside", l[0], inside))
			}
			inside = l[0]
		case "init leave", "main leave":
			if inside == l[0] {
				inside = ""
			}
		}
		n[what]++
	}
	for _, what := range []string{"init enter", "init leave", "main enter", "main leave"} {
		if n[what] < 1 || n[what] > 1+again {
			bad = append(bad, fmt.Sprintf("%d times %q, want once", n[what], what))
		}
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

// hooks judges how often postStart and preStop ran.
func (e evidence) hooks() []string {
	count := func(name string) (n int) {
		for _, l := range e.lines {
			if l[0] == name {
				n++
			}
		}
		return n
	}
	postMin, postMax, preMin, preMax := 1, 1, 1, 1
	if f := e.fault; f != nil {
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

var phaseRank = map[v1.PodPhase]int{"": 0, v1.PodPending: 1, v1.PodRunning: 2, v1.PodSucceeded: 3, v1.PodFailed: 3}

// backwards judges a pod's versions, in the order in which the API server sent them, for a life in
// which nothing restarts, or one container up to again times.
func backwards(versions []*v1.Pod, again int) []string {
	var bad []string
	for i := range versions {
		p := versions[i]
		say := func(format string, args ...any) {
			bad = append(bad, fmt.Sprintf("version %d (%s): ", i, p.ResourceVersion)+fmt.Sprintf(format, args...))
		}
		for _, c := range statuses(p) {
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
		if phaseRank[p.Status.Phase] < phaseRank[old.Status.Phase] {
			say("phase %q after %q", p.Status.Phase, old.Status.Phase)
		}
		if old.Status.StartTime != nil && !old.Status.StartTime.Equal(p.Status.StartTime) {
			say("start time %v after %v", p.Status.StartTime, old.Status.StartTime)
		}
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
		for _, c := range statuses(old) {
			now := labtest.Container(p, c.Name)
			if now == nil {
				say("%s is no longer told", c.Name)
				continue
			}
			if now.RestartCount == c.RestartCount+1 && again > 0 {
				continue // another instance
			}
			for _, what := range step(&c, now, p.DeletionTimestamp != nil) {
				say("%s: %s", c.Name, what)
			}
		}
	}
	return bad
}

// step judges one container's next status.
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

// ending judges the last version.
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

func statuses(p *v1.Pod) []v1.ContainerStatus {
	return append(append([]v1.ContainerStatus(nil), p.Status.InitContainerStatuses...), p.Status.ContainerStatuses...)
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
