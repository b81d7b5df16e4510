package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// features are those that the node reports of its default runtime handler.
func features(t *testing.T) v1.NodeRuntimeHandlerFeatures {
	t.Helper()
	for _, h := range getNode(t, lab).Status.RuntimeHandlers {
		if h.Name == "" && h.Features != nil {
			return *h.Features
		}
	}
	return v1.NodeRuntimeHandlerFeatures{}
}

// Variables come from a file that an init container wrote. If the file is unusable, the container
// waits with the reason.
func TestVariablesFromAFile(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	file := func(name, script string, more string) {
		create(t, ns, `
metadata: {name: `+name+`}
spec:
  restartPolicy: Never
  initContainers:
  - name: write
    image: $TOOLBOX
    command: [sh, -c, `+fmt.Sprintf("%q", script)+`]
    volumeMounts: [{name: env, mountPath: /env}]
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, 'env']
    env:
    - {name: ONE, valueFrom: {fileKeyRef: {volumeName: env, path: vars, key: FIRST}}}
    - {name: TWO, valueFrom: {fileKeyRef: {volumeName: env, path: vars, key: ABSENT, optional: true}}}
`+more+`
  volumes: [{name: env, emptyDir: {}}]
`)
	}
	file("there", `echo "# of the init container" >/env/vars; echo "FIRST='a b'" >>/env/vars`, "")
	file("absent", "sleep 0", "")
	file("outside", "ln -s /../../../../../../../../../etc/hostname /env/vars", "")
	ended(t, ns, "there", v1.PodSucceeded)
	all := "\n" + logs(t, ns, "there")
	if !strings.Contains(all, "\nONE=a b\n") || strings.Contains(all, "\nTWO=") {
		t.Errorf("variables:%s", all)
	}
	for _, name := range []string{"absent", "outside"} {
		podIs(t, ns, name, 2*time.Minute, "waits", func(p *v1.Pod) error {
			for _, s := range p.Status.ContainerStatuses {
				if w := s.State.Waiting; w != nil && w.Reason == "CreateContainerConfigError" && w.Message == "couldn't parse env file" {
					return nil
				}
			}
			return fmt.Errorf("%v", p.Status.ContainerStatuses)
		})
	}
}

// A pod with hostUsers: false has its own users: root in it is an unprivileged user on the machine,
// and still owns its volumes. If the runtime does not support this, an event says so.
func TestOwnUsers(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	can := ptr.Deref(features(t).UserNamespaces, false)
	configMap(t, ns, "file", map[string]string{"key": "value"})
	create(t, ns, brief("own", `
  hostUsers: false
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1; done"]
    volumeMounts: [{name: file, mountPath: /file}, {name: dir, mountPath: /dir}]
  volumes:
  - {name: file, configMap: {name: file}}
  - {name: dir, emptyDir: {}}
`))
	t.Logf("the runtime can: %v", can)
	if !can {
		findEvent(t, lab, ns, "", "does not support user namespaces")
		return
	}
	ready(t, ns, "own")
	out := inPod(t, ns, "own", "cat /proc/self/uid_map /file/key; echo x >/dir/x; cat /dir/x")
	f := strings.Fields(out)
	if len(f) < 4 || f[0] != "0" || f[1] == "0" || f[2] != "65536" || f[3] != "valuex" && f[3] != "value" {
		t.Errorf("in the pod: %q", out)
	}
}
