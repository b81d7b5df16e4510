// Package charts tests the chart's output: testdata/example.yaml has everything in it, and
// hack/manifests.sh keeps it up to date.
package charts

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// document is one object, decoded strictly: an unknown field is an error.
type document struct {
	metav1.TypeMeta
	name string
	raw  []byte
}

func documents(t *testing.T, file string) []document {
	t.Helper()
	data := testutil.ReadFile(t, file)
	var all []document
	for part := range bytes.SplitSeq(data, []byte("\n---\n")) {
		var d struct {
			metav1.TypeMeta   `json:",inline"`
			metav1.ObjectMeta `json:"metadata"`
		}
		testutil.Must(t, yaml.Unmarshal(part, &d))
		if d.Kind != "" {
			all = append(all, document{d.TypeMeta, d.Name, part})
		}
	}
	return all
}

// of are the documents of a kind, decoded into T.
func of[T any](t *testing.T, all []document, kind string) map[string]*T {
	t.Helper()
	found := map[string]*T{}
	for _, d := range all {
		if d.Kind != kind {
			continue
		}
		into := new(T)
		if err := yaml.UnmarshalStrict(d.raw, into); err != nil {
			t.Errorf("%s %s: %v", kind, d.name, err)
		}
		found[d.name] = into
	}
	if len(found) == 0 {
		t.Fatalf("there is no %s", kind)
	}
	return found
}

const example = "testdata/example.yaml"

var manifests = []string{example, "../deploy/kubernetes/bowline.yaml"}

