package charts

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

const local = "testdata/local.yaml"

// TestLocalSocket: the profile makes one node, with its own directories and rights, and without
// what remote hosts need.
func TestLocalSocket(t *testing.T) {
	all := documents(t, local)
	for _, d := range all {
		if slices.Contains([]string{"Host", "Role", "RoleBinding", "PodDisruptionBudget"}, d.Kind) {
			t.Errorf("there is a %s %s", d.Kind, d.name)
		}
	}
	cm := of[v1.ConfigMap](t, all, "ConfigMap")["bowline-local"]
	c, err := config.ParseFile("/etc/bowline/config.yaml", []byte(cm.Data["config.yaml"]))
	testutil.Must(t, err)
	if c.HostObjects != nil || len(c.Hosts) != 1 {
		t.Fatalf("%+v, %d hosts", c.HostObjects, len(c.Hosts))
	}
	h := c.Hosts[0]
	if h.NodeName != "worker-1-two" || h.Endpoint != "unix:///run/containerd-two/containerd.sock" || h.ProviderID != "bowline://worker-1-two" || h.Server.Port != 10260 ||
		h.Identity.Mode != config.IdentityImpersonate || h.MaxPods != 30 || len(h.Taints) != 2 || h.Labels["rack"] != "r1" || h.Labels["bowline.io/node"] != "true" {
		t.Errorf("%+v", h)
	}
	// A kubelet on the machine removes unknown content from its own directories.
	for _, p := range []string{h.RootDirectory, h.PodLogsDirectory, h.CgroupRoot} {
		if !strings.HasSuffix(p, "/worker-1-two") {
			t.Errorf("%s is a kubelet's own", p)
		}
	}
	for _, p := range []string{h.Kubeconfig, h.Authentication.X509.ClientCAFile, h.Identity.CertificateDirectory} {
		if !strings.HasPrefix(p, "/proc/self/fd/100/") {
			t.Errorf("%s is the machine's, and not the pod's", p)
		}
	}
	var may []string
	for _, role := range of[rbacv1.ClusterRole](t, all, "ClusterRole") {
		for _, r := range role.Rules {
			may = append(may, fmt.Sprintf("%s %s %s", strings.Join(r.Verbs, ","), strings.Join(r.Resources, ","), strings.Join(r.ResourceNames, ",")))
		}
	}
	slices.Sort(may)
	if want := []string{"create pods/eviction ", "get services kubernetes", "get,patch,delete nodes worker-1-two", "impersonate groups system:nodes",
		"impersonate users system:node:worker-1-two", "list,delete pods "}; !slices.Equal(may, want) {
		t.Errorf("it may %q", may)
	}
	for _, sa := range of[v1.ServiceAccount](t, all, "ServiceAccount") {
		if sa.Labels["bowline.io/identity"] != "" {
			t.Errorf("host add would give the account %s rights", sa.Name)
		}
	}
}

// TestLocalPods: the pods that run and clean up have the same shape, and run only on that machine.
func TestLocalPods(t *testing.T) {
	all := documents(t, local)
	job := of[batchv1.Job](t, all, "Job")["bowline-local-release"]
	if job == nil || job.Annotations["helm.sh/hook"] != "post-delete" {
		t.Fatalf("nothing empties the machine: %+v", job)
	}
	args := map[string]string{
		"deployment": "join /run/containerd-two/containerd.sock -- run --config=/proc/self/fd/100/etc/bowline/config.yaml -v=2",
		"job": "join /run/containerd-two/containerd.sock -- host release --kubeconfig=/proc/self/fd/100/var/lib/bowline/account.kubeconfig --node-name=worker-1-two" +
			" --root-directory=/var/lib/bowline-nodes/worker-1-two --pod-logs-directory=/var/log/bowline-nodes/worker-1-two --cgroup-root=/bowline/worker-1-two" +
			" --drain-timeout=4m30s unix:///run/containerd-two/containerd.sock",
	}
	for name, p := range map[string]v1.PodSpec{"deployment": of[appsv1.Deployment](t, all, "Deployment")["bowline-local"].Spec.Template.Spec, "job": job.Spec.Template.Spec} {
		c := p.Containers[0]
		if !p.HostPID || !p.HostNetwork || !*c.SecurityContext.Privileged || *c.SecurityContext.RunAsUser != 0 || !*c.SecurityContext.ReadOnlyRootFilesystem {
			t.Errorf("the pod of the %s cannot be what it is to be: %+v", name, p)
		}
		// By the node's name: the hostname label may differ.
		if terms := p.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms; len(terms) != 1 || len(terms[0].MatchExpressions) != 0 ||
			len(terms[0].MatchFields) != 1 || terms[0].MatchFields[0].Key != "metadata.name" || !slices.Equal(terms[0].MatchFields[0].Values, []string{"worker-1"}) {
			t.Errorf("the pod of the %s runs on %v", name, terms)
		}
		var paths []string
		for _, v := range p.Volumes {
			if v.HostPath != nil {
				paths = append(paths, v.HostPath.Path)
			}
		}
		if !slices.Equal(paths, []string{"/run/containerd-two"}) {
			t.Errorf("the pod of the %s has %v of the machine", name, paths)
		}
		if got := strings.Join(c.Args, " "); got != args[name] {
			t.Errorf("the %s runs\n%s, not\n%s", name, got, args[name])
		}
	}
}
