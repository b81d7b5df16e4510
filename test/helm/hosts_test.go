package helm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/owner"
	"github.com/bowline-k8s/bowline/test/audit"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// lent is the Host that "host add" makes of the second machine.
const lent = "lent"

// hostIs waits until a Host's Ready condition has this reason.
func (c *cluster) hostIs(host, reason string) {
	c.t.Helper()
	c.until("the Host "+host+" is "+reason, func(ctx context.Context) error {
		out, err := c.lab.Kubectl(ctx, "get", "host", host, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].reason} {.status.conditions[?(@.type=="Ready")].message}`)
		if err == nil && !strings.HasPrefix(out.Stdout, reason+" ") {
			err = fmt.Errorf("it is %q %s", out.Stdout, out.Stderr)
		}
		return err
	})
}

func (c *cluster) areReady(all ...machine) {
	c.t.Helper()
	for _, m := range all {
		c.hostIs(m.name, "NodeReady")
	}
}

// wereAwaited checks that helm --wait has waited for the Hosts as well.
func (c *cluster) wereAwaited(all ...machine) {
	c.t.Helper()
	for _, m := range all {
		if is := c.kubectl("get", "host", m.name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`); is != "True" {
			c.t.Errorf("helm --wait has ended, and the condition Ready of the Host %s is %q", m.name, is)
		}
	}
}

// replicaEnds deletes the chart's pod that manages a machine: the other replica takes the machine
// over, and nothing that runs there is restarted.
func (c *cluster) replicaEnds(m machine) {
	c.t.Helper()
	holder := func() string {
		c.t.Helper()
		lease, err := c.lab.Client.CoordinationV1().Leases(namespace).Get(c.t.Context(), "bowline-host-"+m.name, metav1.GetOptions{})
		testutil.Must(c.t, err)
		if lease.Spec.HolderIdentity == nil {
			return ""
		}
		name, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
		return name
	}
	containers := func() (all []string) {
		c.t.Helper()
		c.until("the pods are reported Ready", func(ctx context.Context) error {
			all = nil
			for _, app := range []string{"app", "net"} {
				p, err := c.podOn(ctx, app, m.name)
				if err != nil {
					return err
				}
				for _, s := range p.Status.ContainerStatuses {
					all = append(all, s.Name+" "+s.ContainerID)
				}
			}
			return nil
		})
		return all
	}
	had, before := holder(), containers()
	c.kubectl("delete", "pod", "-n", namespace, had, "--timeout=2m")
	c.until("another replica has the machine", func(context.Context) error {
		if now := holder(); now == had || now == "" {
			return fmt.Errorf("it is %q that has it", now)
		}
		return nil
	})
	c.areReady(machines...)
	if now := containers(); fmt.Sprint(now) != fmt.Sprint(before) {
		c.t.Errorf("the containers were %v and are %v", before, now)
	}
	c.reached(m)
}

// link cuts the link to a machine silently, or restores it, and waits until the node's status shows
// it.
func (c *cluster) link(m machine, up bool) {
	c.t.Helper()
	verb, want := "-I", v1.ConditionFalse
	if up {
		verb, want = "-D", v1.ConditionTrue
	}
	out, err := c.lab.Exec(c.t.Context(), m.name, "iptables", "-w", verb, "INPUT", "-p", "tcp", "--dport", "22", "-j", "DROP").CombinedOutput()
	if err != nil {
		c.t.Fatalf("iptables %s: %v: %s", verb, err, out)
	}
	c.until("the node's LinkUp is "+string(want), func(ctx context.Context) error {
		node, err := c.lab.Client.CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if labtest.NodeCondition(node, "LinkUp").Status != want {
			return errors.New("it is not")
		}
		return nil
	})
}

