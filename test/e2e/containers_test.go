package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

func configMap(t *testing.T, ns, name string, data map[string]string) {
	t.Helper()
	_, err := lab.Client.CoreV1().ConfigMaps(ns).Create(t.Context(),
		&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
	testutil.Must(t, err)
}

func secret(t *testing.T, ns, name string, data map[string]string) {
	t.Helper()
	_, err := lab.Client.CoreV1().Secrets(ns).Create(t.Context(),
		&v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: data}, metav1.CreateOptions{})
	testutil.Must(t, err)
}

func TestEnvironment(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	configMap(t, ns, "colours", map[string]string{"RED": "rot", "BLUE": "blau"})
	secret(t, ns, "words", map[string]string{"PASS": "wort"})
	// The service exists before the pod, so the pod gets its variables.
	kubectl(t, "create", "service", "clusterip", "-n", ns, "my-shop", "--tcp=80:8080")
	create(t, ns, `
metadata: {name: env, labels: {tier: front}, annotations: {note: "a b"}}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, 'env; echo "args=$1 $2 $3"', sh, "$(EXPANDED)", "$$(EXPANDED)", "$(UNKNOWN)"]
    resources: {requests: {cpu: 100m, memory: 16Mi}, limits: {cpu: 300m, memory: 32Mi}}
    envFrom:
    - {prefix: C_, configMapRef: {name: colours}}
    - {secretRef: {name: words}}
    - {configMapRef: {name: nowhere, optional: true}}
    env:
    - {name: PLAIN, value: plain}
    - {name: EXPANDED, value: "<$(PLAIN)>"}
    - {name: ESCAPED, value: "$$(PLAIN)"}
    - {name: LATER, value: "$(UNKNOWN)"}
    - {name: ONE, valueFrom: {configMapKeyRef: {name: colours, key: RED}}}
    - {name: SECRET, valueFrom: {secretKeyRef: {name: words, key: PASS}}}
    - {name: ABSENT, valueFrom: {configMapKeyRef: {name: colours, key: GREEN, optional: true}}}
    - {name: F_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: F_NS, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: F_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    - {name: F_LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['tier']"}}}
    - {name: F_NOTE, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['note']"}}}
    - {name: F_NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: F_SA, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
    - {name: F_HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
    - {name: F_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: R_CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
    - {name: R_MEM, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
    - {name: R_REQ, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 1Mi}}}
`)
	p := ended(t, ns, "env", v1.PodSucceeded)
	all := "\n" + logs(t, ns, "env")
	for _, want := range []string{
		"PLAIN=plain", "EXPANDED=<plain>", "ESCAPED=$(PLAIN)", "LATER=$(UNKNOWN)", "C_RED=rot", "C_BLUE=blau", "PASS=wort",
		"ONE=rot", "SECRET=wort", "F_NAME=env", "F_NS=" + ns, "F_UID=" + string(p.UID), "F_LABEL=front", "F_NOTE=a b",
		"F_NODE=" + host, "F_SA=default", "F_HOST=" + lab.Host(host).IP, "F_IP=" + p.Status.PodIP,
		"R_CPU=300", "R_MEM=33554432", "R_REQ=16", "args=<plain> $(EXPANDED) $(UNKNOWN)",
		"MY_SHOP_SERVICE_PORT=80", "KUBERNETES_SERVICE_PORT=443", "HOSTNAME=env",
	} {
		contains(t, "the environment", all, "\n"+want+"\n")
	}
	for _, key := range []string{"MY_SHOP_SERVICE_HOST", "MY_SHOP_PORT_80_TCP_ADDR", "KUBERNETES_SERVICE_HOST"} {
		contains(t, "the environment", all, "\n"+key+"=10.")
	}
	if strings.Contains(all, "\nABSENT=") {
		t.Error("the optional key that is absent has a value")
	}
}

func TestMissingReferences(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	create(t, ns, brief("waits", "containers: [{name: main, image: $TOOLBOX, command: [sleep, inf], env: [{name: X, valueFrom: {secretKeyRef: {name: late, key: x}}}]}]"))
	contains(t, "what it waits for", waiting(t, ns, "waits", "main", "CreateContainerConfigError").Message, "late")
	secret(t, ns, "late", map[string]string{"x": "here"})
	begin := time.Now()
	ready(t, ns, "waits")
	t.Logf("Ready %s after the secret came", time.Since(begin).Round(time.Millisecond))
	equal(t, "X", inPod(t, ns, "waits", "echo $X"), "here")
}

