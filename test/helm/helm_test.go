package helm

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/audit"
	"github.com/bowline-k8s/bowline/test/labtest"
)

const (
	namespace = "bowline"
	// localHost is managed by the test's own Bowline; the chart's pods run there.
	localHost = "host1"
	// patience bounds helm's waits. It is long, because the test measures no time.
	patience = "6m"
)

// machine is a machine that the chart makes a node of, and how the API server reaches it.
type machine struct{ name, exposure string }

var (
	first    = machine{"host2", "process"}
	second   = machine{"host3", "host"}
	machines = []machine{first, second}
)

// TestChart goes through a chart's life: installed, tested by helm test, changed, rolled back, and
// uninstalled. At the end it checks in the API server's audit log that no request was made that
// should not be.
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
	c.wereAwaited(machines...)
	c.areReady(machines...)
	step("installed, and the remote nodes are Ready")
	for _, m := range machines {
		c.isNoClouds(m.name)
	}
	c.mayBeNoOtherNode()

	c.kubectl("apply", "-f", c.file("workload.yaml", workload))
	c.workloadRuns()
	step("a Deployment runs on both, and its Service leads to each")
	for _, m := range machines {
		c.reached(m)
	}
	step("logs and exec reach the pods, those on the machines' own networks as well")

	c.run(c.helm, "test", "bowline", "-n", namespace, "--timeout", patience)
	step("helm test passes")
	c.replicaEnds(first)
	step("a replica has ended, and the other manages the node")

	c.link(first, false)
	if out, err := c.command(c.helm, "test", "bowline", "-n", namespace, "--timeout", "15s"); err == nil {
		t.Errorf("helm test passes while a machine cannot be reached:\n%s", out)
	}
	c.link(first, true)
	c.kubectl("delete", "pod", "-n", namespace, "-l", "app.kubernetes.io/name=bowline-test", "--timeout=3m")
	step("helm test fails while a link is cut")

	// An upgrade that removes a Host drains its node before the change is made; a rollback brings
	// it back.
	c.upgrade("--set-json", "hosts=[]")
	c.nothingIsLeft()
	step("upgraded without the hosts, which are drained")
	c.byHand()
	step("made by kubectl and by host add, each with its rights, and deleted")
	c.run(c.helm, "rollback", "bowline", "1", "-n", namespace, "--wait", "--timeout", patience)
	c.wereAwaited(machines...)
	c.areReady(machines...)
	step("rolled back, and Ready again")
	c.workloadRuns()

	uninstalls := time.Now()
	c.run(c.helm, "uninstall", "bowline", "-n", namespace, "--wait", "--timeout", patience)
	step("uninstalled")
	c.nothingIsLeft()
	// Helm removes the processes' rights while they are still ending.
	c.provoked = append(c.provoked, audit.Provoked{From: uninstalls, To: time.Now().Add(time.Minute), Resource: "leases"})
	testutil.Must(t, labtest.Until(t.Context(), 2*time.Minute, "nothing of the chart is left", func(ctx context.Context) error {
		left := c.kubectl("get", "clusterroles,clusterrolebindings,all,configmaps,roles,rolebindings,serviceaccounts,hosts", "-A", "-l", "app.kubernetes.io/instance=bowline", "-o", "name") +
			c.kubectl("get", "clusterroles,clusterrolebindings,roles,rolebindings", "-A", "-l", "bowline.io/host", "-o", "name") +
			c.kubectl("get", "secrets", "-n", namespace, "-l", "owner=helm", "-o", "name") +
			c.kubectl("get", "leases", "-n", namespace, "-o", "name")
		if left != "" {
			return errors.New(left)
		}
		return nil
	}))
	if _, err := c.lab.NodeReady(t.Context(), localHost, v1.ConditionTrue, time.Minute); err != nil {
		t.Error(err)
	}
	c.localSocket()
	step("a second runtime was a node, by a pod beside it")
	c.logIsClean()
	step("the audit log is checked")
}

func (c *cluster) isNoClouds(node string) {
	c.t.Helper()
	n, err := c.lab.Client.CoreV1().Nodes().Get(c.t.Context(), node, metav1.GetOptions{})
	testutil.Must(c.t, err)
	if n.Spec.ProviderID != "bowline://"+node || n.Labels["node.kubernetes.io/exclude-from-external-load-balancers"] != "true" {
		c.t.Errorf("a cloud controller takes %s for its own: providerID %q, labels %v", node, n.Spec.ProviderID, n.Labels)
	}
}
