package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// configured runs f while Bowline manages the host with another configuration: the host's own with
// extra lines, or the result of change.
func configured(t *testing.T, change func(yaml string) string, f func(), extra ...string) {
	t.Helper()
	if remote {
		lines, err := lab.SSHLines(host, wire.Address())
		testutil.Must(t, err)
		extra = append(lines, extra...)
	}
	text := lab.ConfigYAML(host, extra...)
	if change != nil {
		text = change(text)
	}
	file := filepath.Join(hostDir(t), "bowline.yaml")
	testutil.Must(t, os.WriteFile(file, []byte(text), 0o644))
	withoutBowline(t, func() {
		was := bowline.Config
		bowline.Config = file
		defer func() {
			testutil.Must(t, bowline.Stop())
			bowline.Config = was
		}()
		startBowline(t)
		if !t.Failed() {
			f()
		}
	})
}

// Under the machine owner's policy, a pod outside the policy fails with the reason and is never
// started; one inside runs, and so do the pods from before.
func TestPolicy(t *testing.T) {
	onlyLocal(t, "a pod is admitted before the host is asked for anything")
	serial(t)
	ns := namespace(t)
	pod := func(name, more, container string) {
		create(t, ns, brief(name, more+"\n  containers: [{name: main, image: $TOOLBOX, command: [sleep, inf], "+container+"}]"))
	}
	pod("before", "", "securityContext: {privileged: true}")
	before := ready(t, ns, "before")
	configured(t, nil, func() {
		pod("inside", "", "securityContext: {capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}}")
		for _, c := range []struct{ name, more, container, reason, field string }{
			{"privileged", "", "securityContext: {privileged: true}", "PrivilegedForbidden", "spec.containers[main].securityContext.privileged"},
			{"sys-admin", "", "securityContext: {capabilities: {add: [SYS_ADMIN]}}", "PrivilegedForbidden", "capabilities.add has SYS_ADMIN"},
			{"host-pid", "hostPID: true", "", "PrivilegedForbidden", "spec.hostPID"},
			{"host-path", "volumes: [{name: etc, hostPath: {path: /etc}}]", "volumeMounts: [{name: etc, mountPath: /mnt}]", "HostPathForbidden", "spec.volumes[etc].hostPath is /etc"},
			{"host-network", "hostNetwork: true", "", "HostNetworkForbidden", "spec.hostNetwork"},
			{"host-port", "", "ports: [{containerPort: 80, hostPort: 8099}]", "HostNetworkForbidden", "the hostPort 8099"},
		} {
			pod(c.name, c.more, c.container)
			p := ended(t, ns, c.name, v1.PodFailed)
			if p.Status.Reason != c.reason || !strings.Contains(p.Status.Message, c.field) || !strings.HasPrefix(p.Status.Message, "Pod was rejected: ") ||
				len(p.Status.ContainerStatuses) > 0 {
				t.Errorf("%s: %s: %s, %d container statuses", c.name, p.Status.Reason, p.Status.Message, len(p.Status.ContainerStatuses))
			}
		}
		ready(t, ns, "inside")
		contains(t, "the event", event(t, ns, "host-path", "HostPathForbidden"), "policy.allowHostPath is false")
		equal(t, "the container from before", ready(t, ns, "before").Status.ContainerStatuses[0].ContainerID, before.Status.ContainerStatuses[0].ContainerID)
	}, "policy: {allowPrivileged: false, allowHostPath: false, allowHostNetwork: false}")
}
