package status

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// Reasons of pod conditions, as a kubelet spells them.
const (
	reasonSandboxNotReady = "PodSandboxNotReady"
	reasonPodCompleted    = "PodCompleted"
	reasonPodFailed       = "PodFailed"
	reasonNotReady        = "ContainersNotReady"
	reasonNotInitialized  = "ContainersNotInitialized"
	reasonGates           = "ReadinessGatesNotReady"
	reasonAllStarted      = "RestartAllContainersStarted"
	messageAllStarted     = "container exited with restart policy rule"
)

// owned reports whether only the node writes this condition.
func owned(t v1.PodConditionType) bool {
	switch t {
	case v1.PodScheduled, v1.PodReady, v1.PodInitialized, v1.ContainersReady,
		v1.PodReadyToStartContainers, v1.PodResizeInProgress, v1.PodResizePending, v1.AllContainersRestarting:
		return true
	}
	return false
}

// conditions keeps the conditions of other components and appends the node's own.
func (g *generator) conditions(s *v1.PodStatus) {
	for _, c := range g.in.Pod.Status.Conditions {
		if !owned(c.Type) {
			s.Conditions = append(s.Conditions, c)
		}
	}
	if d := condition(g.old.Conditions, v1.DisruptionTarget); d != nil {
		set(&s.Conditions, *d)
	}
	g.disruption(s)
	containersReady := g.containersReady(s)
	for _, c := range []v1.PodCondition{
		g.readyToStart(),
		g.initializedCondition(s),
		g.ready(s, containersReady),
		containersReady,
		{Type: v1.PodScheduled, Status: v1.ConditionTrue},
	} {
		c.ObservedGeneration = g.in.Pod.Generation
		s.Conditions = append(s.Conditions, c)
	}
	if pod.CanRestartAll(g.spec) {
		c := g.allRestarting(s)
		c.ObservedGeneration = g.in.Pod.Generation
		s.Conditions = append(s.Conditions, c)
	}
	if !pod.Terminal(s.Phase) {
		s.Conditions = append(s.Conditions, g.in.Resize...)
	}
}

// allRestarting is the condition AllContainersRestarting: True from the exit that restarts every
// container until all of them have been removed.
func (g *generator) allRestarting(s *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.AllContainersRestarting, Status: v1.ConditionFalse}
	switch {
	case s.Phase == v1.PodSucceeded:
		c.Reason = reasonPodCompleted
	case s.Phase == v1.PodFailed:
		c.Reason = reasonPodFailed
	case g.restartingAll():
		c.Status, c.Reason, c.Message = v1.ConditionTrue, reasonAllStarted, messageAllStarted
	}
	return c
}

// readyToStart says whether the pod has a ready sandbox with a network.
func (g *generator) readyToStart() v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: v1.ConditionFalse, Reason: reasonSandboxNotReady}
	sandboxes := g.in.Observed.Sandboxes
	ready := 0
	for i := range sandboxes {
		if sandboxes[i].Ready {
			ready++
		}
	}
	switch {
	case len(sandboxes) == 0:
		c.Message = "no pod sandbox exists"
	case ready > 1:
		c.Message = "multiple pod sandboxes are ready and need to be reconciled"
	case !sandboxes[0].Ready:
		c.Message = "pod sandbox is not ready"
	case sandboxes[0].HostNetwork != g.spec.HostNetwork:
		c.Message = "network namespace mode changed and sandbox needs to be recreated"
	case !g.spec.HostNetwork && len(sandboxes[0].IPs) == 0:
		c.Message = "pod sandbox has no IP address"
	default:
		return v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: v1.ConditionTrue}
	}
	return c
}

func (g *generator) initializedCondition(s *v1.PodStatus) v1.PodCondition {
	yes := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if was := condition(g.old.Conditions, v1.PodInitialized); was != nil && pod.Terminal(g.old.Phase) {
		return *was // a pod ends only once
	}
	var unknown, incomplete []string
	for i := range g.spec.InitContainers {
		c := &g.spec.InitContainers[i]
		cs := find(s.InitContainerStatuses, c.Name)
		switch {
		case cs == nil:
			unknown = append(unknown, c.Name)
		case pod.Sidecar(c) && (cs.Started == nil || !*cs.Started), !pod.Sidecar(c) && !cs.Ready:
			incomplete = append(incomplete, c.Name)
		}
	}
	if s.Phase == v1.PodSucceeded && len(unknown) == 0 {
		yes.Reason = reasonPodCompleted
		return yes
	}
	// A started main container proves it, although sidecars may restart.
	for i := range s.ContainerStatuses {
		if st := &s.ContainerStatuses[i].State; st.Running != nil || st.Terminated != nil {
			return yes
		}
	}
	msg := messages("containers with unknown status: %s", unknown, "containers with incomplete status: %s", incomplete)
	// Once initialized, always initialized.
	if was := condition(g.old.Conditions, v1.PodInitialized); msg == "" || was != nil && was.Status == v1.ConditionTrue {
		return yes
	}
	return v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionFalse, Reason: reasonNotInitialized, Message: msg}
}

