package twin

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// scenarios returns the scenarios of all kinds. The containers' actions take seconds, so that a
// node that polls each second sees them.
func scenarios() []scenario {
	return slices.Concat(probes(), hooks(), orders(), restarts(), images(), objects(), deletions(), resizes(), rejections(), others())
}

// Parts that many pods are made of.
const (
	sleeper = `image: $TOOLBOX, command: [sleep, "1000"]`
	// stubborn ends only by SIGKILL.
	stubborn = `image: $TOOLBOX, command: [sh, -c, "trap '' TERM; while :; do sleep 1; done"]`
	never    = "restartPolicy: Never\n"
)

// script is a container that runs a script.
func script(lines string) string { return fmt.Sprintf(`image: $TOOLBOX, command: [sh, -c, %q]`, lines) }

// one is a pod with one container, called main.
func one(container string) string { return "containers: [{name: main, " + container + "}]\n" }

// probes: each handler, passing and failing, of each kind.
func probes() (all []scenario) {
	handlers := []struct{ name, passes, fails string }{
		{"exec", `exec: {command: [cat, /proc/uptime]}`, `exec: {command: [sh, -c, "echo not well; exit 3"]}`},
		{"http", `httpGet: {path: /healthz, port: 8080}`, `httpGet: {path: /none, port: 8080}`},
		{"tcp", `tcpSocket: {port: 8080}`, `tcpSocket: {port: 81}`},
		{"grpc", `grpc: {port: 9000}`, `grpc: {port: 9000, service: none}`},
	}
	for _, h := range handlers {
		for _, kind := range []string{"startup", "readiness", "liveness"} {
			pod := func(handler string) string {
				server := `image: $WEB, env: [{name: GRPC_PORT, value: "9000"}]`
				if h.name == "exec" {
					server = sleeper
				}
				return one(server + ", " + kind + "Probe: {" + handler + ", initialDelaySeconds: 2, periodSeconds: 2, failureThreshold: 2}")
			}
			if h.name == "exec" {
			}
			name := kind + "-" + h.name
			all = append(all, scenario{name: name + "-passes", spec: pod(h.passes), steps: []step{ready, quiet}})
			fails := []step{restarted("main", 1), watched(time.Second)}
			if kind == "readiness" {
				fails = []step{running("main"), watched(8 * time.Second)}
			}
			all = append(all, scenario{name: name + "-fails", spec: pod(h.fails), steps: fails})
		}
	}
	return append(all,
		// When stopped, it exits with 0, which must not complete the pod.
		scenario{name: "liveness-onfailure-fails", spec: "restartPolicy: OnFailure\n" + one(script("trap 'exit 0' TERM; sleep inf & wait")+
			`, livenessProbe: {exec: {command: [cat, /none]}, initialDelaySeconds: 2, periodSeconds: 2, failureThreshold: 2}`),
			steps: []step{restarted("main", 1), watched(time.Second)}},
		scenario{name: "readiness-comes-and-goes", spec: one(`image: $TOOLBOX, command: [sh, -c, "touch /ok; sleep 8; rm /ok; sleep 1000"],
  readinessProbe: {exec: {command: [cat, /ok]}, periodSeconds: 1, failureThreshold: 1}`),
			steps: []step{ready, condition(v1.PodReady, v1.ConditionFalse), quiet}},
		scenario{name: "readiness-exec-late", spec: one(sleeper + `, readinessProbe: {exec: {command: [sleep, "5"]}, initialDelaySeconds: 2, periodSeconds: 3, timeoutSeconds: 1}`),
			steps: []step{running("main"), watched(9 * time.Second)}},
	)
}

