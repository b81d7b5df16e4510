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

// Every handler in every probe, against a server that answers it: nothing restarts, all pods are
// Ready.
func TestProbesThatSucceed(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	handlers := map[string]string{
		"exec": `exec: {command: ["true"]}`,
		"http": `httpGet: {path: /healthz, port: web, httpHeaders: [{name: X-Asked-By, value: probe}]}`,
		"tcp":  `tcpSocket: {port: 8080}`,
		"grpc": `grpc: {port: 9090, service: web}`,
	}
	for name, handler := range handlers {
		command, image := "", "$WEB"
		if name == "exec" {
			image, command = "$TOOLBOX", "command: [sleep, inf]"
		}
		create(t, ns, brief(name, `
  containers:
  - name: main
    image: `+image+`
    `+command+`
    ports: [{name: web, containerPort: 8080}]
    env: [{name: GRPC_PORT, value: "9090"}]
    startupProbe: {`+handler+`, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 30}
    readinessProbe: {`+handler+`, periodSeconds: 1, timeoutSeconds: 10}
    livenessProbe: {`+handler+`, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 2}
`))
	}
	for name := range handlers {
		equal(t, "restarts of "+name, labtest.Restarts(ready(t, ns, name)), 0)
	}
	// A server of another protocol is unhealthy, and so is an unknown service.
	create(t, ns, brief("plain", "containers: [{name: main, image: $WEB, readinessProbe: {grpc: {port: 8080}, periodSeconds: 1}}]"))
	create(t, ns, brief("other", `
  containers:
  - name: main
    image: $WEB
    env: [{name: GRPC_PORT, value: "9090"}]
    readinessProbe: {grpc: {port: 9090, service: other}, periodSeconds: 1}
`))
	for _, name := range []string{"plain", "other"} {
		contains(t, name, event(t, ns, name, "Unhealthy"), "Readiness probe")
		p := getPod(t, ns, name)
		if labtest.IsReady(p) {
			t.Errorf("%s: a gRPC probe has succeeded", name)
		}
	}
}

// A failing liveness probe of each kind restarts its container, with an event.
func TestLivenessRestarts(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	for name, handler := range map[string]string{
		"exec": `exec: {command: [sh, -c, "echo unwell; exit 1"]}`,
		"http": `httpGet: {path: /none, port: 8080}`,
		"tcp":  `tcpSocket: {port: 9}`,
		"grpc": `grpc: {port: 9}`,
	} {
		image, command := "$WEB", ""
		if name == "exec" {
			image, command = "$TOOLBOX", "command: [sleep, inf]"
		}
		create(t, ns, brief(name, `
  containers:
  - name: main
    image: `+image+`
    `+command+`
    livenessProbe: {`+handler+`, periodSeconds: 1, failureThreshold: 2}
`))
	}
	for _, name := range []string{"exec", "http", "tcp", "grpc"} {
		restarted(t, ns, name, 3*time.Minute)
		contains(t, name, event(t, ns, name, "Unhealthy"), "Liveness probe failed")
		event(t, ns, name, "Killing")
	}
}

func restarted(t *testing.T, ns, name string, limit time.Duration) {
	t.Helper()
	podIs(t, ns, name, limit, "has restarted", func(p *v1.Pod) error {
		if labtest.Restarts(p) == 0 {
			return fmt.Errorf("it has not")
		}
		return nil
	})
}