func (g *generator) containersReady(s *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse}
	var unknown, unready []string
	look := func(name string, list []v1.ContainerStatus) {
		if cs := find(list, name); cs == nil {
			unknown = append(unknown, name)
		} else if !cs.Ready {
			unready = append(unready, name)
		}
	}
	for i := range g.spec.InitContainers {
		if pod.Sidecar(&g.spec.InitContainers[i]) {
			look(g.spec.InitContainers[i].Name, s.InitContainerStatuses)
		}
	}
	for i := range g.spec.Containers {
		look(g.spec.Containers[i].Name, s.ContainerStatuses)
	}
	msg := messages("containers with unknown status: %s", unknown, "containers with unready status: %s", unready)
	was := condition(g.old.Conditions, v1.ContainersReady)
	switch {
	case was != nil && was.Status == v1.ConditionFalse && pod.Terminal(g.old.Phase):
		c.Reason, c.Message = was.Reason, was.Message // a pod ends only once
	case s.Phase == v1.PodSucceeded && len(unknown) == 0:
		c.Reason = reasonPodCompleted
	case s.Phase == v1.PodFailed:
		c.Reason = reasonPodFailed
	case msg != "":
		c.Reason, c.Message = reasonNotReady, msg
	default:
		c.Status = v1.ConditionTrue
	}
	return c
}

// ready is containersReady combined with every readiness gate.
func (g *generator) ready(s *v1.PodStatus, containersReady v1.PodCondition) v1.PodCondition {
	c := containersReady
	c.Type = v1.PodReady
	if c.Status != v1.ConditionTrue {
		return c
	}
	var unmet []string
	for _, gate := range g.spec.ReadinessGates {
		if of := condition(s.Conditions, gate.ConditionType); of == nil {
			unmet = append(unmet, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		} else if of.Status != v1.ConditionTrue {
			unmet = append(unmet, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType, of.Status))
		}
	}
	if len(unmet) > 0 {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, reasonGates, strings.Join(unmet, ", ")
	}
	return c
}

// disruption adds DisruptionTarget if the node ended the pod because of Termination.Disruption,
// together with the terminal phase and not before.
func (g *generator) disruption(s *v1.PodStatus) {
	t := g.in.Terminate
	if t == nil || t.Disruption == "" || !pod.Terminal(s.Phase) || pod.Terminal(g.old.Phase) || g.held(s) {
		return
	}
	set(&s.Conditions, v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, ObservedGeneration: g.in.Pod.Generation,
		Reason: v1.PodReasonTerminationByKubelet, Message: t.Disruption,
	})
}

// transitionTimes keeps the transition time of a condition whose status did not change.
func (g *generator) transitionTimes(s *v1.PodStatus) {
	for i := range s.Conditions {
		c := &s.Conditions[i]
		if !owned(c.Type) && c.Type != v1.DisruptionTarget || c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
			continue
		}
		was := condition(g.old.Conditions, c.Type)
		if was == nil && !owned(c.Type) {
			was = condition(g.in.Pod.Status.Conditions, c.Type)
		}
		if was != nil && was.Status == c.Status && !was.LastTransitionTime.IsZero() {
			c.LastTransitionTime = was.LastTransitionTime
		} else {
			c.LastTransitionTime = metav1.NewTime(g.in.Now)
		}
	}
}

func condition(list []v1.PodCondition, t v1.PodConditionType) *v1.PodCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

func set(list *[]v1.PodCondition, c v1.PodCondition) {
	if at := condition(*list, c.Type); at != nil {
		*at = c
		return
	}
	*list = append(*list, c)
}

// messages joins the formatted messages of the non-empty name lists.
func messages(f1 string, n1 []string, f2 string, n2 []string) string {
	var out []string
	if len(n1) > 0 {
		out = append(out, fmt.Sprintf(f1, n1))
	}
	if len(n2) > 0 {
		out = append(out, fmt.Sprintf(f2, n2))
	}
	return strings.Join(out, ", ")
}