func hooks() []scenario {
	hook := func(name, kind, handler string, grace int) scenario {
		return scenario{name: name, spec: fmt.Sprintf("terminationGracePeriodSeconds: %d\n", grace) +
			one(sleeper+", lifecycle: {"+kind+": {"+handler+"}}"), steps: []step{ready, quiet}}
	}
	failing := hook("poststart-fails", "postStart", `exec: {command: [sh, -c, "echo no; exit 4"]}`, 2)
	failing.steps = []step{ended("main", 1), watched(3 * time.Second)}
	refused := hook("poststart-http-refused", "postStart", `httpGet: {port: 81, path: /}`, 2)
	refused.steps = failing.steps
	return []scenario{
		hook("poststart-slow", "postStart", `exec: {command: [sleep, "4"]}`, 2), failing, refused,
		hook("poststart-sleeps", "postStart", `sleep: {seconds: 3}`, 5),
		hook("prestop-slow", "preStop", `exec: {command: [sleep, "4"]}`, 20),
		hook("prestop-fails", "preStop", `exec: {command: [sh, -c, "echo no; exit 4"]}`, 10),
		hook("prestop-http-refused", "preStop", `httpGet: {port: 81, path: /}`, 10),
		hook("prestop-too-slow", "preStop", `exec: {command: [sleep, "60"]}`, 4),
		hook("prestop-sleeps", "preStop", `sleep: {seconds: 3}`, 10),
	}
}

// orders covers the order of init containers and sidecars.
func orders() []scenario {
	first := func(container string) string { return "initContainers:\n- {name: first, " + container + "}\n" }
	return []scenario{
		{name: "init-two", spec: first(script("sleep 3")) + "- {name: second, " + script("sleep 3") + "}\n" + one(sleeper), steps: []step{ready, quiet}},
		{name: "init-fails-never", spec: never + first(script("sleep 3; exit 2")) + one(sleeper), steps: []step{phase(v1.PodFailed), quiet}},
		{name: "init-fails-always", spec: first(script("sleep 3; exit 2")) + one(sleeper), steps: []step{restarted("first", 2)}},
		{name: "init-fails-once", spec: "volumes: [{name: v, emptyDir: {}}]\n" +
			first(script("sleep 2; [ -e /v/x ] && exit 0; touch /v/x; exit 1")+", volumeMounts: [{name: v, mountPath: /v}]") + one(sleeper), steps: []step{ready, quiet}},
		{name: "sidecar-and-job", spec: never + first(sleeper+", restartPolicy: Always") + one(script("sleep 4")), steps: []step{phase(v1.PodSucceeded), quiet}},
		{name: "sidecar-started-late", spec: first(sleeper+`, restartPolicy: Always, startupProbe: {exec: {command: [cat, /proc/uptime]}, initialDelaySeconds: 4, periodSeconds: 1}`) +
			one(sleeper), steps: []step{ready, quiet}},
		{name: "sidecar-never-started", spec: first(sleeper+`, restartPolicy: Always, startupProbe: {exec: {command: [sh, -c, "exit 3"]}, initialDelaySeconds: 2, periodSeconds: 2, failureThreshold: 2}`) +
			one(sleeper), steps: []step{restarted("first", 1), watched(time.Second)}},
		{name: "sidecar-ends", spec: first(script("sleep 6; exit 5")+", restartPolicy: Always") + one(sleeper), steps: []step{restarted("first", 1), watched(2 * time.Second)}},
		{name: "sidecars-two-deleted", spec: "terminationGracePeriodSeconds: 20\n" + first(script("trap 'sleep 2; exit 0' TERM; while :; do sleep 1; done")+", restartPolicy: Always") +
			"- {name: second, " + script("trap 'sleep 2; exit 0' TERM; while :; do sleep 1; done") + ", restartPolicy: Always}\n" +
			one(script("trap 'sleep 2; exit 0' TERM; while :; do sleep 1; done")), steps: []step{ready, quiet}},
		{name: "sidecar-between-inits", spec: first(script("sleep 2")) + "- {name: side, " + sleeper + ", restartPolicy: Always}\n- {name: last, " + script("sleep 2") + "}\n" + one(sleeper),
			steps: []step{ready, quiet}},
	}
}