// Init containers run one after another, a sidecar among them stays, and all end in the reverse
// order.
func TestInitOrderAndSidecars(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	dir := hostDir(t)
	create(t, ns, `
metadata: {name: ordered}
spec:
  terminationGracePeriodSeconds: 20
  initContainers:
  - {name: first, image: $TOOLBOX, command: [sh, -c, "sleep 1; append /d/log first"], volumeMounts: [{name: d, mountPath: /d}]}
  - name: sidecar
    image: $TOOLBOX
    restartPolicy: Always
    command: [sh, -c, "trap 'append /d/log sidecar-down; exit 0' TERM; append /d/log sidecar-up; nc -ll -p 8081 -e cat & wait"]
    startupProbe: {tcpSocket: {port: 8081}, periodSeconds: 1, failureThreshold: 30}
    volumeMounts: [{name: d, mountPath: /d}]
  - {name: second, image: $TOOLBOX, command: [sh, -c, "nc 127.0.0.1 8081 </dev/null && append /d/log second-with-sidecar"], volumeMounts: [{name: d, mountPath: /d}]}
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "trap 'append /d/log main-down; exit 0' TERM; append /d/log main-up; sleep inf & wait"]
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, hostPath: {path: `+dir+`}}]
`)
	p := ready(t, ns, "ordered")
	until(t, "main has its trap", func(context.Context) error {
		if data, err := os.ReadFile(filepath.Join(dir, "log")); err != nil || !strings.Contains(string(data), "main-up") {
			return fmt.Errorf("the log is %q, %v", data, err)
		}
		return nil
	})
	for _, c := range p.Status.InitContainerStatuses {
		if c.Name != "sidecar" && (c.State.Terminated == nil || c.State.Terminated.Reason != "Completed") {
			t.Errorf("init container %s: %v", c.Name, c.State)
		}
		if c.Name == "sidecar" && (c.State.Running == nil || !c.Ready || c.Started == nil || !*c.Started) {
			t.Errorf("sidecar: %v", c)
		}
	}
	deletePod(t, ns, "ordered", metav1.DeleteOptions{}, 2*time.Minute)
	data := testutil.ReadFile(t, filepath.Join(dir, "log"))
	equal(t, "the order", string(data), "first\nsidecar-up\nsecond-with-sidecar\nmain-up\nmain-down\nsidecar-down\n")
	// A sidecar does not prevent a Job's pod from completing.
	create(t, ns, `
metadata: {name: jobish}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 3
  initContainers:
  - {name: sidecar, image: $TOOLBOX, restartPolicy: Always, command: [sleep, inf]}
  containers:
  - {name: main, image: $TOOLBOX, command: [sleep, "1"]}
`)
	ended(t, ns, "jobish", v1.PodSucceeded)
	// An init container that fails for good fails the pod, and main never starts.
	create(t, ns, `
metadata: {name: broken}
spec:
  restartPolicy: Never
  initContainers: [{name: init, image: $TOOLBOX, command: [sh, -c, "exit 9"]}]
  containers: [{name: main, image: $TOOLBOX, command: [append, /d/never, started], volumeMounts: [{name: d, mountPath: /d}]}]
  volumes: [{name: d, hostPath: {path: `+dir+`}}]
`)
	p = ended(t, ns, "broken", v1.PodFailed)
	if s := labtest.Container(p, "init").State.Terminated; s == nil || s.ExitCode != 9 {
		t.Errorf("init: %v", s)
	}
	equal(t, "starts of main after its init container failed", starts(t, dir, "never"), 0)
}

