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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/owner"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// TestHostObjects: kubectl makes a machine a node, over SSH, with the key in a Secret; and removes
// it again, drained, and then detached. The account has the rights of docs/hosts.md, and no others.
// A host of the configuration file is never affected.
func TestHostObjects(t *testing.T) {
	onlyLocal(t, "its hosts are always remote")
	parallel(t)
	p := newPooled(t, "host1", "host2")
	define(t, p.lab)
	account := p.account("bowline", "host2-key")
	p.objects(account, p.host("host1"))
	testutil.Must(t, p.bowline.Start())
	t.Cleanup(p.bowline.Kill)
	p.ready("host1", 110)
	p.pod("stays", "host1")

	p.apply(p.object("host2", "host2"))
	p.reason("host2", "Credentials", "the Secret bowline/host2-key does not exist")
	p.key("host2")
	p.reason("host2", "NodeReady", "")
	p.ready("host2", 110)
	p.pod("drained", "host2")

	// Names that these Hosts may not take.
	_, err := p.lab.Client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	p.apply(strings.Replace(p.object("thief", "foreign"), "root@", "root@another.", 1))
	p.reason("thief", "NodeTaken", "the node foreign exists and does not belong to this Host")
	p.apply(strings.Replace(p.object("twin", "host1"), "root@", "root@twin.", 1))
	p.reason("twin", "HostTaken", "Bowline's configuration")
	p.kubectl("delete", "host", "thief", "twin", "--timeout=90s")

	p.kubectl("patch", "host", "host2", "--type=merge", "-p", `{"spec":{"maxPods":13}}`)
	p.ready("host2", 13)
	p.reason("host2", "NodeReady", "")
	testutil.Must(t, labtest.Until(t.Context(), 90*time.Second, "kubectl shows the host", func(context.Context) error {
		lines := strings.Split(strings.TrimSpace(p.kubectl("get", "hosts")), "\n")
		fields := strings.Fields(lines[len(lines)-1])
		if strings.Join(strings.Fields(lines[0]), " ") != "NAME READY NODE LINK RTT PODS REASON AGE" || len(fields) != 8 ||
			fields[1] != "True" || fields[2] != "host2" || fields[3] != "Up" || !strings.HasSuffix(fields[4], "s") || fields[5] == "0" || fields[6] != "NodeReady" {
			return fmt.Errorf("it shows\n%s", strings.Join(lines, "\n"))
		}
		return nil
	}))
	equal(t, "the runtime", p.kubectl("get", "host", "host2", "-o", "jsonpath={.status.runtime.name}"), "containerd")

	p.kubectl("delete", "host", "host2", "--timeout=4m")
	p.nodeIsGone("host2")
	if _, err := p.lab.Client.CoreV1().Pods(v1.NamespaceDefault).Get(t.Context(), "drained", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod of a drained host: %v", err)
	}
	equal(t, "containers on a machine that was drained", p.containers("host2"), 0)
	if left, err := os.ReadDir(filepath.Dir(p.ownerFile("host2"))); err == nil || !os.IsNotExist(err) {
		t.Errorf("of its owner file and its lock there are %v: %v", left, err)
	}

	p.apply(p.object("host2", "host2"))
	p.reason("host2", "NodeReady", "")
	p.ready("host2", 110)
	p.pod("detached", "host2")
	p.kubectl("patch", "host", "host2", "--type=merge", "-p", `{"spec":{"deletionPolicy":"detach"}}`)
	p.kubectl("delete", "host", "host2", "--timeout=2m")
	p.nodeIsGone("host2")
	if n := p.containers("host2"); n == 0 {
		t.Error("a detach has ended the containers")
	}
	if _, err := os.Stat(p.ownerFile("host2")); err != nil {
		t.Errorf("its owner file: %v", err)
	}
	p.lockIsFree("host2")

	p.pod("at-the-end", "host1")
	equal(t, "times that it took host1, of the file", p.lines("Started managing the host", `host="host1"`), 1)
}

