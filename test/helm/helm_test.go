package helm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/syncloop/owner"
	"github.com/bowline-k8s/bowline/test/labtest"
)

const (
	namespace = "bowline"
	far       = "host2"
	// patience bounds what helm waits for: it is long, as nothing here measures time.
	patience = "6m"
)

// cluster is a lab whose first host is a node already.
type cluster struct {
	t       *testing.T
	lab     *labtest.Lab
	bowline *labtest.Bowline
	helm    string // the program
	values  string // the file
}

// TestChart goes through a chart's life: installed, tried by helm test, changed, rolled
// back, and uninstalled.
func TestChart(t *testing.T) {
	if os.Getenv("BOWLINE_E2E") != "1" {
		t.Skip("set BOWLINE_E2E=1, BOWLINE_HELM and BOWLINE_IMAGE to install the chart in a lab (root); hack/test-machine.sh helm does")
	}
	c := newCluster(t)
	began := time.Now()
	step := func(what string) {
		t.Helper()
		t.Logf("%5.1f s  %s", time.Since(began).Seconds(), what)
	}

	c.install()
	step("installed")
	c.hostIs("NodeReady")
	step("the far node is Ready")
	node := c.node()
	if node.Spec.ProviderID != "bowline://"+far || node.Labels["node.kubernetes.io/exclude-from-external-load-balancers"] != "true" {
		t.Errorf("a cloud controller takes it for its own: providerID %q, labels %v", node.Spec.ProviderID, node.Labels)
	}
	c.mayBeNoOtherNode()

	c.kubectl("apply", "-f", c.file("pod.yaml", pod))
	must(t, c.podRuns("app"))
	step("a pod runs on it")
	c.execReaches("app")
	step("exec reaches it")

	c.run(c.helm, "test", "bowline", "-n", namespace, "--timeout", patience)
	step("helm test passes")
	c.replicaEnds("app")
	step("a replica has ended, and the other drives the node")

	c.link(false)
	if out, err := c.command(c.helm, "test", "bowline", "-n", namespace, "--timeout", "15s"); err == nil {
		t.Errorf("helm test passes while the machine cannot be reached:\n%s", out)
	}
	c.link(true)
	c.kubectl("delete", "pod", "-n", namespace, "-l", "app.kubernetes.io/name=bowline-test", "--timeout=3m")
	step("helm test fails while the link is cut")

	// What a chart has no more is taken back before the change is made; a rollback brings
	// it back.
	c.upgrade("--set-json", "hosts=[]")
	c.nothingIsLeft()
	step("upgraded without the host, which is drained")
	c.byHand()
	step("made by kubectl, with the rights that docs/helm.md gives, and deleted")
	c.run(c.helm, "rollback", "bowline", "1", "-n", namespace, "--wait", "--timeout", patience)
	c.hostIs("NodeReady")
	step("rolled back, and Ready again")
	c.kubectl("apply", "-f", c.file("pod.yaml", pod))
	must(t, c.podRuns("app"))

	c.run(c.helm, "uninstall", "bowline", "-n", namespace, "--wait", "--timeout", patience)
	step("uninstalled")
	c.nothingIsLeft()
	must(t, labtest.Until(t.Context(), 2*time.Minute, "nothing of the chart is left", func(ctx context.Context) error {
		left := c.kubectl("get", "clusterroles,clusterrolebindings,all,configmaps,roles,rolebindings,serviceaccounts,hosts", "-A", "-l", "app.kubernetes.io/instance=bowline", "-o", "name") +
			c.kubectl("get", "secrets", "-n", namespace, "-l", "owner=helm", "-o", "name") +
			c.kubectl("get", "leases", "-n", namespace, "-o", "name")
		if left != "" {
			return errors.New(left)
		}
		return nil
	}))
	if _, err := c.lab.NodeReady(t.Context(), "host1", v1.ConditionTrue, time.Minute); err != nil {
		t.Error(err)
	}
}

const pod = `
apiVersion: v1
kind: Pod
metadata: {name: app}
spec:
  nodeSelector: {bowline.io/node: "true"}
  tolerations: [{key: bowline.io/node, operator: Exists}]
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "registry.lab/toolbox:lab", command: [sleep, infinity]}]
`