func restarts() (all []scenario) {
	for _, policy := range []string{"Always", "OnFailure", "Never"} {
		for code := range 2 {
			s := scenario{name: fmt.Sprintf("restart-%s-exit-%d", map[string]string{"Always": "always", "OnFailure": "onfailure", "Never": "never"}[policy], code),
				spec: "restartPolicy: " + policy + "\n" + one(script(fmt.Sprintf("sleep 3; exit %d", code)))}
			switch {
			case policy == "Always" || policy == "OnFailure" && code == 1:
				s.steps = []step{restarted("main", 2)}
			case code == 0:
				s.steps = []step{phase(v1.PodSucceeded), quiet}
			default:
				s.steps = []step{phase(v1.PodFailed), quiet}
			}
			all = append(all, s)
		}
	}
	return append(all,
		scenario{name: "two-containers-one-fails", spec: never + "containers:\n- {name: main, " + script("sleep 3; exit 1") + "}\n- {name: other, " + script("sleep 7") + "}\n",
			steps: []step{phase(v1.PodFailed), quiet}},
		scenario{name: "two-containers-one-crashes", spec: "containers:\n- {name: main, " + script("sleep 3; exit 1") + "}\n- {name: other, " + sleeper + "}\n",
			steps: []step{ended("main", 1), watched(3 * time.Second)}},
		scenario{name: "oom", spec: never + one(script("sleep 3; alloc 64M")+", resources: {limits: {memory: 20Mi}}"), steps: []step{phase(v1.PodFailed), quiet}},
		scenario{name: "oom-again", spec: one(script("sleep 3; alloc 64M") + ", resources: {limits: {memory: 20Mi}}"), steps: []step{ended("main", 1), watched(3 * time.Second)}},
		scenario{name: "command-missing", spec: one(`image: $TOOLBOX, command: [/nothing]`), steps: []step{ended("main", 1), watched(3 * time.Second)}},
		scenario{name: "command-missing-never", spec: never + one(`image: $TOOLBOX, command: [/nothing]`), steps: []step{phase(v1.PodFailed), quiet}},
		scenario{name: "restart-rules", spec: never + one(script("sleep 3; exit 42")+`, restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]`),
			steps: []step{restarted("main", 1)}},
		scenario{name: "deadline", spec: never + "activeDeadlineSeconds: 5\n" + one(sleeper), steps: []step{phase(v1.PodFailed), quiet}},
		scenario{name: "deadline-always", spec: "activeDeadlineSeconds: 5\n" + one(stubborn), steps: []step{phase(v1.PodFailed), quiet}},
		scenario{name: "deadline-image-missing", spec: "activeDeadlineSeconds: 6\n" + one(`image: "registry.lab/missing:v1"`), steps: []step{phase(v1.PodFailed), quiet}},
		scenario{name: "deadline-after-success", spec: never + "activeDeadlineSeconds: 20\n" + one(script("sleep 2")), steps: []step{phase(v1.PodSucceeded), watched(20 * time.Second)}},
		scenario{name: "message-file", spec: never + one(script("sleep 2; echo farewell >/dev/termination-log; exit 1")), steps: []step{phase(v1.PodFailed), quiet}},
		scenario{name: "message-log", spec: never + one(script("sleep 2; echo last words; exit 1")+", terminationMessagePolicy: FallbackToLogsOnError"), steps: []step{phase(v1.PodFailed), quiet}},
	)
}

func images() []scenario {
	return []scenario{
		{name: "image-missing", spec: one(`image: "registry.lab/missing:v1"`), steps: []step{waits("main", "ImagePullBackOff"), watched(4 * time.Second)}},
		{name: "image-invalid", spec: one(`image: "registry.lab/Not:a:Name"`), steps: []step{waits("main", "InvalidImageName"), watched(8 * time.Second)}},
		{name: "image-never", spec: one(`image: "registry.lab/missing:v1", imagePullPolicy: Never`), steps: []step{waits("main", "ErrImageNeverPull"), watched(8 * time.Second)}},
		{name: "image-always", spec: one(sleeper + `, imagePullPolicy: Always`), steps: []step{ready, quiet}},
		{name: "image-missing-of-init", spec: "initContainers: [{name: first, image: \"registry.lab/missing:v1\"}]\n" + one(sleeper), steps: []step{waits("first", "ImagePullBackOff"), watched(4 * time.Second)}},
		{name: "image-missing-of-one", spec: "containers:\n- {name: main, image: \"registry.lab/missing:v1\"}\n- {name: other, " + sleeper + "}\n", steps: []step{waits("main", "ImagePullBackOff"), running("other"), watched(4 * time.Second)}},
	}
}

