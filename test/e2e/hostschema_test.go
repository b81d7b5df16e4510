package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// crds are the definitions that the chart installs.
const crds = "../../charts/bowline/crds"

// define makes a lab's API server serve Hosts.
func define(t *testing.T, l *labtest.Lab) {
	t.Helper()
	dir, err := filepath.Abs(crds)
	testutil.Must(t, err)
	out, err := l.Kubectl(t.Context(), "apply", "-f", dir)
	testutil.Must(t, err)
	if out.Code != 0 {
		t.Fatalf("kubectl apply -f %s: %s%s", dir, out.Stdout, out.Stderr)
	}
	// kubectl wait fails on a definition that has no conditions yet, and a definition is served a
	// moment after it is Established.
	testutil.Must(t, labtest.Until(t.Context(), 90*time.Second, "Hosts are served", func(ctx context.Context) error {
		if out, err := l.Kubectl(ctx, "get", "hosts"); err != nil || out.Code != 0 {
			return fmt.Errorf("%v: %s", err, out.Stderr)
		}
		return nil
	}))
}

const (
	goodHost = `
apiVersion: bowline.io/v1alpha1
kind: Host
metadata: {name: box}
spec:
  endpoint: ssh://root@10.0.0.7:2222/run/containerd/containerd.sock
  credentialsSecretRef: {name: box-key}
  hostKeys:
  - ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJk0nCvDCcEhKrMMkIPEaPKDVEyuxzyQ3lZjO0yDZZZZ root@box
  - SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU
  ssh:
    proxyJump:
    - {user: jump, address: gate.lab, hostKeys: ["SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"]}
    - {user: root, address: "fd00::7", port: 2222, hostKeys: ["SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"]}
  nodeName: box-1.lab
  labels: {disk: ssd}
  taints: [{key: remote, effect: NoSchedule}]
  maxPods: 30
  reserved: {cpu: 100m, memory: 1.5Gi}
  linkGrace: 1h30m
  kubeletExposure: host
  nodeIP: 10.0.0.7,fd00::7
  policy: {allowPrivileged: false}
  deletionPolicy: detach
`
	localHost = `
apiVersion: bowline.io/v1alpha1
kind: Host
metadata: {name: here}
spec: {endpoint: "unix:///run/containerd/containerd.sock"}
`
)

// badHosts are refused with helpful messages. In goodHost or nearHost, the first text is replaced
// by the second.
var badHosts = []struct{ host, old, by, want string }{
	{localHost, "spec: {endpoint: \"unix:///run/containerd/containerd.sock\"}", "spec: {endpoint: \"ssh://root@box/run/c.sock\"}",
		"hostKeys: pin the machine's host keys, or another machine could take its place; bowline host scan prints them"},
	{localHost, "\"}", "\", hostKeys: [\"SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU\"]}", "hostKeys: the endpoint is not ssh://, leave them out"},
	{localHost, "\"}", "\", credentialsSecretRef: {name: key}}", "credentialsSecretRef: the endpoint is not ssh://, leave it out"},
	{localHost, "\"}", "\", linkGrace: 1m}", "linkGrace: the endpoint is not ssh://, there is no link"},
	{localHost, "\"}", "\", ssh: {}}", "ssh: the endpoint is not ssh://, leave it out"},
	{goodHost, "user: jump", "user: a b", "a user of the jump, such as root"},
	{goodHost, "address: gate.lab", "address: \"gate.lab:22\"", "a name or an IP address; the user and the port have fields of their own"},
	{goodHost, "port: 2222", "port: 0", "should be greater than or equal to 1"},
	{goodHost, "gate.lab, hostKeys: [\"SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU\"]", "gate.lab, hostKeys: []", "at least 1 items"},
	{goodHost, "gate.lab, hostKeys: [\"SHA256", "gate.lab, hostKeys: [\"MD5", "a host key is \"ssh-ed25519 AAAA...\" or \"SHA256:...\", as bowline host scan prints it"},
	{localHost, "unix:///run", "tcp://box", "write ssh://user@host/run/containerd/containerd.sock, or unix:///path"},
	{localHost, "unix:///run", "unix://run", "write ssh://user@host/run/containerd/containerd.sock, or unix:///path"},
	{localHost, "\"unix:///run/containerd/containerd.sock\"", "\"\"", "at least 1 chars long"},
	{goodHost, ":2222/run/containerd/containerd.sock", "", "after ssh://user@host comes the socket's path on the machine"},
	{goodHost, "root@10", "root:secret@10", "there is a password in the endpoint: take it out, and name a Secret"},
	{goodHost, "{name: box-key}", "{name: \"\"}", "credentialsSecretRef.name"},
	{goodHost, "- SHA256:47DE", "- MD5:47DE", "a host key is \"ssh-ed25519 AAAA...\" or \"SHA256:...\", as bowline host scan prints it"},
	{goodHost, "box-1.lab", "Box_1", "a node's name has lower case letters, digits, '-' and '.', such as box-1"},
	{goodHost, "effect: NoSchedule", "effect: Never", "a taint's effect is NoSchedule, PreferNoSchedule or NoExecute"},
	{goodHost, "maxPods: 30", "maxPods: 0", "should be greater than or equal to 1"},
	{goodHost, "{cpu: 100m", "{gpu: 100m", "what can be reserved: cpu, memory, ephemeral-storage"},
	{goodHost, "{cpu: 100m", "{cpu: lots", "an amount is such as 100m or 1Gi"},
	{goodHost, "1h30m", "0.5s", "a duration of at least 1s, such as 40s or 2h"},
	{goodHost, "1h30m", "\"forty\"", "a duration of at least 1s, such as 40s or 2h"},
	{goodHost, "kubeletExposure: host", "kubeletExposure: nowhere", "supported values: \"process\", \"host\""},
	{goodHost, "nodeIP: 10.0.0.7,fd00::7", "nodeIP: box", "an IP address, or one of IPv4 and one of IPv6, such as 10.0.0.7,fd00::7"},
	{goodHost, "deletionPolicy: detach", "deletionPolicy: forget", "supported values: \"drain\", \"detach\""},
}

