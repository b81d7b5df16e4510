package status

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// restartingAll reports whether the exit of some container restarts all of them. That container is
// removed last.
func (g *generator) restartingAll() bool {
	if g.in.Phase != pod.Syncing || g.in.Pod.DeletionTimestamp != nil {
		return false
	}
	return g.some(func(c *v1.Container) bool {
		if len(c.RestartPolicyRules) == 0 {
			return false
		}
		newest, _ := g.instances(c.Name)
		return newest != nil && newest.State == pod.StateExited && pod.RestartsAll(c, newest.ExitCode)
	})
}

// some reports whether is returns true for an init or main container.
func (g *generator) some(is func(*v1.Container) bool) bool {
	for c := range pod.Containers(g.spec) {
		if is(c) {
			return true
		}
	}
	return false
}
