package docs

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// clusterDocuments describe a machine that Bowline makes a node from within the cluster. The first
// adds the machine and removes it again; the others run between the two.
var clusterDocuments = []string{"quickstart.md", "networking.md", "security.md"}

// theEnd is the heading under which the first document removes the machine.
const theEnd = "## Clean up"

// near is the host of the lab where the chart's pod runs. The test's own Bowline manages it.
const local = "host1"

// newUserBound limits the time from "helm install" to a running pod on the machine.
const newUserBound = 5 * time.Minute

// TestInCluster runs every command of the documents that have Bowline in the cluster, on one lab.
// BOWLINE_DOCS=quickstart runs the first document only. BOWLINE_DOCS_TIMES is a file that gets the
// duration of each step of a new user.
func TestInCluster(t *testing.T) {
	alone := os.Getenv("BOWLINE_DOCS") == "quickstart"
	r := newReader(t, 2, "host2")
	r.inCluster(t, !alone)

	data := testutil.ReadFile(t, "../../docs/"+clusterDocuments[0])
	before, _, found := strings.Cut(string(data), theEnd+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", clusterDocuments[0], theEnd)
	}
	last := strings.Count(before, "\n")
	var there, back []Command
	for _, c := range read(t, clusterDocuments[0]) {
		if c.Line <= last {
			there = append(there, c)
		} else {
			back = append(back, c)
		}
	}
	r.timed(t, r.run(t, clusterDocuments[0], there))
	if !alone {
		for _, name := range clusterDocuments[1:] {
			r.run(t, name, read(t, name))
		}
		if rules := r.rules(t); !strings.Contains(rules, "KUBE-SVC") {
			t.Errorf("no kube-proxy has been on the machine:\n%s", rules)
		}
	}
	r.run(t, clusterDocuments[0], back)
	r.nothingIsLeft(t)
}

// timed reports how long a new user's steps took, and fails if that was too long.
func (r *reader) timed(t *testing.T, all []ran) {
	t.Helper()
	var table strings.Builder
	var began time.Time
	for _, c := range all {
		if began.IsZero() {
			if !strings.HasPrefix(c.Text, "helm install ") {
				continue
			}
			began = c.began
		}
		text := c.Text
		if len(text) > 70 {
			text = text[:67] + "..."
		}
		fmt.Fprintf(&table, "%6.1f s  %s\n", c.took.Seconds(), text)
		if strings.HasPrefix(c.Text, "kubectl wait ") && strings.Contains(c.Text, "condition=Ready pod/") {
			total := c.began.Add(c.took).Sub(began)
			fmt.Fprintf(&table, "%6.1f s  from helm install to a pod that is Ready on the remote machine\n", total.Seconds())
			t.Logf("a new user's way:\n%s", table.String())
			if file := os.Getenv("BOWLINE_DOCS_TIMES"); file != "" {
				testutil.Must(t, os.WriteFile(file, []byte(table.String()), 0o644))
			}
			if total > newUserBound {
				t.Errorf("it takes %s from helm install to a pod, which is more than %s", total.Round(time.Second), newUserBound)
			}
			return
		}
	}
	t.Errorf("%s does not go from helm install to a pod that is Ready", clusterDocuments[0])
}

