package monitoring

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// namespace holds the pods of the test, and the account of its programs.
const namespace = "monitored"

// The hosts, which are also the nodes: the first is managed locally, the second over SSH.
const (
	localHost  = "host1"
	remoteHost = "host2"
)

// healthPort is where each process serves its own metrics.
const healthPort = "9110"

// rig is the lab with its nodes and the files of the programs.
type rig struct {
	t          *testing.T
	lab        *labtest.Lab
	dir        string
	gateway    string            // the machine's address in the lab, where the programs listen
	token      string            // of an account that may read the nodes' metrics
	kubeconfig string            // with that token
	ca         string            // of the API server and of the nodes
	processes  map[string]string // by node, the address at which its process serves its own metrics
}

// TestMonitoring runs metrics-server and Prometheus against a local node and one over SSH.
func TestMonitoring(t *testing.T) {
	if os.Getenv("BOWLINE_E2E") != "1" || os.Getenv("BOWLINE_MONITORING") == "" {
		t.Skip("needs root, the lab, metrics-server, Prometheus and time: make monitoring")
	}
	length, err := time.ParseDuration(os.Getenv("BOWLINE_MONITORING"))
	if err != nil {
		t.Fatalf("BOWLINE_MONITORING: %v", err)
	}
	r := newRig(t)
	r.startMetricsServer()
	p := r.startPrometheus()
	t.Run("top", r.testTop)
	t.Run("autoscaler", r.testAutoscaler)
	t.Run("scrapes", func(t *testing.T) { p.testScrapes(t, length) })
	t.Run("queries", p.testQueries)
	t.Run("alerts", p.testAlerts)
	t.Run("lint", r.testLint)
}

// newRig brings up the lab, the nodes, an account that may read metrics, and some pods.
func newRig(t *testing.T) *rig {
	dir := labtest.Dir(t, "monitoring", true)
	r := &rig{t: t, dir: dir, lab: labtest.StartFor(t, filepath.Join(dir, "lab"), 2)}
	r.gateway, _, _ = strings.Cut(strings.TrimPrefix(r.lab.Status.Cluster.APIURL, "https://"), ":")
	wire, err := r.lab.NewWire(remoteHost)
	testutil.Must(t, err)
	t.Cleanup(wire.Close)
	health := []string{"--health-address=0.0.0.0:" + healthPort}
	apart := &labtest.Apart{}
	for _, b := range []*labtest.Bowline{
		{Lab: r.lab, Host: localHost, Args: health, LogPath: filepath.Join(dir, localHost+".log")},
		{Lab: r.lab, Host: remoteHost, Args: health, Wire: wire, Apart: apart, LogPath: filepath.Join(dir, remoteHost+".log")},
	} {
		testutil.Must(t, b.Start())
		t.Cleanup(func() {
			if err := b.Stop(); err != nil {
				t.Error(err)
			}
		})
		_, err := r.lab.NodeReady(t.Context(), b.Host, v1.ConditionTrue, time.Minute)
		testutil.Must(t, err)
	}
	r.processes = map[string]string{localHost: net.JoinHostPort(r.lab.Host(localHost).IP, healthPort), remoteHost: net.JoinHostPort(apart.Address(), healthPort)}
	_, err = labtest.Namespace(t.Context(), r.lab.Client, namespace, time.Minute)
	testutil.Must(t, err)
	r.makeAccount()
	r.makePods()
	return r
}

// makeAccount makes a service account with the rights that metrics-server and Prometheus ask for in
// their manifests, and gets a token and a kubeconfig of it.
func (r *rig) makeAccount() {
	ctx, client, name := r.t.Context(), r.lab.Client, "monitoring"
	_, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	testutil.Must(r.t, err)
	_, err = client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes/metrics"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"pods", "nodes", "namespaces"}, Verbs: []string{"get", "list", "watch"}},
	}}, metav1.CreateOptions{})
	testutil.Must(r.t, err)
	for _, role := range []string{name, "system:auth-delegator"} {
		_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name + ":" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
		}, metav1.CreateOptions{})
		testutil.Must(r.t, err)
	}
	_, err = client.RbacV1().RoleBindings("kube-system").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "extension-apiserver-authentication-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}, metav1.CreateOptions{})
	testutil.Must(r.t, err)
	r.kubeconfig = filepath.Join(r.dir, "monitoring.kubeconfig")
	r.token, err = r.lab.AccountKubeconfig(ctx, namespace, name, r.kubeconfig)
	testutil.Must(r.t, err)
	r.ca = filepath.Join(r.dir, "ca.crt")
	testutil.Must(r.t, os.WriteFile(r.ca, r.lab.REST.CAData, 0o600))
}

// apply creates or changes objects with kubectl.
func (r *rig) apply(t *testing.T, objects string) {
	t.Helper()
	if out, err := r.lab.KubectlIn(t.Context(), objects, "apply", "-f", "-"); err != nil || out.Code != 0 {
		t.Fatalf("kubectl apply: %v\n%s%s", err, out.Stdout, out.Stderr)
	}
}

// run starts a program that ends with the test. Its log is below the rig's directory.
func (r *rig) run(name, path string, args ...string) (log string) {
	r.t.Helper()
	log = filepath.Join(r.dir, name+".log")
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	process, err := labtest.StartProcess(name, cmd, log)
	testutil.Must(r.t, err)
	r.t.Cleanup(func() {
		if err := process.Stop(20 * time.Second); err != nil {
			r.t.Error(err)
		}
	})
	return log
}

// tool is the path of a program that hack/monitoring-build.sh made.
func (r *rig) tool(name string) string {
	path := filepath.Join(labtest.Cache(), "monitoring", name)
	if _, err := os.Stat(path); err != nil {
		r.t.Fatalf("%v: run hack/monitoring-build.sh", err)
	}
	return path
}

// until waits for a condition.
func until(t *testing.T, timeout time.Duration, what string, condition func(context.Context) error) {
	t.Helper()
	testutil.Must(t, labtest.Until(t.Context(), timeout, what, condition))
}

// nodeAddress is where a node's API is: its address, and the port of its status.
func (r *rig) nodeAddress(t *testing.T, name string) string {
	t.Helper()
	node, err := r.lab.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	testutil.Must(t, err)
	for _, a := range node.Status.Addresses {
		if a.Type == v1.NodeInternalIP {
			return fmt.Sprintf("%s:%d", a.Address, node.Status.DaemonEndpoints.KubeletEndpoint.Port)
		}
	}
	t.Fatalf("the node %s has no InternalIP", name)
	return ""
}