// Readiness follows the probe both ways and restarts nothing.
func TestReadinessFollows(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	dir := hostDir(t)
	create(t, ns, brief("moody", `
  containers:
  - name: main
    image: $TOOLBOX
    command: [sleep, inf]
    readinessProbe: {exec: {command: [cat, /d/well]}, periodSeconds: 1, failureThreshold: 1}
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, hostPath: {path: `+dir+`}}]
`))
	event(t, ns, "moody", "Unhealthy")
	well := filepath.Join(dir, "well")
	testutil.Must(t, os.WriteFile(well, nil, 0o644))
	before := ready(t, ns, "moody")
	testutil.Must(t, os.Remove(well))
	podIs(t, ns, "moody", 20*time.Second, "not Ready", func(p *v1.Pod) error {
		if labtest.IsReady(p) {
			return fmt.Errorf("it is")
		}
		if c := labtest.Condition(p, v1.ContainersReady); c.Status != v1.ConditionFalse || c.Reason != "ContainersNotReady" {
			return fmt.Errorf("ContainersReady is %v", c)
		}
		return nil
	})
	testutil.Must(t, os.WriteFile(well, nil, 0o644))
	same(t, before, ready(t, ns, "moody"))
}

// A container that a probe stops and that exits with 0 runs again, and is shown as running with a
// restart, not as completed, although OnFailure treats exit code 0 as success.
func TestAProbeRestartsWhatExitsWithZero(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	dir := hostDir(t)
	create(t, ns, `
metadata: {name: graceful}
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 20
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "trap 'exit 0' TERM; append /d/up up; sleep inf & wait"]
    livenessProbe: {exec: {command: [cat, /d/well]}, initialDelaySeconds: 1, periodSeconds: 1, failureThreshold: 1}
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, hostPath: {path: `+dir+`}}]
`)
	until(t, "the second start", func(context.Context) error {
		if n := starts(t, dir, "up"); n < 2 {
			return fmt.Errorf("%d starts", n)
		}
		return nil
	})
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "well"), nil, 0o644))
	podIs(t, ns, "graceful", patience, "runs after a restart", func(p *v1.Pod) error {
		c := labtest.Container(p, "main")
		last := c.LastTerminationState.Terminated
		if p.Status.Phase != v1.PodRunning || c.State.Running == nil || !c.Ready || int(c.RestartCount) != starts(t, dir, "up")-1 || last == nil || last.ExitCode != 0 {
			return fmt.Errorf("phase %s, %+v", p.Status.Phase, c)
		}
		return nil
	})
}

// A startup probe delays the other probes, and its failure restarts the container.
func TestStartupProbe(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	dir := hostDir(t)
	create(t, ns, brief("slow", `
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "sleep 5; append /d/up up; sleep inf"]
    startupProbe: {exec: {command: [cat, /d/up]}, periodSeconds: 1, failureThreshold: 60}
    # It would kill the container in its second second, were it not held back.
    livenessProbe: {exec: {command: [cat, /d/up]}, periodSeconds: 1, failureThreshold: 1}
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, hostPath: {path: `+dir+`}}]
`))
	create(t, ns, brief("stuck", "containers: [{name: main, image: $TOOLBOX, command: [sleep, inf], startupProbe: {tcpSocket: {port: 9}, periodSeconds: 1, failureThreshold: 2}}]"))
	if p := ready(t, ns, "slow"); labtest.Restarts(p) != 0 || starts(t, dir, "up") != 1 {
		t.Errorf("the slow one has restarted %d times", labtest.Restarts(p))
	}
	restarted(t, ns, "stuck", time.Minute)
	contains(t, "the event", event(t, ns, "stuck", "Unhealthy"), "Startup probe failed")
}