func TestRestartPolicies(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	dir := hostDir(t)
	pod := func(name, policy, code string) {
		create(t, ns, brief(name, `
  restartPolicy: `+policy+`
  containers: [{name: main, image: $TOOLBOX, command: [sh, -c, "append /d/`+name+` start; exit `+code+`"], volumeMounts: [{name: d, mountPath: /d}]}]
  volumes: [{name: d, hostPath: {path: `+dir+`}}]
`))
	}
	pod("never-0", "Never", "0")
	pod("never-1", "Never", "1")
	pod("failure-0", "OnFailure", "0")
	pod("failure-1", "OnFailure", "1")
	pod("always-0", "Always", "0")
	ended(t, ns, "never-0", v1.PodSucceeded)
	ended(t, ns, "failure-0", v1.PodSucceeded)
	p := ended(t, ns, "never-1", v1.PodFailed)
	if s := labtest.Container(p, "main").State.Terminated; s == nil || s.ExitCode != 1 || s.Reason != "Error" || s.StartedAt.IsZero() || s.FinishedAt.IsZero() {
		t.Errorf("never-1 ended as %v", s)
	}
	for _, name := range []string{"failure-1", "always-0"} {
		contains(t, name, waiting(t, ns, name, "main", "CrashLoopBackOff").Message, "back-off")
		event(t, ns, name, "BackOff")
	}
	for _, name := range []string{"never-0", "never-1", "failure-0"} {
		startedOnce(t, dir, name)
	}
	// The back-off grows: 10 s, and then 20 s.
	podIs(t, ns, "always-0", patience, "has restarted twice", func(p *v1.Pod) error {
		if labtest.Restarts(p) < 3 {
			return fmt.Errorf("%d restarts", labtest.Restarts(p))
		}
		return nil
	})
	// A running container may not have written its line yet.
	testutil.Must(t, labtest.Until(t.Context(), 10*time.Second, "always-0 has started 4 or 5 times", func(context.Context) error {
		if n := starts(t, dir, "always-0"); n < 4 || n > 5 {
			return fmt.Errorf("%d times", n)
		}
		return nil
	}))
}

func TestTerminationMessages(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	create(t, ns, `
metadata: {name: speaks}
spec:
  restartPolicy: Never
  containers:
  - {name: file, image: $TOOLBOX, command: [sh, -c, "echo -n done well > /dev/termination-log"]}
  - {name: log, image: $TOOLBOX, command: [sh, -c, "echo the last words; exit 1"], terminationMessagePolicy: FallbackToLogsOnError}
  - {name: path, image: $TOOLBOX, command: [sh, -c, "echo -n elsewhere > /tmp-message"], terminationMessagePath: /tmp-message}
  - {name: long, image: $TOOLBOX, command: [sh, -c, "dd if=/dev/zero of=/dev/termination-log bs=1000 count=9"]}
`)
	p := ended(t, ns, "speaks", v1.PodFailed)
	for name, want := range map[string]string{"file": "done well", "log": "the last words\n", "path": "elsewhere"} {
		if s := labtest.Container(p, name).State.Terminated; s == nil || s.Message != want {
			t.Errorf("%s: %v", name, s)
		}
	}
	if s := labtest.Container(p, "long").State.Terminated; s == nil || len(s.Message) > 4096 {
		t.Errorf("long: %d bytes", len(s.Message))
	}
}

func TestImages(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	one := func(name, image, policy string) {
		create(t, ns, brief(name, "containers: [{name: main, image: '"+image+"', imagePullPolicy: "+policy+", command: [sleep, inf]}]"))
	}
	one("absent", "registry.lab/none:at-all", "IfNotPresent")
	one("unparsable", "registry.lab/UPPER case", "Always")
	one("never", "registry.lab/never:pulled", "Never")
	one("always", toolbox, "Always")
	one("nobody", "127.0.0.1:1/x:y", "Always")
	waiting(t, ns, "absent", "main", "ErrImagePull")
	waiting(t, ns, "absent", "main", "ImagePullBackOff")
	waiting(t, ns, "unparsable", "main", "InvalidImageName")
	waiting(t, ns, "never", "main", "ErrImageNeverPull")
	waiting(t, ns, "nobody", "main", "ErrImagePull", "ImagePullBackOff")
	event(t, ns, "absent", "Failed")
	event(t, ns, "absent", "BackOff")
	event(t, ns, "unparsable", "InspectFailed")
	event(t, ns, "never", "ErrImageNeverPull")
	p := ready(t, ns, "always")
	for _, reason := range []string{"Pulling", "Pulled", "Created", "Started"} {
		event(t, ns, "always", reason)
	}
	c := labtest.Container(p, "main")
	if c.Image != toolbox || !strings.Contains(c.ImageID, "@sha256:") || !strings.HasPrefix(c.ContainerID, lab.Host(host).RuntimeName()+"://") {
		t.Errorf("image %q, ID %q, container %q", c.Image, c.ImageID, c.ContainerID)
	}
}