func newCluster(t *testing.T) *cluster {
	for _, key := range []string{"BOWLINE_HELM", "BOWLINE_IMAGE"} {
		if os.Getenv(key) == "" {
			t.Fatalf("%s is not set", key)
		}
	}
	// Sockets are below the directory: its path must be short.
	dir, err := os.MkdirTemp("", "bowline-helm")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	c := &cluster{t: t, helm: os.Getenv("BOWLINE_HELM")}
	c.lab, err = labtest.Start(t.Context(), filepath.Join(dir, "lab"), 2)
	must(t, err)
	t.Cleanup(func() { must(t, c.lab.Down(context.Background())) })
	out, err := c.lab.Command(t.Context(), "load-image", "bowline:test", os.Getenv("BOWLINE_IMAGE")).CombinedOutput()
	if err != nil {
		t.Fatalf("load the image: %v\n%s", err, out)
	}

	c.bowline = &labtest.Bowline{Lab: c.lab, Host: "host1"}
	end, err := c.bowline.Keep(func(code int) { t.Errorf("host1's Bowline ended with %d\n%s", code, c.bowline.LogTail(4000)) })
	must(t, err)
	t.Cleanup(func() { end(false) })
	if _, err := c.lab.NodeReady(t.Context(), "host1", v1.ConditionTrue, 3*time.Minute); err != nil {
		t.Fatalf("%v\n%s", err, c.bowline.LogTail(4000))
	}

	c.kubectl("create", "namespace", namespace)
	c.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
	h := c.lab.Host(far)
	c.kubectl("create", "secret", "generic", far, "-n", namespace, "--type=kubernetes.io/ssh-auth", "--from-file=ssh-privatekey="+h.SSH.Key)
	hostKey, err := os.ReadFile(h.SSH.HostKey)
	must(t, err)
	c.values = c.file("values.yaml", fmt.Sprintf(`
image: {repository: registry.lab/bowline, tag: test}
replicas: 2
serverTLSBootstrap: true
verbosity: 2
hosts:
- name: %s
  endpoint: ssh://%s@%s%s
  hostKeys: [%q]
`, far, h.SSH.User, h.SSH.Address, h.ContainerdSocket, strings.TrimSpace(string(hostKey))))
	return c
}

func (c *cluster) chart() string {
	path, err := filepath.Abs("../../charts/bowline")
	must(c.t, err)
	return path
}

func (c *cluster) install() {
	c.t.Helper()
	c.run(c.helm, "install", "bowline", c.chart(), "-n", namespace, "-f", c.values, "--wait", "--timeout", patience)
}

func (c *cluster) upgrade(more ...string) {
	c.t.Helper()
	c.run(append([]string{c.helm, "upgrade", "bowline", c.chart(), "-n", namespace, "-f", c.values, "--wait", "--timeout", patience}, more...)...)
}

func (c *cluster) command(argv ...string) (string, error) {
	cmd := exec.CommandContext(c.t.Context(), argv[0], argv[1:]...)
	home := filepath.Join(c.lab.Dir, "home")
	cmd.Env = append(os.Environ(), "HOME="+home, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+c.lab.Status.Cluster.AdminKubeconfig)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// run is a command that has to succeed.
func (c *cluster) run(argv ...string) string {
	c.t.Helper()
	out, err := c.command(argv...)
	if err != nil {
		c.t.Fatalf("%s: %v\n%s\n%s", strings.Join(argv, " "), err, out, c.state())
	}
	return out
}

func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.lab.Kubectl(c.t.Context(), args...)
	must(c.t, err)
	if out.Code != 0 {
		c.t.Fatalf("kubectl %s: %s%s\n%s", strings.Join(args, " "), out.Stdout, out.Stderr, c.state())
	}
	return out.Stdout
}

// state is what there is to see of the chart, for a test that has failed.
func (c *cluster) state() string {
	var b strings.Builder
	for _, args := range [][]string{
		{"get", "hosts", "-o", "yaml"}, {"get", "nodes", "-o", "wide"}, {"get", "pods", "-A", "-o", "wide"}, {"get", "events", "-n", namespace},
		{"logs", "-n", namespace, "-l", "app.kubernetes.io/name in (bowline,bowline-hook)", "--tail=60"},
	} {
		out, err := c.lab.Kubectl(context.WithoutCancel(c.t.Context()), args...)
		fmt.Fprintf(&b, "$ kubectl %s\n%s%s", strings.Join(args, " "), out.Stdout, out.Stderr)
		if err != nil {
			fmt.Fprintln(&b, err)
		}
	}
	return b.String()
}