// objects covers objects that pods name: missing, then made.
func objects() []scenario {
	volume := func(source string) string {
		return "volumes: [{name: v, " + source + "}]\n" + one(sleeper+", volumeMounts: [{name: v, mountPath: /v}]")
	}
	return []scenario{
		{name: "configmap-volume-comes", spec: volume("configMap: {name: late-volume}"),
			steps: []step{waits("main", "ContainerCreating"), watched(6 * time.Second), configMap("late-volume", map[string]string{"k": "v"}), ready, quiet}},
		{name: "configmap-env-comes", spec: one(sleeper + ", envFrom: [{configMapRef: {name: late-env}}]"),
			steps: []step{waits("main", "CreateContainerConfigError"), watched(6 * time.Second), configMap("late-env", map[string]string{"k": "v"}), ready, quiet}},
		{name: "configmap-key-missing", spec: one(sleeper + ", env: [{name: E, valueFrom: {configMapKeyRef: {name: kube-root-ca.crt, key: none}}}]"),
			steps: []step{waits("main", "CreateContainerConfigError"), watched(6 * time.Second)}},
		{name: "secret-missing", spec: volume("secret: {secretName: none}"), steps: []step{waits("main", "ContainerCreating"), watched(8 * time.Second)}},
		{name: "configmap-optional", spec: volume("configMap: {name: none, optional: true}"), steps: []step{ready, quiet}},
		{name: "hostpath-missing", spec: volume("hostPath: {path: /none, type: Directory}"), steps: []step{waits("main", "ContainerCreating"), watched(8 * time.Second)}},
		{name: "claim-missing", spec: volume("persistentVolumeClaim: {claimName: none}"), steps: []step{waits("main", "ContainerCreating"), watched(8 * time.Second)}},
		{name: "root-not-allowed", spec: one(sleeper + ", securityContext: {runAsNonRoot: true}"), steps: []step{waits("main", "CreateContainerConfigError"), watched(6 * time.Second)}},
		{name: "subpath-expr-bad", spec: "volumes: [{name: v, emptyDir: {}}]\n" + one(sleeper+`, volumeMounts: [{name: v, mountPath: /v, subPathExpr: "$(NONE)"}]`),
			steps: []step{waits("main", "CreateContainerConfigError"), watched(6 * time.Second)}},
	}
}

// deletions covers deletion at each stage.
func deletions() []scenario {
	return []scenario{
		{name: "deleted-without-image", spec: one(`image: "registry.lab/missing:v1"`), steps: []step{waits("main", "ImagePullBackOff"), watched(2 * time.Second)}},
		{name: "deleted-without-volume", spec: "volumes: [{name: v, configMap: {name: none}}]\n" + one(sleeper+", volumeMounts: [{name: v, mountPath: /v}]"), steps: []step{waits("main", "ContainerCreating"), watched(5 * time.Second)}},
		{name: "deleted-in-init", spec: "initContainers: [{name: first, " + sleeper + "}]\n" + one(sleeper), steps: []step{running("first"), quiet}},
		{name: "deleted-in-prestop-by-force", spec: "terminationGracePeriodSeconds: 60\n" + one(sleeper+`, lifecycle: {preStop: {exec: {command: [sleep, "50"]}}}`),
			steps: []step{ready, quiet, remove(-1), watched(3 * time.Second), remove(0)}},
		{name: "deleted-in-crash", spec: one(script("sleep 3; exit 1")), steps: []step{ended("main", 1), watched(3 * time.Second)}},
		{name: "deleted-stubborn", spec: "terminationGracePeriodSeconds: 4\n" + one(stubborn), steps: []step{ready, quiet}},
		{name: "deleted-stubborn-by-force", spec: "terminationGracePeriodSeconds: 60\n" + one(stubborn), steps: []step{ready, quiet, remove(-1), watched(3 * time.Second), remove(0)}},
		{name: "deleted-sooner", spec: "terminationGracePeriodSeconds: 60\n" + one(stubborn), steps: []step{ready, quiet, remove(-1), watched(3 * time.Second), remove(2)}},
		{name: "deleted-at-once", spec: one(sleeper), steps: []step{ready, quiet, remove(0)}},
		{name: "deleted-failed", spec: never + one(script("sleep 2; exit 1")), steps: []step{phase(v1.PodFailed), quiet}},
		{name: "deleted-exits-zero", spec: "terminationGracePeriodSeconds: 20\n" + one(script("trap 'sleep 2; exit 0' TERM; while :; do sleep 1; done")), steps: []step{ready, quiet}},
		{name: "deleted-exits-three", spec: never + "terminationGracePeriodSeconds: 20\n" + one(script("trap 'sleep 2; exit 3' TERM; while :; do sleep 1; done")), steps: []step{ready, quiet}},
	}
}