// inCluster sets up what the documents take for granted: a cluster with a node, a registry with
// images, a machine that is no node, and a reader with the programs.
func (r *reader) inCluster(t *testing.T, kubeProxy bool) {
	t.Helper()
	helm := os.Getenv("BOWLINE_HELM")
	if helm == "" {
		t.Fatal("BOWLINE_HELM is not set; hack/test-machine.sh docs does")
	}
	ctx := t.Context()
	r.machine(t)
	bowline := &labtest.Bowline{Lab: r.lab, Host: local}
	end, err := bowline.Keep(func(code int) { t.Errorf("%s's Bowline ended with %d\n%s", local, code, bowline.LogTail(4000)) })
	testutil.Must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.state())
		}
		end(false)
	})
	// Without an image of "make image" the test builds one of the program alone.
	image := os.Getenv("BOWLINE_IMAGE")
	if image == "" {
		image = built(t)
	}
	if kubeProxy {
		file := filepath.Join(r.lab.Dir, "kube-proxy.tar")
		kubeProxyImage(t, file)
		out, err := r.lab.Command(ctx, "load-image", "kube-proxy:lab", file).CombinedOutput()
		if err != nil {
			t.Fatalf("load kube-proxy's image: %v\n%s", err, out)
		}
	}
	if _, err := r.lab.NodeReady(ctx, local, v1.ConditionTrue, 3*time.Minute); err != nil {
		t.Fatalf("%v\n%s", err, bowline.LogTail(4000))
	}

	r.makeHome(t)
	lab := labtest.Program("bowline-lab") + " --dir " + r.lab.Dir
	// Retry what a busy machine does not answer in time, and what appears a moment later: a
	// certificate request, the node that shows it, rules for a Service, a link that an overloaded
	// machine took for lost.
	r.program(t, "kubectl", fmt.Sprintf(`#!/bin/bash
out=$(mktemp -p %[2]s) err=$(mktemp -p %[2]s)
for try in $(seq 60); do
	%[1]s kubectl "$@" >"$out" 2>"$err"
	code=$?
	case "$*" in
	"auth can-i "*) [ "$(head -n 1 "$out" | cut -d' ' -f1)" != no ] || code=0 ;;
	"get csr "*) [ -s "$out" ] || code=1 ;;
	"bowline host list") grep -q ' Up .* NodeReady' "$out" || code=1 ;;
	"bowline why "*) grep -q 'all containers match the spec' "$out" || code=1 ;;
	esac
	[ "$code" != 0 ] || break
	case "$*" in
	"get csr "* | "bowline host list" | "bowline why "* | *" wget "*) ;;
	bowline*) grep -qE 'deadline exceeded|no answer|unreachable|does not answer any more|handshake timeout|x509|dialing backend' "$out" "$err" || break ;;
	*) grep -qE 'x509|TLS handshake|dialing backend|i/o timeout|connection refused' "$err" || break ;;
	esac
	sleep 1
done
cat "$out"
cat "$err" >&2
rm -f "$out" "$err"
exit "$code"
`, lab, r.home))
	// The command that makes a Host asks at a terminal.
	r.program(t, "kubectl-bowline", fmt.Sprintf(`#!/bin/bash
[ "$1 $2" = "host add" ] || exec %[1]s "$@"
printf 'y\ny\n' | script -q -e -c "$(printf '%%q ' %[1]s "$@")" /dev/null | tr -d '\r'
exit "${PIPESTATUS[1]}"
`, r.path("installed/kubectl-bowline")))
	testutil.Must(t, os.MkdirAll(r.path("installed"), 0o755))
	r.program(t, "make", fmt.Sprintf(`#!/bin/bash
set -eu
for goal; do
	case $goal in
	build) mkdir -p bin && cp %[1]s bin/bowline ;;
	image) ;; # it is made already
	PUSH=registry.lab/*) %[2]s load-image "${goal#PUSH=registry.lab/}" %[3]s ;;
	*) echo "make $goal: the test has no such goal" >&2; exit 2 ;;
	esac
done
`, built(t), lab, image))
	r.write(t, "values.yaml", "config:\n  "+strings.Join(labtest.AnyDisk, "\n  ")+"\n")
	r.program(t, "helm", fmt.Sprintf(`#!/bin/bash
[ "$1" != install ] || set -- "$@" -f %[2]s
exec %[1]s "$@"
`, helm, r.path("values.yaml")))
	charts, err := filepath.Abs("../../charts")
	testutil.Must(t, err)
	testutil.Must(t, os.Symlink(charts, r.path("charts")))
	r.names = strings.NewReplacer("10.0.0.7", r.lab.Host(r.host).IP, "10.0.0.2", gateway(t, r.lab), "box-1", r.host, "box-2", local,
		"registry.example", "registry.lab", "/usr/local/bin/kubectl-bowline", r.path("installed/kubectl-bowline"),
		"registry.k8s.io/kube-proxy:v1.37.1", "registry.lab/kube-proxy:lab", "registry.k8s.io/e2e-test-images/agnhost:2.53", "registry.lab/web:v1",
		"busybox:1.37", "registry.lab/toolbox:lab")
}