// TestConfiguration: the process accepts the ConfigMap's content, and makes nodes of the Hosts with
// it.
func TestConfiguration(t *testing.T) {
	for _, file := range manifests {
		for _, c := range of[v1.ConfigMap](t, documents(t, file), "ConfigMap") {
			if _, err := config.ParseFile("/etc/bowline/config.yaml", []byte(c.Data["config.yaml"])); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}

	all := documents(t, example)
	cm := of[v1.ConfigMap](t, all, "ConfigMap")["example-bowline"]
	c, err := config.ParseFile("/etc/bowline/config.yaml", []byte(cm.Data["config.yaml"]))
	testutil.Must(t, err)
	if c.HostObjects == nil || c.HostObjects.Namespace != "machines" || cm.Namespace != "machines" {
		t.Fatalf("the Secrets are looked for in another namespace: %+v", c.HostObjects)
	}
	host := of[v1alpha1.Host](t, all, "Host")["box-1"]
	if host == nil {
		t.Fatal("there is no Host box-1")
	}
	h, err := hosts.Translate(host, &c.HostObjects.Template, c.HostObjects.Namespace, c.HostObjects.Kubeconfig)
	testutil.Must(t, err)
	if h.Identity.Mode != config.IdentityImpersonate || h.Authentication.X509.ClientCAFile != "/etc/bowline/client-ca.crt" || !*h.ServerTLSBootstrap {
		t.Errorf("who it is, and who may call it: %+v %+v", h.Identity, h.Authentication)
	}
	if h.ProviderID != "bowline://box-1" || h.RootDirectory != "/srv/bowline" || h.MaxPods != 20 || h.SSH.Secret.Name != "box-1" {
		t.Errorf("%q, %q, %d pods, key %+v", h.ProviderID, h.RootDirectory, h.MaxPods, h.SSH.Secret)
	}
	if h.Labels["node.kubernetes.io/exclude-from-external-load-balancers"] != "true" || h.Labels["rack"] != "r1" {
		t.Errorf("labels %v", h.Labels)
	}
	if len(h.Taints) != 2 || h.Taints[0].Key != "bowline.io/node" || h.Taints[0].Effect != v1.TaintEffectNoSchedule {
		t.Errorf("taints %v: what does not know the node stays away", h.Taints)
	}
}

// TestRightsAreNarrow: rules name resources where possible, and grant nothing that the account does
// not have.
func TestRightsAreNarrow(t *testing.T) {
	all := documents(t, example)
	roles := of[rbacv1.ClusterRole](t, all, "ClusterRole")
	rules := map[string][]rbacv1.PolicyRule{}
	for name, role := range roles {
		rules[name] = role.Rules
	}
	for name, role := range of[rbacv1.Role](t, all, "Role") {
		rules[name] = role.Rules
	}
	var impersonated, secrets []string
	for name, rules := range rules {
		for _, r := range rules {
			for _, words := range [][]string{r.APIGroups, r.Resources, r.Verbs} {
				if slices.Contains(words, "*") {
					t.Errorf("%s: %v", name, r)
				}
			}
			for _, verb := range []string{"escalate", "bind", "approve"} {
				if slices.Contains(r.Verbs, verb) {
					t.Errorf("%s may %s: by that it can be anybody", name, verb)
				}
			}
			for _, resource := range r.Resources {
				changes := slices.Contains(r.Verbs, "patch") || slices.Contains(r.Verbs, "delete")
				switch {
				case resource == "users" || resource == "groups" || resource == "secrets" || resource == "nodes" && changes:
					if len(r.ResourceNames) == 0 {
						t.Errorf("%s: %v: names none", name, r)
					}
				case resource == "serviceaccounts" || resource == "clusterroles" || resource == "clusterrolebindings":
					t.Errorf("%s: %v", name, r)
				}
				switch resource {
				case "users":
					impersonated = append(impersonated, r.ResourceNames...)
				case "secrets":
					secrets = append(secrets, r.ResourceNames...)
				case "groups":
					if !slices.Equal(r.ResourceNames, []string{"system:nodes"}) {
						t.Errorf("%s: %v", name, r)
					}
				}
			}
		}
	}
	slices.Sort(impersonated)
	if want := []string{"system:node:box-1", "system:node:box-3", "system:node:other"}; !slices.Equal(impersonated, want) {
		t.Errorf("it may be %v, want %v", impersonated, want)
	}
	slices.Sort(secrets)
	if want := []string{"box-1", "box-3", "keys"}; !slices.Equal(secrets, want) {
		t.Errorf("it may read %v, want %v", secrets, want)
	}
	// The roles of the nodes are aggregated by one label only.
	join := roles["example-bowline-nodes"].AggregationRule.ClusterRoleSelectors
	for _, node := range []string{"box-1", "box-3", "other"} {
		role := roles["example-bowline-node-"+node]
		if role == nil || len(join) != 1 || len(join[0].MatchLabels) != 1 || role.Labels["bowline.io/nodes-of"] != join[0].MatchLabels["bowline.io/nodes-of"] {
			t.Errorf("the role of %s is not among those that %v joins", node, join)
		}
	}
	// For watching Hosts the chart grants what docs/hosts.md says, except for changes to nodes,
	// which it grants by name.
	want := documented(t, "../docs/hosts.md", "bowline-hosts").Rules
	for i, r := range want {
		if slices.Equal(r.Resources, []string{"nodes"}) {
			want[i].Verbs = []string{"get"}
		}
	}
	if got := roles["example-bowline"].Rules; !sameRules(got, want) {
		t.Errorf("the rules are\n%v\ndocs/hosts.md has\n%v", got, want)
	}
}

// TestRightsByHand: the rights for a Host outside of the chart, as in docs/helm.md, are those that
// the chart would have granted.
func TestRightsByHand(t *testing.T) {
	byHand := documented(t, "../docs/helm.md", "bowline-node-box-2")
	chart := of[rbacv1.ClusterRole](t, documents(t, example), "ClusterRole")["example-bowline-node-box-3"]
	data, err := yaml.Marshal(chart.Rules)
	testutil.Must(t, err)
	var want []rbacv1.PolicyRule
	testutil.Must(t, yaml.UnmarshalStrict(bytes.ReplaceAll(data, []byte("box-3"), []byte("box-2")), &want))
	if !sameRules(byHand.Rules, want) {
		t.Errorf("the rules by hand are\n%v\nthose of the chart\n%v", byHand.Rules, want)
	}
	if byHand.Labels["bowline.io/nodes-of"] != "bowline" || chart.Labels["bowline.io/nodes-of"] != "example-bowline" {
		t.Errorf("labels %v by hand, %v of the chart", byHand.Labels, chart.Labels)
	}
}

// documented is the ClusterRole of that name in a document.
func documented(t *testing.T, file, name string) *rbacv1.ClusterRole {
	t.Helper()
	docs := testutil.ReadFile(t, file)
	for _, block := range strings.Split(string(docs), "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		block, _, _ = strings.Cut(block, "\n---\n")
		if !strings.Contains(block, "name: "+name+"\n") {
			continue
		}
		role := &rbacv1.ClusterRole{}
		testutil.Must(t, yaml.UnmarshalStrict([]byte(block), role))
		return role
	}
	t.Fatalf("%s has no ClusterRole %s", file, name)
	return nil
}

func sameRules(a, b []rbacv1.PolicyRule) bool {
	text := func(rules []rbacv1.PolicyRule) []string {
		var all []string
		for _, r := range rules {
			all = append(all, fmt.Sprintf("%q", r))
		}
		slices.Sort(all)
		return all
	}
	return slices.Equal(text(a), text(b))
}

// TestPodsAreRestricted: every pod meets the Pod Security Standard "restricted", and has a
// read-only root file system.
func TestPodsAreRestricted(t *testing.T) {
	for _, file := range manifests {
		all := documents(t, file)
		pods := map[string]v1.PodSpec{}
		for name, d := range of[appsv1.Deployment](t, all, "Deployment") {
			pods[name] = d.Spec.Template.Spec
		}
		if file == example {
			for name, j := range of[batchv1.Job](t, all, "Job") {
				pods[name] = j.Spec.Template.Spec
			}
			for name, p := range of[v1.Pod](t, all, "Pod") {
				pods[name] = p.Spec
			}
			if len(pods) != 7 {
				t.Errorf("there are %d pods: one that runs, three hooks and three tests are expected", len(pods))
			}
		}
		for name, p := range pods {
			s := p.SecurityContext
			if s == nil || !*s.RunAsNonRoot || *s.RunAsUser != 65532 || s.SeccompProfile.Type != v1.SeccompProfileTypeRuntimeDefault || p.HostNetwork || p.HostPID || p.HostIPC {
				t.Errorf("%s of %s: %+v", name, file, s)
			}
			for _, v := range p.Volumes {
				if v.HostPath != nil {
					t.Errorf("%s has the machine's %s", name, v.HostPath.Path)
				}
			}
			for _, c := range p.Containers {
				s := c.SecurityContext
				if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || len(s.Capabilities.Add) != 0 || !slices.Equal(s.Capabilities.Drop, []v1.Capability{"ALL"}) {
					t.Errorf("%s of %s: %+v", name, file, s)
				}
				if c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
					t.Errorf("%s of %s has no bounds", name, file)
				}
				if file == example && !strings.HasPrefix(c.Image, "registry.example/bowline@sha256:") {
					t.Errorf("%s runs %s", name, c.Image)
				}
			}
		}
	}
}