func resizes() []scenario {
	sized := sleeper + ", resources: {requests: {cpu: 20m, memory: 20Mi}, limits: {cpu: 40m, memory: 40Mi}}"
	return []scenario{
		{name: "resize-cpu", spec: one(sized), steps: []step{ready, quiet,
			patch(`"containers":[{"name":"main","resources":{"requests":{"cpu":"30m"},"limits":{"cpu":"60m"}}}]`, "resize"), resized("main", "60m", ""), quiet}},
		{name: "resize-memory-restarts", spec: one(sized + ", resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]"), steps: []step{ready, quiet,
			patch(`"containers":[{"name":"main","resources":{"limits":{"memory":"60Mi"}}}]`, "resize"), resized("main", "", "60Mi"), restarted("main", 1), quiet}},
		{name: "resize-deferred", spec: one(sized), steps: []step{ready, quiet,
			resizeToWholeNode, condition(v1.PodResizePending, v1.ConditionTrue), quiet}},
	}
}

// rejections covers pods that the node does not admit.
func rejections() []scenario {
	failed := []step{phase(v1.PodFailed), quiet}
	return []scenario{
		{name: "rejected-cpu", spec: one(sleeper + `, resources: {requests: {cpu: "500"}}`), steps: failed},
		{name: "rejected-memory", spec: one(sleeper + `, resources: {requests: {memory: 900Gi}}`), steps: failed},
		{name: "rejected-selector", spec: "nodeSelector: {none: such}\n" + one(sleeper), steps: failed},
		{name: "rejected-sysctl", spec: "securityContext: {sysctls: [{name: kernel.msgmax, value: \"65536\"}]}\n" + one(sleeper), steps: failed},
		{name: "rejected-os", spec: "os: {name: windows}\n" + one(sleeper), steps: failed},
	}
}

func others() []scenario {
	static := "restartPolicy: Always\n" + one(sleeper)
	return []scenario{
		{name: "runs", spec: one(sleeper), steps: []step{ready, quiet}},
		{name: "guaranteed", spec: one(sleeper + ", resources: {limits: {cpu: 20m, memory: 20Mi}}"), steps: []step{ready, quiet}},
		{name: "host-network", spec: "hostNetwork: true\n" + one(sleeper), steps: []step{ready, quiet}},
		{name: "users", spec: "securityContext: {runAsUser: 1000, runAsGroup: 2000, fsGroup: 3000, supplementalGroups: [4000]}\n" + one(sleeper), steps: []step{ready, quiet}},
		{name: "readiness-gate", spec: "readinessGates: [{conditionType: example.com/gate}]\n" + one(sleeper),
			steps: []step{condition(v1.ContainersReady, v1.ConditionTrue), quiet, gate("example.com/gate", "True"), ready, quiet}},
		{name: "ephemeral", spec: one(sleeper), steps: []step{ready, quiet,
			patch(`"ephemeralContainers":[{"name":"debug","image":"registry.lab/toolbox:lab","command":["sh","-c","sleep 3; exit 6"]}]`, "ephemeralcontainers"), terminated("debug"), quiet}},
		{name: "image-changed", spec: one(`image: $WEB`), steps: []step{ready, quiet, patch(`"containers":[{"name":"main","image":"registry.lab/web:v2"}]`), restarted("main", 1), quiet}},
		{name: "empty-dir-too-full", spec: "volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]\n" + one(script("sleep 2; fallocate -l 8M /v/x; sleep 1000")+", volumeMounts: [{name: v, mountPath: /v}]"),
			steps: []step{phase(v1.PodFailed), quiet}},
		{name: "static", file: true, spec: static, steps: []step{ready, quiet}},
		{name: "static-crashes", file: true, spec: one(script("sleep 3; exit 1")), steps: []step{ended("main", 1), watched(3 * time.Second)}},
		{name: "static-changed", file: true, spec: static, steps: []step{ready, quiet, write("restartPolicy: Always\nterminationGracePeriodSeconds: 3\n" + one(`image: $WEB`)),
			until("the other image", func(p *v1.Pod) bool { return p.Spec.Containers[0].Image == "registry.lab/web:v1" }), ready, quiet}},
	}
}
