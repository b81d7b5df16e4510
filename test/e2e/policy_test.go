package e2e

import (
	"os"
	"path/filepath"
	"slices"
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

// forbidden are pods outside the policy of TestPolicy: fields of the spec and of its container, and
// the reason and the field that the rejection names.
var forbidden = []struct{ name, more, container, reason, field string }{
	{"privileged", "", "securityContext: {privileged: true}", "PrivilegedForbidden", "spec.containers[main].securityContext.privileged"},
	{"sys-admin", "", "securityContext: {capabilities: {add: [SYS_ADMIN]}}", "PrivilegedForbidden", "capabilities.add has SYS_ADMIN"},
	{"host-pid", "hostPID: true", "", "PrivilegedForbidden", "spec.hostPID"},
	{"host-path", "volumes: [{name: etc, hostPath: {path: /etc}}]", "volumeMounts: [{name: etc, mountPath: /mnt}]", "HostPathForbidden", "spec.volumes[etc].hostPath is /etc"},
	{"host-network", "hostNetwork: true", "", "HostNetworkForbidden", "spec.hostNetwork"},
	{"host-port", "", "ports: [{containerPort: 80, hostPort: 8099}]", "HostNetworkForbidden", "the hostPort 8099"},
	// The host would send these requests, and its networks trust it.
	{"probe", "", "livenessProbe: {httpGet: {host: 127.0.0.1, port: 10248}}", "HostNetworkForbidden",
		"spec.containers[main].livenessProbe.httpGet.host is 127.0.0.1"},
	{"tcp-probe", "", "readinessProbe: {tcpSocket: {host: 192.0.2.1, port: 80}}", "HostNetworkForbidden",
		"spec.containers[main].readinessProbe.tcpSocket.host is 192.0.2.1"},
	{"hook", "", "lifecycle: {preStop: {httpGet: {host: 127.0.0.1, port: 10248}}}", "HostNetworkForbidden",
		"spec.containers[main].lifecycle.preStop.httpGet.host is 127.0.0.1"},
}

// Under the machine owner's policy, a pod outside the policy fails with the reason and is never
// started; one inside runs, and so do the pods from before. A persistent volume is no way around the
// policy: the claim in the pod's spec does not show its path.
func TestPolicy(t *testing.T) {
	onlyLocal(t, "admission does not ask the host")
	serial(t)
	ns := namespace(t)
	dir := hostDir(t)
	pod := func(name, more, container string) {
		create(t, ns, brief(name, more+"\n  containers: [{name: main, image: $TOOLBOX, command: [sleep, inf], "+container+"}]"))
	}
	claims := func(name, claim string) {
		pod(name, "volumes: [{name: data, persistentVolumeClaim: {claimName: "+claim+"}}]", "volumeMounts: [{name: data, mountPath: /data}]")
	}
	for _, claim := range []string{"kept", "path", "local"} {
		testutil.Must(t, os.Mkdir(filepath.Join(dir, claim), 0o755))
	}
	persistent(t, ns, "kept", "hostPath: {path: "+dir+"/kept}")
	persistent(t, ns, "path", "hostPath: {path: "+dir+"/path}")
	persistent(t, ns, "local", "local: {path: "+dir+"/local}")
	pod("before", "", "securityContext: {privileged: true}")
	claims("claimed", "kept")
	before, claimed := ready(t, ns, "before"), ready(t, ns, "claimed")
	configured(t, nil, func() {
		pod("inside", "", "securityContext: {capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}}")
		for _, c := range forbidden {
			pod(c.name, c.more, c.container)
			p := ended(t, ns, c.name, v1.PodFailed)
			if p.Status.Reason != c.reason || !strings.Contains(p.Status.Message, c.field) || !strings.HasPrefix(p.Status.Message, "Pod was rejected: ") ||
				len(p.Status.ContainerStatuses) > 0 {
				t.Errorf("%s: %s: %s, %d container statuses", c.name, p.Status.Reason, p.Status.Message, len(p.Status.ContainerStatuses))
			}
		}
		for claim, field := range map[string]string{"path": "hostPath", "local": "local path"} {
			claims("by-"+claim, claim)
			p := ended(t, ns, "by-"+claim, v1.PodFailed)
			equal(t, "the reason of "+p.Name, p.Status.Reason, "HostPathForbidden")
			contains(t, "the message of "+p.Name, p.Status.Message, "Pod was rejected: ", "policy.allowHostPath is false",
				"spec.volumes[data] is the persistent volume "+ns+"-"+claim+", whose "+field+" is "+dir+"/"+claim)
			contains(t, "the event of "+p.Name, event(t, ns, p.Name, "HostPathForbidden"), "the persistent volume "+ns+"-"+claim)
			if started := slices.ContainsFunc(p.Status.ContainerStatuses, func(s v1.ContainerStatus) bool { return s.ContainerID != "" }); started {
				t.Errorf("%s has started a container: %+v", p.Name, p.Status.ContainerStatuses)
			}
		}
		ready(t, ns, "inside")
		contains(t, "the event", event(t, ns, "host-path", "HostPathForbidden"), "policy.allowHostPath is false")
		for _, p := range []*v1.Pod{before, claimed} {
			equal(t, "the container of "+p.Name, ready(t, ns, p.Name).Status.ContainerStatuses[0].ContainerID, p.Status.ContainerStatuses[0].ContainerID)
		}
	}, "policy: {allowPrivileged: false, allowHostPath: false, allowHostNetwork: false}")
}
