package helm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// workload is a Deployment with one pod on each machine, which reads a Secret and a configMap, a
// Service for it, and on each machine a pod on the host network.
const workload = `
apiVersion: v1
kind: Secret
metadata: {name: app}
stringData: {word: secret-word}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: app}
data: {word: config-word}
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec: {selector: {app: app}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 2
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      nodeSelector: {bowline.io/node: "true"}
      tolerations: [{key: bowline.io/node, operator: Exists}]
      topologySpreadConstraints:
      - {maxSkew: 1, minDomains: 2, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: app}}}
      terminationGracePeriodSeconds: 1
      volumes: [{name: secret, secret: {secretName: app}}]
      containers:
      - name: web
        image: registry.lab/web:v1
        readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
      - name: box
        image: registry.lab/toolbox:lab
        command: [sleep, infinity]
        env: [{name: WORD, valueFrom: {configMapKeyRef: {name: app, key: word}}}]
        volumeMounts: [{name: secret, mountPath: /secret}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: net}
spec:
  selector: {matchLabels: {app: net}}
  template:
    metadata: {labels: {app: net}}
    spec:
      hostNetwork: true
      nodeSelector: {bowline.io/node: "true"}
      tolerations: [{key: bowline.io/node, operator: Exists}]
      terminationGracePeriodSeconds: 1
      containers: [{name: box, image: "registry.lab/toolbox:lab", command: [sh, -c, "echo on the network of $(hostname); sleep infinity"]}]
`

// podOn returns the app's Ready pod on a machine.
func (c *cluster) podOn(ctx context.Context, app, node string) (*v1.Pod, error) {
	list, err := c.lab.Client.CoreV1().Pods(v1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app, FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if p := &list.Items[i]; p.DeletionTimestamp == nil && labtest.IsReady(p) {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no pod of %s is Ready on %s", app, node)
}

// workloadRuns waits until all pods are Ready, and until the Service leads from one machine to the
// pods of both.
func (c *cluster) workloadRuns() {
	c.t.Helper()
	var from *v1.Pod
	var want []string
	c.until("a pod of each app is Ready on each machine", func(ctx context.Context) error {
		want = nil
		for _, m := range machines {
			p, err := c.podOn(ctx, "app", m.name)
			if err != nil {
				return err
			}
			want = append(want, p.Name)
			if m == first {
				from = p
			}
			if _, err = c.podOn(ctx, "net", m.name); err != nil {
				return err
			}
		}
		return nil
	})
	service, err := c.lab.Client.CoreV1().Services(v1.NamespaceDefault).Get(c.t.Context(), "app", metav1.GetOptions{})
	testutil.Must(c.t, err)
	c.approveWhile("the Service leads to the pods of both machines", func(ctx context.Context) error {
		out, err := c.lab.Kubectl(ctx, "exec", from.Name, "-c", "box", "--", "sh", "-c",
			"for i in 1 2 3 4 5 6 7 8; do timeout 2 wget -q -O - http://"+service.Spec.ClusterIP+"/; done")
		if err != nil {
			return err
		}
		for _, name := range want {
			if !strings.Contains(out.Stdout, name) {
				return fmt.Errorf("%s does not answer: %q %q", name, out.Stdout, out.Stderr)
			}
		}
		return nil
	})
}

// reached checks that the pods of a machine are reached in the way of its exposure, and that they
// see the objects that they name.
func (c *cluster) reached(m machine) {
	c.t.Helper()
	node, err := c.lab.Client.CoreV1().Nodes().Get(c.t.Context(), m.name, metav1.GetOptions{})
	testutil.Must(c.t, err)
	own := c.lab.Host(m.name).IP
	for _, a := range node.Status.Addresses {
		if a.Type == v1.NodeInternalIP && (a.Address == own) != (m.exposure == "host") {
			c.t.Errorf("%s is reached at %s; its own address is %s, its kubeletExposure %s", m.name, a.Address, own, m.exposure)
		}
	}
	app, err := c.podOn(c.t.Context(), "app", m.name)
	testutil.Must(c.t, err)
	net, err := c.podOn(c.t.Context(), "net", m.name)
	testutil.Must(c.t, err)
	if net.Status.PodIP != own || net.Status.HostIP != own {
		c.t.Errorf("on the network of %s, %s, the pod is %s on %s", m.name, own, net.Status.PodIP, net.Status.HostIP)
	}
	for _, ask := range []struct {
		want string
		args []string
	}{
		{"secret-word config-word", []string{"exec", app.Name, "-c", "box", "--", "sh", "-c", "echo $(cat /secret/word) $WORD"}},
		{app.Name + " serves version", []string{"logs", app.Name, "-c", "web"}},
		{"on the network of " + m.name, []string{"logs", net.Name}},
		{m.name, []string{"exec", net.Name, "--", "hostname"}},
	} {
		c.approveWhile("kubectl "+strings.Join(ask.args, " "), func(ctx context.Context) error {
			out, err := c.lab.Kubectl(ctx, ask.args...)
			if err == nil && (out.Code != 0 || !strings.Contains(out.Stdout, ask.want)) {
				err = fmt.Errorf("%q %q, want %q", out.Stdout, out.Stderr, ask.want)
			}
			return err
		})
	}
}

// approveWhile waits for a request that the API server makes to the nodes. Meanwhile it approves
// the nodes' requests for serving certificates, which the lab's API server verifies.
func (c *cluster) approveWhile(what string, condition func(ctx context.Context) error) {
	c.t.Helper()
	c.until(what, func(ctx context.Context) error {
		first := condition(ctx)
		if first == nil {
			return nil
		}
		list, err := c.lab.Client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var names []string
		for _, r := range list.Items {
			if r.Spec.SignerName == "kubernetes.io/kubelet-serving" && len(r.Status.Conditions) == 0 {
				names = append(names, r.Name)
			}
		}
		if len(names) == 0 {
			return first
		}
		out, err := c.lab.Kubectl(ctx, append([]string{"certificate", "approve"}, names...)...)
		if err == nil && out.Code != 0 {
			err = errors.New(out.Stderr)
		}
		return errors.Join(first, err)
	})
}