// TestHooks: before an upgrade the hooks remove what the chart does not have any more, and before
// the uninstall everything.
func TestHooks(t *testing.T) {
	jobs := of[batchv1.Job](t, documents(t, example), "Job")
	for name, want := range map[string]struct{ hook, args string }{
		"example-bowline-uninstall": {"pre-delete", "host clear --yes --timeout=4m30s --detach"},
		"example-bowline-leases":    {"post-delete", "host clear --yes --timeout=4m30s --leases=machines"},
		"example-bowline-change": {"pre-upgrade,pre-rollback",
			"host clear --yes --timeout=4m30s --selector=app.kubernetes.io/instance=example,app.kubernetes.io/managed-by=Helm --except=box-1 --except=box-2"},
	} {
		job := jobs[name]
		if job == nil {
			t.Errorf("there is no Job %s", name)
			continue
		}
		if got := job.Annotations["helm.sh/hook"]; got != want.hook {
			t.Errorf("%s is run %s", name, got)
		}
		if got := strings.Join(job.Spec.Template.Spec.Containers[0].Args, " "); got != want.args {
			t.Errorf("%s runs %s", name, got)
		}
	}
}

// TestTestPods: each runs on its node, and tolerates only the node's own taints, not those of a
// problem.
func TestTestPods(t *testing.T) {
	pods := of[v1.Pod](t, documents(t, example), "Pod")
	for node, taints := range map[string][]string{"box-1": {"bowline.io/node", "lent"}, "other": {"bowline.io/node"}, "box-3": {"bowline.io/node"}} {
		p := pods["example-bowline-test-"+node]
		if p == nil || p.Annotations["helm.sh/hook"] != "test" || p.Spec.NodeSelector[v1.LabelHostname] != node {
			t.Errorf("%s: %+v", node, p)
			continue
		}
		var tolerated []string
		for _, tol := range p.Spec.Tolerations {
			tolerated = append(tolerated, tol.Key)
		}
		if !slices.Equal(tolerated, taints) {
			t.Errorf("the pod for %s tolerates %v, want %v", node, tolerated, taints)
		}
	}
}

// TestCRDs: the chart and deploy/kubernetes have every CRD that hack/generate.sh makes.
func TestCRDs(t *testing.T) {
	files, err := filepath.Glob("bowline/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v: %v", files, err)
	}
	deployed := map[string]bool{}
	for _, d := range documents(t, "../deploy/kubernetes/bowline.yaml") {
		if d.Kind == "CustomResourceDefinition" {
			deployed[d.name] = true
		}
	}
	for _, file := range files {
		for _, d := range documents(t, file) {
			if !deployed[d.name] {
				t.Errorf("deploy/kubernetes lacks the CRD %s", d.name)
			}
		}
	}
}