// account makes a service account with the rights of docs/hosts.md, and to the Secrets, whose names
// are separated by commas; and a kubeconfig for it.
func (p *pooled) account(namespace, secret string) string {
	docs := testutil.ReadFile(p.t, "../../docs/hosts.md")
	var roles string
	for _, block := range strings.Split(string(docs), "```yaml\n")[1:] {
		if block, _, _ = strings.Cut(block, "```"); strings.Contains(block, "kind: ClusterRole") || strings.Contains(block, "kind: Role") {
			roles += "---\n" + block
		}
	}
	p.apply(fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %s}
`, namespace) + roles + fmt.Sprintf(`---
apiVersion: v1
kind: ServiceAccount
metadata: {name: bowline, namespace: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bowline-hosts}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: bowline-hosts}
subjects: [{kind: ServiceAccount, name: bowline, namespace: %[1]s}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: keys, namespace: %[1]s}
rules: [{apiGroups: [""], resources: [secrets], resourceNames: [%[2]s], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: keys, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: keys}
subjects: [{kind: ServiceAccount, name: bowline, namespace: %[1]s}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: bowline-replicas, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: bowline-replicas}
subjects: [{kind: ServiceAccount, name: bowline, namespace: %[1]s}]
`, namespace, secret))
	file := filepath.Join(p.lab.Dir, "account.kubeconfig")
	_, err := p.lab.AccountKubeconfig(p.t.Context(), namespace, "bowline", file)
	testutil.Must(p.t, err)
	return file
}

// key puts the SSH key of a machine into its Secret.
func (p *pooled) key(machine string) {
	p.t.Helper()
	key := testutil.ReadFile(p.t, p.lab.Host(machine).SSH.Key)
	_, err := p.lab.Client.CoreV1().Secrets("bowline").Create(p.t.Context(), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: machine + "-key"},
		Type: v1.SecretTypeSSHAuth, Data: map[string][]byte{v1.SSHAuthPrivateKey: key}}, metav1.CreateOptions{})
	testutil.Must(p.t, err)
}

// objects writes a configuration with these hosts and with Host objects.
func (p *pooled) objects(account string, hosts ...string) {
	p.t.Helper()
	p.edit(append(hosts, p.objectsOf(account))...)
}

// objectsOf returns the part of the configuration for Host objects, and makes the nodes' files.
func (p *pooled) objectsOf(account string) string {
	p.t.Helper()
	files := filepath.Join(p.lab.Dir, "nodes")
	testutil.Must(p.t, os.Mkdir(files, 0o700))
	for _, h := range p.lab.Status.Hosts {
		for suffix, file := range map[string]string{"kubeconfig": h.NodeKubeconfig, "crt": h.Serving.Cert, "key": h.Serving.Key} {
			data := testutil.ReadFile(p.t, file)
			testutil.Must(p.t, os.WriteFile(filepath.Join(files, h.Name+"."+suffix), data, 0o600))
		}
	}
	return fmt.Sprintf(`hostObjects:
  namespace: bowline
  kubeconfig: %s
  template:
    kubeconfig: nodes/{nodeName}.kubeconfig
    server: {tlsCertFile: "nodes/{nodeName}.crt", tlsPrivateKeyFile: "nodes/{nodeName}.key"}
    authentication: {x509: {clientCAFile: %s}}
`, account, p.lab.Status.Cluster.ClientCA)
}

// object is a Host of the second machine.
func (p *pooled) object(name, node string) string {
	p.t.Helper()
	return p.objectOf("host2", p.lab.Host("host2").RuntimeSocket, name, node)
}

// objectOf is a Host of a machine, whose key is in its own Secret.
func (p *pooled) objectOf(machine, socket, name, node string) string {
	p.t.Helper()
	h := p.lab.Host(machine)
	key := testutil.ReadFile(p.t, h.SSH.HostKey)
	return fmt.Sprintf(`
apiVersion: bowline.io/v1alpha1
kind: Host
metadata: {name: %s}
spec:
  endpoint: ssh://%s@%s%s
  credentialsSecretRef: {name: %s-key}
  hostKeys: [%q]
  nodeName: %s
`, name, h.SSH.User, p.wires[machine].Address(), socket, machine, strings.TrimSpace(string(key)), node)
}

func (p *pooled) apply(text string) {
	p.t.Helper()
	out, err := p.lab.KubectlIn(p.t.Context(), text, "apply", "-f", "-")
	testutil.Must(p.t, err)
	if out.Code != 0 {
		p.t.Fatalf("kubectl apply: %s\n%s", out.Stderr, text)
	}
}

func (p *pooled) kubectl(args ...string) string {
	p.t.Helper()
	out, err := p.lab.Kubectl(p.t.Context(), args...)
	testutil.Must(p.t, err)
	if out.Code != 0 {
		state, _ := p.lab.Kubectl(p.t.Context(), "get", "hosts", "-o", "yaml")
		p.t.Fatalf("kubectl %s: exit code %d: %s%s\n%s\n%s", strings.Join(args, " "), out.Code, out.Stdout, out.Stderr, state.Stdout, p.bowline.LogTail(4000))
	}
	return out.Stdout
}

// reason waits until a Host's Ready condition has this reason, and words in its message, for the
// newest generation.
func (p *pooled) reason(host, reason, words string) {
	p.t.Helper()
	const path = `jsonpath={.metadata.generation} {.status.conditions[?(@.type=="Ready")].observedGeneration} {.status.conditions[?(@.type=="Ready")].reason} {.status.conditions[?(@.type=="Ready")].message}`
	err := labtest.Until(p.t.Context(), 3*time.Minute, "Host "+host+" is "+reason, func(context.Context) error {
		got := p.kubectl("get", "host", host, "-o", path)
		fields := strings.SplitN(got, " ", 4)
		if len(fields) != 4 || fields[0] != fields[1] || fields[2] != reason || !strings.Contains(fields[3], words) {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
	if err != nil {
		p.t.Fatalf("%v\n%s", err, p.bowline.LogTail(6000))
	}
}

func (p *pooled) nodeIsGone(name string) {
	p.t.Helper()
	if _, err := p.lab.Client.CoreV1().Nodes().Get(p.t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		p.t.Errorf("the node %s: %v", name, err)
	}
}

// containers counts the containers that run on a host.
func (p *pooled) containers(host string) int {
	p.t.Helper()
	runtime, err := p.lab.CRI(p.t.Context(), host)
	testutil.Must(p.t, err)
	defer runtime.Close()
	list, err := runtime.ListContainers(p.t.Context(), &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}})
	testutil.Must(p.t, err)
	return len(list)
}

func (p *pooled) ownerFile(host string) string {
	return filepath.Join(p.lab.Host(host).Root, owner.FilePath("/var/lib/kubelet"))
}

func (p *pooled) lockIsFree(host string) {
	p.t.Helper()
	testutil.Must(p.t, labtest.Until(p.t.Context(), patience, "the lock of "+host+" is free", func(ctx context.Context) error {
		return p.lab.Exec(ctx, host, "flock", "-n", ownerLock, "true").Run()
	}))
}