// TestHostSchema: the API server itself refuses a wrong Host, with a message that says what to do;
// and kubectl shows the important fields.
func TestHostSchema(t *testing.T) {
	onlyLocal(t, "the API server validates Hosts without a host")
	parallel(t)
	define(t, lab)
	for _, good := range []string{goodHost, localHost} {
		out, err := lab.KubectlIn(t.Context(), good, "create", "-f", "-")
		testutil.Must(t, err)
		if out.Code != 0 {
			t.Fatalf("%s\nis refused: %s", good, out.Stderr)
		}
	}
	t.Cleanup(func() {
		out, err := lab.Kubectl(context.Background(), "delete", "hosts", "box", "here")
		if err != nil || out.Code != 0 {
			t.Errorf("delete the Hosts: %v: %s", err, out.Stderr)
		}
	})
	for _, c := range badHosts {
		bad := strings.Replace(c.host, c.old, c.by, 1)
		if bad == c.host {
			t.Fatalf("there is no %q in a Host", c.old)
		}
		bad = strings.NewReplacer("name: box}", "name: bad}", "name: here}", "name: bad}").Replace(bad)
		// Sent like kubectl create --dry-run=server, without a process for each.
		err := lab.Client.CoreV1().RESTClient().Post().AbsPath("/apis/bowline.io/v1alpha1/hosts").Param("dryRun", "All").
			Param("fieldValidation", "Strict").SetHeader("Content-Type", "application/yaml").Body([]byte(bad)).Do(t.Context()).Error()
		if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q: %q is not in: %v", c.by, c.old, c.want, err)
		}
	}

	// A node keeps its name, whether the Host sets it or its own name is used.
	for _, args := range [][]string{
		{"patch", "host", "box", "--type=merge", "-p", `{"spec":{"nodeName":"box-2"}}`},
		{"patch", "host", "box", "--type=merge", "-p", `{"spec":{"nodeName":null}}`},
		{"patch", "host", "here", "--type=merge", "-p", `{"spec":{"nodeName":"there"}}`},
	} {
		out, err := lab.Kubectl(t.Context(), args...)
		testutil.Must(t, err)
		if out.Code == 0 || !strings.Contains(out.Stderr, "nodeName: a node cannot be renamed; delete the Host, which drains the node, and make another") {
			t.Errorf("%v: exit code %d: %s", args, out.Code, out.Stderr)
		}
	}
	equal(t, "the defaults", kubectl(t, "get", "host", "here", "-o", "jsonpath={.spec.kubeletExposure} {.spec.deletionPolicy}"), "process drain")

	kubectl(t, "patch", "host", "box", "--subresource=status", "--type=merge", "-p", `{"status": {"observedGeneration": 1, "nodeName": "box-1.lab",
		"link": {"state": "Up", "roundTrip": "20ms"}, "pods": 12, "runtime": {"name": "containerd", "version": "2.2.0"},
		"conditions": [{"type": "Ready", "status": "True", "reason": "NodeReady", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"},
			{"type": "LinkUp", "status": "True", "reason": "LinkUp", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}`)
	kubectl(t, "patch", "host", "here", "--subresource=status", "--type=merge", "-p", `{"status": {"conditions": [
		{"type": "Ready", "status": "False", "reason": "NodeTaken", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}`)
	columns(t, "hosts-table.txt", kubectl(t, "get", "hosts", "box", "here"))
}

// columns compares a table of kubectl with a golden one, in which every age is <age>.
// BOWLINE_UPDATE=1 rewrites it.
func columns(t *testing.T, golden, table string) {
	t.Helper()
	age := regexp.MustCompile(`\b\d+s\b|\b\d+m\d*s?\b`)
	var b strings.Builder
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if n := len(fields) - 1; n > 0 && age.MatchString(fields[n]) {
			fields[n] = "<age>"
		}
		b.WriteString(strings.Join(fields, " ") + "\n")
	}
	file := filepath.Join("testdata", golden)
	if os.Getenv("BOWLINE_UPDATE") == "1" {
		testutil.Must(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	want := testutil.ReadFile(t, file)
	if b.String() != string(want) {
		t.Errorf("kubectl shows\n%swant\n%s", b.String(), want)
	}
}