// byHand makes nodes of Hosts that are not the chart's, and removes them again: one with kubectl
// and the rights that docs/helm.md gives, the other with one command.
func (c *cluster) byHand() {
	c.t.Helper()
	docs := testutil.ReadFile(c.t, "../../docs/helm.md")
	_, rights, found := strings.Cut(string(docs), "kind: ClusterRole\nmetadata:\n  name: bowline-node-box-2\n")
	rights, _, closed := strings.Cut(rights, "```")
	if !found || !closed {
		c.t.Fatal("docs/helm.md does not say what a Host beside the chart needs")
	}
	rights = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: bowline-node-box-2\n" + rights
	host := fmt.Sprintf("apiVersion: bowline.io/v1alpha1\nkind: Host\nmetadata: {name: %[1]s}\nspec:\n  credentialsSecretRef: {name: %[1]s}\n%[2]s", first.name, c.spec(first, "  "))

	began := time.Now()
	c.kubectl("apply", "-f", c.file("host.yaml", host))
	c.hostIs(first.name, "Credentials") // the account may not read the Secret yet
	file := c.file("rights.yaml", strings.ReplaceAll(rights, "box-2", first.name))
	c.kubectl("apply", "-f", file)

	h := c.lab.Host(second.name)
	said := c.run(c.program, "host", "add", lent, "--ssh", h.SSH.User+"@"+h.SSH.Address, "--socket", h.RuntimeSocket, "--node-name", second.name,
		"--key", h.SSH.Key, "--host-key", c.hostKey(second), "--timeout", "4m")
	for _, words := range []string{"The ClusterRole and the Role bowline-host-lent give the service account bowline/bowline the rights", "impersonate system:node:" + second.name,
		"The node " + second.name + " is Ready"} {
		if !strings.Contains(said, words) {
			c.t.Errorf("host add does not tell %q:\n%s", words, said)
		}
	}
	c.hostIs(first.name, "NodeReady")
	c.provoked = append(c.provoked, audit.Provoked{From: began, To: time.Now(), Name: first.name})

	c.kubectl("delete", "host", first.name, "--wait=false")
	said = c.run(c.program, "host", "remove", lent, "--timeout", "4m")
	if !strings.Contains(said, "Deleted Bowline's rights for it.") {
		c.t.Errorf("host remove says\n%s", said)
	}
	c.kubectl("wait", "--for=delete", "host/"+first.name, "--timeout=4m")
	c.kubectl("delete", "-f", file)
	if left := c.kubectl("get", "clusterroles,clusterrolebindings,roles,rolebindings,secrets", "-A", "-l", "bowline.io/host", "-o", "name"); left != "" {
		c.t.Errorf("of host add there are left\n%s", left)
	}
	c.nothingIsLeft()
}

// nothingIsLeft checks that nothing of the remote nodes is left in the cluster and on the machines.
func (c *cluster) nothingIsLeft() {
	c.t.Helper()
	for _, m := range machines {
		if _, err := c.lab.Client.CoreV1().Nodes().Get(c.t.Context(), m.name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			c.t.Errorf("the node: %v", err)
		}
		pods, err := c.lab.Client.CoreV1().Pods(v1.NamespaceAll).List(c.t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + m.name})
		testutil.Must(c.t, err)
		for _, p := range pods.Items {
			c.t.Errorf("the pod %s/%s is on %s", p.Namespace, p.Name, m.name)
		}
		runtime, err := c.lab.CRI(c.t.Context(), m.name)
		testutil.Must(c.t, err)
		containers, err := runtime.ListContainers(c.t.Context(), &runtimeapi.ContainerFilter{})
		runtime.Close()
		testutil.Must(c.t, err)
		if len(containers) != 0 {
			c.t.Errorf("%d containers are on %s", len(containers), m.name)
		}
		left, err := os.ReadDir(filepath.Dir(filepath.Join(c.lab.Host(m.name).Root, owner.FilePath("/var/lib/kubelet"))))
		if err == nil || !os.IsNotExist(err) {
			c.t.Errorf("of the owner file and the lock of %s there are %v: %v", m.name, left, err)
		}
	}
}