func (c *cluster) file(name, content string) string {
	path := filepath.Join(c.lab.Dir, name)
	must(c.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// hostIs waits for the Host to be Ready for a reason.
func (c *cluster) hostIs(reason string) {
	c.t.Helper()
	err := labtest.Until(c.t.Context(), 4*time.Minute, "the Host is "+reason, func(ctx context.Context) error {
		out, err := c.lab.Kubectl(ctx, "get", "host", far, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].reason} {.status.conditions[?(@.type=="Ready")].message}`)
		if err == nil && !strings.HasPrefix(out.Stdout, reason+" ") {
			err = fmt.Errorf("it is %q %s", out.Stdout, out.Stderr)
		}
		return err
	})
	if err != nil {
		c.t.Fatalf("%v\n%s", err, c.state())
	}
}

// replicaEnds deletes the pod of the chart that drives the far machine: the other takes it
// over, and nothing of what runs there is started again.
func (c *cluster) replicaEnds(pod string) {
	c.t.Helper()
	holder := func() string {
		c.t.Helper()
		lease, err := c.lab.Client.CoordinationV1().Leases(namespace).Get(c.t.Context(), "bowline-host-"+far, metav1.GetOptions{})
		must(c.t, err)
		if lease.Spec.HolderIdentity == nil {
			return ""
		}
		name, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
		return name
	}
	container := func() string {
		c.t.Helper()
		p, err := c.lab.PodReady(c.t.Context(), v1.NamespaceDefault, pod, 2*time.Minute)
		must(c.t, err)
		return p.Status.ContainerStatuses[0].ContainerID
	}
	first, before := holder(), container()
	c.kubectl("delete", "pod", "-n", namespace, first, "--timeout=2m")
	must(c.t, labtest.Until(c.t.Context(), 2*time.Minute, "another replica has the machine", func(context.Context) error {
		if now := holder(); now == first || now == "" {
			return fmt.Errorf("it is %q that has it", now)
		}
		return nil
	}))
	c.hostIs("NodeReady")
	if now := container(); now != before {
		c.t.Errorf("the container was %s and is %s", before, now)
	}
	c.execReaches(pod)
}

// link cuts the way to the far machine, in silence, or mends it, and waits until the node
// says so.
func (c *cluster) link(up bool) {
	c.t.Helper()
	verb, want := "-I", v1.ConditionFalse
	if up {
		verb, want = "-D", v1.ConditionTrue
	}
	out, err := c.lab.Exec(c.t.Context(), far, "iptables", "-w", verb, "INPUT", "-p", "tcp", "--dport", "22", "-j", "DROP").CombinedOutput()
	if err != nil {
		c.t.Fatalf("iptables %s: %v: %s", verb, err, out)
	}
	must(c.t, labtest.Until(c.t.Context(), 3*time.Minute, "the node's LinkUp is "+string(want), func(ctx context.Context) error {
		node, err := c.lab.Client.CoreV1().Nodes().Get(ctx, far, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range node.Status.Conditions {
			if cond.Type == "LinkUp" && cond.Status == want {
				return nil
			}
		}
		return errors.New("it is not")
	}))
}

func (c *cluster) node() *v1.Node {
	c.t.Helper()
	node, err := c.lab.Client.CoreV1().Nodes().Get(c.t.Context(), far, metav1.GetOptions{})
	must(c.t, err)
	return node
}

func (c *cluster) podRuns(name string) error {
	p, err := c.lab.PodReady(c.t.Context(), v1.NamespaceDefault, name, 4*time.Minute)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, c.state())
	}
	if p.Spec.NodeName != far {
		return fmt.Errorf("it runs on %s", p.Spec.NodeName)
	}
	return nil
}

// mayBeNoOtherNode: the account is the chart's node, and cannot be the other, nor read a
// Secret that no Host names.
func (c *cluster) mayBeNoOtherNode() {
	c.t.Helper()
	token, err := c.lab.Client.CoreV1().ServiceAccounts(namespace).CreateToken(c.t.Context(), "bowline", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(c.t, err)
	account := rest.AnonymousClientConfig(c.lab.REST)
	account.BearerToken = token.Status.Token
	as := func(user string, groups ...string) kubernetes.Interface {
		config := rest.CopyConfig(account)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
		client, err := kubernetes.NewForConfig(config)
		must(c.t, err)
		return client
	}
	get := func(client kubernetes.Interface, node string) error {
		_, err := client.CoreV1().Nodes().Get(c.t.Context(), node, metav1.GetOptions{})
		return err
	}
	if err := get(as("system:node:"+far, "system:nodes"), far); err != nil {
		c.t.Errorf("it cannot be its own node: %v", err)
	}
	for _, other := range []kubernetes.Interface{as("system:node:host1", "system:nodes"), as("system:node:"+far, "system:masters"), as("lab-admin", "system:masters"), as("system:kube-scheduler")} {
		if err := get(other, "host1"); !apierrors.IsForbidden(err) {
			c.t.Errorf("the account can be somebody else: %v", err)
		}
	}
	_, err = c.lab.Client.CoreV1().Secrets(namespace).Create(c.t.Context(), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "another"}}, metav1.CreateOptions{})
	must(c.t, err)
	if _, err := as("").CoreV1().Secrets(namespace).Get(c.t.Context(), "another", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		c.t.Errorf("the account reads a Secret that no Host names: %v", err)
	}
}

// byHand makes the node of a Host that is not the chart's, and takes it out again.
func (c *cluster) byHand() {
	c.t.Helper()
	docs, err := os.ReadFile("../../docs/helm.md")
	must(c.t, err)
	_, rights, found := strings.Cut(string(docs), "### A Host that is not of the chart")
	_, rights, _ = strings.Cut(rights, "```yaml\n")
	rights, _, closed := strings.Cut(rights, "```")
	if !found || !closed {
		c.t.Fatal("docs/helm.md does not say what a Host beside the chart needs")
	}
	values, err := os.ReadFile(c.values)
	must(c.t, err)
	_, spec, _ := strings.Cut(string(values), "  endpoint:")
	host := fmt.Sprintf("apiVersion: bowline.io/v1alpha1\nkind: Host\nmetadata: {name: %s}\nspec:\n  credentialsSecretRef: {name: %s}\n  endpoint:%s", far, far, spec)
	c.kubectl("apply", "-f", c.file("host.yaml", host))
	c.hostIs("Credentials") // which the account may not read yet
	file := c.file("rights.yaml", strings.ReplaceAll(rights, "box-2", far))
	c.kubectl("apply", "-f", file)
	c.hostIs("NodeReady")
	c.kubectl("delete", "host", far, "--timeout=4m")
	c.kubectl("delete", "-f", file)
	c.nothingIsLeft()
}

// execReaches waits for the API server to reach a pod by the process that drives its node.
// What that asked for to serve with is approved meanwhile: the lab's API server checks it.
func (c *cluster) execReaches(pod string) {
	c.t.Helper()
	err := labtest.Until(c.t.Context(), 3*time.Minute, "the API server reaches the pod by the chart's process", func(ctx context.Context) error {
		out, err := c.lab.Kubectl(ctx, "get", "csr", "-o", `jsonpath={range .items[?(@.spec.username=="system:node:`+far+`")]}{.metadata.name} {end}`)
		if err != nil {
			return err
		}
		names := strings.Fields(out.Stdout)
		if len(names) == 0 {
			return errors.New("the node has not asked for a serving certificate yet")
		}
		if out, err = c.lab.Kubectl(ctx, append([]string{"certificate", "approve"}, names...)...); err != nil || out.Code != 0 {
			return fmt.Errorf("approve %v: %v %s", names, err, out.Stderr)
		}
		out, err = c.lab.Kubectl(ctx, "exec", pod, "--", "hostname")
		if err == nil && (out.Code != 0 || strings.TrimSpace(out.Stdout) != pod) {
			err = fmt.Errorf("kubectl exec: %q %q", out.Stdout, out.Stderr)
		}
		return err
	})
	if err != nil {
		c.t.Fatalf("%v\n%s", err, c.state())
	}
}

// nothingIsLeft of the far node, in the cluster and on the machine.
func (c *cluster) nothingIsLeft() {
	c.t.Helper()
	if _, err := c.lab.Client.CoreV1().Nodes().Get(c.t.Context(), far, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.t.Errorf("the node: %v", err)
	}
	if _, err := c.lab.Client.CoreV1().Pods(v1.NamespaceDefault).Get(c.t.Context(), "app", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.t.Errorf("its pod: %v", err)
	}
	runtime, err := c.lab.CRI(c.t.Context(), far)
	must(c.t, err)
	defer runtime.Close()
	containers, err := runtime.ListContainers(c.t.Context(), &runtimeapi.ContainerFilter{})
	must(c.t, err)
	if len(containers) != 0 {
		c.t.Errorf("%d containers are on the machine", len(containers))
	}
	left, err := os.ReadDir(filepath.Dir(filepath.Join(c.lab.Host(far).Root, owner.FilePath("/var/lib/kubelet"))))
	if err == nil || !os.IsNotExist(err) {
		c.t.Errorf("of the owner file and the lock there are %v: %v", left, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