// postStart runs before Ready, preStop before SIGTERM, with every kind of handler.
func TestLifecycleHooks(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	dir := hostDir(t)
	create(t, ns, `
metadata: {name: hooked}
spec:
  terminationGracePeriodSeconds: 20
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "trap 'append /d/log term; exit 0' TERM; nc -ll -p 8080 -e cat & wait"]
    lifecycle:
      postStart: {exec: {command: [sh, -c, "sleep 1; append /d/log post-start"]}}
      preStop: {exec: {command: [sh, -c, "append /d/log pre-stop; sleep 1"]}}
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, hostPath: {path: `+dir+`}}]
`)
	// Its hook calls a server that is up already: its own may not listen yet.
	create(t, ns, `
metadata: {name: server}
spec:
  containers:
  - {name: main, image: $WEB, readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}}
`)
	server := ready(t, ns, "server")
	create(t, ns, `
metadata: {name: sleeps}
spec:
  terminationGracePeriodSeconds: 90
  containers:
  - name: main
    image: $WEB
    lifecycle:
      postStart: {httpGet: {path: "/echo?m=hello", port: 8080, host: "`+server.Status.PodIP+`"}}
      preStop: {sleep: {seconds: 3}}
    readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
`)
	create(t, ns, brief("fails", `containers: [{name: main, image: $TOOLBOX, command: [sleep, inf], lifecycle: {postStart: {exec: {command: ["false"]}}}}]`))
	ready(t, ns, "hooked")
	equal(t, "hooks before Ready", starts(t, dir, "log"), 1)
	deletePod(t, ns, "hooked", metav1.DeleteOptions{}, patience)
	data := testutil.ReadFile(t, filepath.Join(dir, "log"))
	if string(data) != "post-start\npre-stop\nterm\n" {
		t.Errorf("the order was\n%s", data)
	}
	ready(t, ns, "sleeps")
	begin := time.Now()
	deletePod(t, ns, "sleeps", metav1.DeleteOptions{}, 2*time.Minute)
	if took := time.Since(begin); took < 3*time.Second || took > time.Minute { // well before its grace period is over
		t.Errorf("with 3 s of preStop it was gone after %s", took)
	}
	event(t, ns, "fails", "FailedPostStartHook")
}

// SIGTERM is ignored: SIGKILL comes when the grace period is over, and not before.
func TestGrace(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	dir := hostDir(t)
	text := `
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: GRACE
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "trap 'append /d/NAME term' TERM; append /d/NAME-up up; count -i 1 & while :; do wait; done"]
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, hostPath: {path: ` + dir + `}}]
`
	for name, grace := range map[string]string{"stubborn": "5", "forced": "10", "shorter": "90"} {
		create(t, ns, strings.NewReplacer("NAME", name, "GRACE", grace).Replace(text))
	}
	for _, name := range []string{"stubborn", "forced", "shorter"} {
		ready(t, ns, name)
		until(t, name+" has its trap", func(context.Context) error {
			if n := starts(t, dir, name+"-up"); n != 1 {
				return fmt.Errorf("%d starts", n)
			}
			return nil
		})
	}
	history := lab.Watch(ns)
	defer history.Stop()
	gone := func(name string, o metav1.DeleteOptions) time.Duration {
		begin := time.Now()
		deletePod(t, ns, name, o, 3*time.Minute)
		return time.Since(begin)
	}
	if took := gone("stubborn", metav1.DeleteOptions{}); took < 4900*time.Millisecond {
		t.Errorf("5 s of grace took %s", took)
	}
	equal(t, "SIGTERMs", starts(t, dir, "stubborn"), 1)
	one := int64(1)
	if took := gone("shorter", metav1.DeleteOptions{GracePeriodSeconds: &one}); took > 80*time.Second {
		t.Errorf("1 s of grace instead of 90 took %s", took)
	}
	zero := int64(0)
	forced := getPod(t, ns, "forced")
	gone("forced", metav1.DeleteOptions{GracePeriodSeconds: &zero})
	// The API has forgotten the pod, and with it the grace period of the request. The node stops it
	// with the grace period of the spec, as a kubelet does.
	until(t, "the forced pod's containers stop", noContainers(string(forced.UID)))
	for _, uid := range history.Pods() {
		versions := history.Of(uid)
		last := versions[len(versions)-1]
		if last.Name == "stubborn" {
			if s := labtest.Container(last, "main").State.Terminated; s == nil || s.ExitCode != 137 {
				t.Errorf("the stubborn one's last status is %s", labtest.Describe(last))
			}
		}
	}
}
