package monitoring

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// metricsServerPort is where metrics-server listens on the machine.
const metricsServerPort = "4443"

// startMetricsServer runs metrics-server on the machine, with the flags of its manifests, and
// registers its API.
func (r *rig) startMetricsServer() {
	r.run("metrics-server", r.tool("metrics-server"),
		"--kubeconfig="+r.kubeconfig, "--authentication-kubeconfig="+r.kubeconfig, "--authorization-kubeconfig="+r.kubeconfig,
		"--bind-address="+r.gateway, "--secure-port="+metricsServerPort, "--cert-dir="+r.dir,
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname", "--kubelet-use-node-status-port",
		"--kubelet-certificate-authority="+r.ca, "--metric-resolution=15s")
	r.apply(r.t, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {ports: [{name: https, port: 443, targetPort: %[2]s}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: metrics-server, namespace: kube-system, labels: {kubernetes.io/service-name: metrics-server}}
addressType: IPv4
ports: [{name: https, port: %[2]s, protocol: TCP}]
endpoints: [{addresses: [%[1]s], conditions: {ready: true}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
  service: {name: metrics-server, namespace: kube-system}
`, r.gateway, metricsServerPort))
}

// testTop checks kubectl top for nodes and for pods on both nodes.
func (r *rig) testTop(t *testing.T) {
	until(t, 3*time.Minute, "kubectl top to show both nodes and the pods on them", func(ctx context.Context) error {
		nodes, err := r.top(ctx, "nodes")
		if err != nil {
			return err
		}
		pods, err := r.top(ctx, "pods", "-n", namespace)
		if err != nil {
			return err
		}
		for _, name := range []string{localHost, remoteHost} {
			if nodes[name] == nil {
				return fmt.Errorf("kubectl top nodes does not show %s: %v", name, nodes)
			}
			if pods["work-"+name] == nil {
				return fmt.Errorf("kubectl top pods does not show work-%s: %v", name, pods)
			}
		}
		// Each of these pods spins.
		for _, name := range []string{localHost, remoteHost} {
			if cpu, err := strconv.Atoi(strings.TrimSuffix(pods["work-"+name][1], "m")); err != nil || cpu < 20 {
				return fmt.Errorf("work-%s uses %s of CPU, want at least 20m", name, pods["work-"+name][1])
			}
		}
		t.Logf("nodes: %v", nodes)
		t.Logf("pods: %v", pods)
		return nil
	})
}

// top returns the fields of the rows of kubectl top, by name.
func (r *rig) top(ctx context.Context, args ...string) (map[string][]string, error) {
	out, err := r.lab.Kubectl(ctx, append(append([]string{"top"}, args...), "--no-headers")...)
	if err != nil || out.Code != 0 {
		return nil, fmt.Errorf("kubectl top %v: %v: %s", args, err, out.Stderr)
	}
	rows := map[string][]string{}
	for line := range strings.Lines(out.Stdout) {
		if fields := strings.Fields(line); len(fields) > 1 {
			rows[fields[0]] = fields
		}
	}
	return rows, nil
}

// testAutoscaler checks that a HorizontalPodAutoscaler scales a Deployment up under load, and down
// again.
func (r *rig) testAutoscaler(t *testing.T) {
	r.apply(t, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: served, namespace: monitored}
spec:
  selector: {matchLabels: {app: served}}
  template:
    metadata: {labels: {app: served}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: web, image: registry.lab/web:v1, resources: {requests: {cpu: 4m, memory: 16Mi}, limits: {cpu: 100m, memory: 64Mi}}}
---
apiVersion: v1
kind: Service
metadata: {name: served, namespace: monitored}
spec: {selector: {app: served}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: served, namespace: monitored}
spec:
  minReplicas: 1
  maxReplicas: 3
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: served}
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: load, namespace: monitored}
spec:
  replicas: 1
  selector: {matchLabels: {app: load}}
  template:
    metadata: {labels: {app: load}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: load
        image: registry.lab/toolbox:lab
        resources: {requests: {cpu: 20m, memory: 16Mi}, limits: {cpu: 500m, memory: 64Mi}}
        command: [sh, -c, "while :; do for i in 1 2 3 4 5 6 7 8; do wget -q -O /dev/null http://served & done; wait; done"]
`)
	replicas := func(want func(int32) bool, what string) {
		t.Helper()
		began := time.Now()
		until(t, 6*time.Minute, what, func(ctx context.Context) error {
			d, err := r.lab.Client.AppsV1().Deployments(namespace).Get(ctx, "served", metav1.GetOptions{})
			if err == nil && !want(d.Status.ReadyReplicas) {
				err = fmt.Errorf("%d replicas are ready", d.Status.ReadyReplicas)
			}
			return err
		})
		t.Logf("%s: after %s", what, time.Since(began).Round(time.Second))
	}
	replicas(func(n int32) bool { return n == 3 }, "the autoscaler to scale up to 3 replicas")
	if out, err := r.lab.Kubectl(t.Context(), "-n", namespace, "scale", "deployment/load", "--replicas=0"); err != nil || out.Code != 0 {
		t.Fatalf("stop the load: %v %s", err, out.Stderr)
	}
	replicas(func(n int32) bool { return n == 1 }, "the autoscaler to scale down to 1 replica")
}