// machine makes the remote host look like an ordinary machine: root has a home with its logins,
// and kube-proxy has never run there.
func (r *reader) machine(t *testing.T) {
	t.Helper()
	ctx, h := t.Context(), r.lab.Host(r.host)
	testutil.Must(t, r.lab.StopProcess(ctx, r.host, "kube-proxy"))
	out, err := r.lab.Exec(ctx, r.host, labtest.Program("bowline-kube"), "kube-proxy", "--cleanup").CombinedOutput()
	if err != nil {
		t.Fatalf("take kube-proxy's rules away: %v\n%s", err, out)
	}
	if rules := r.rules(t); strings.Contains(rules, "KUBE-SVC") {
		t.Fatalf("rules of kube-proxy's are still there:\n%s", rules)
	}

	logins := testutil.ReadFile(t, filepath.Join(r.lab.Dir, "ssh/authorized_keys"))
	r.write(t, "root/.ssh/authorized_keys", string(logins))
	data := testutil.ReadFile(t, filepath.Join(r.lab.Dir, "hosts", r.host, "ssh/sshd_config"))
	var config strings.Builder
	for line := range strings.Lines(string(data)) {
		switch key, _, _ := strings.Cut(line, " "); key {
		case "GatewayPorts": // below
			continue
		case "AuthorizedKeysFile":
			line = "AuthorizedKeysFile " + r.path("root/.ssh/authorized_keys") + "\n"
		case "SetEnv":
			line = "SetEnv HOME=" + r.path("root") + "\n"
		}
		config.WriteString(line)
	}
	r.write(t, "sshd_config", "GatewayPorts clientspecified\n"+config.String())
	testutil.Must(t, r.lab.StopProcess(ctx, r.host, "sshd"))
	// The lab ends this sshd with the host.
	sshd := r.lab.Exec(context.WithoutCancel(ctx), r.host, "/usr/sbin/sshd", "-D", "-e", "-f", r.path("sshd_config"))
	testutil.Must(t, sshd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = sshd.Wait()
	}()
	testutil.Must(t, labtest.Until(ctx, time.Minute, "the machine's sshd listens", func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", h.SSH.Address)
		if err == nil {
			err = conn.Close()
		}
		return err
	}))
	t.Cleanup(func() {
		_ = sshd.Process.Kill()
		<-ended
	})
}

// rules returns the machine's packet filter rules.
func (r *reader) rules(t *testing.T) string {
	t.Helper()
	out, err := r.lab.Exec(t.Context(), r.host, "iptables-save").Output()
	testutil.Must(t, err)
	return string(out)
}

// nothingIsLeft checks that the node, Bowline and the access that was granted are gone.
func (r *reader) nothingIsLeft(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	if _, err := r.lab.Client.CoreV1().Nodes().Get(ctx, r.host, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node: %v", err)
	}
	for _, what := range []string{"namespace/bowline", "crd/hosts.bowline.io", "clusterrole/bowline"} {
		if out, err := r.lab.Kubectl(ctx, "get", what); err != nil || !strings.Contains(out.Stderr, "NotFound") {
			t.Errorf("%s: %v %s%s", what, err, out.Stdout, out.Stderr)
		}
	}
	if out, err := r.lab.Kubectl(ctx, "get", "clusterroles,clusterrolebindings,roles,rolebindings", "-A", "-l", "bowline.io/host", "-o", "name"); err != nil || out.Stdout != "" {
		t.Errorf("rights to be the node: %v %s%s", err, out.Stdout, out.Stderr)
	}
	client, err := r.lab.CRI(ctx, r.host)
	testutil.Must(t, err)
	defer client.Close()
	containers, err := client.ListContainers(ctx, &runtimeapi.ContainerFilter{})
	testutil.Must(t, err)
	if len(containers) != 0 {
		t.Errorf("%d containers are on the machine", len(containers))
	}
	left, err := os.ReadDir(filepath.Dir(filepath.Join(r.lab.Host(r.host).Root, owner.FilePath("/var/lib/kubelet"))))
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of the owner file and the lock there are %v: %v", left, err)
	}
	logins := testutil.ReadFile(t, r.path("root/.ssh/authorized_keys"))
	if strings.Contains(string(logins), "bowline:") || !strings.Contains(string(logins), "ssh-ed25519 ") {
		t.Errorf("the logins are\n%s", logins)
	}
}

// state collects the cluster's state, for a failed test.
func (r *reader) state() string {
	return r.lab.KubectlAll([][]string{
		{"get", "hosts", "-o", "yaml"}, {"get", "nodes", "-o", "wide"}, {"get", "pods", "-A", "-o", "wide"}, {"get", "csr"}, {"get", "events", "-A"},
		{"logs", "-n", "bowline", "-l", "app.kubernetes.io/name in (bowline,bowline-hook)", "--tail=60"},
	})
}
