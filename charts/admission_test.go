package charts

import (
	"maps"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestNodeAdmission: if enabled, the policies deny the nodes that this release's account may be to
// create what would outlive a stolen token. Mirror pods are allowed if static pods are configured.
func TestNodeAdmission(t *testing.T) {
	for file, c := range map[string]struct {
		account  string // its namespace and name, as CEL has them
		policies []string
	}{
		example:                             {"'machines', 'example-bowline'", []string{"example-bowline-node-certificates", "example-bowline-node-pods"}},
		"testdata/gitops.yaml":              {"'bowline', 'bowline'", []string{"bowline-node-certificates"}},
		"testdata/local.yaml":               {},
		"../deploy/kubernetes/bowline.yaml": {},
	} {
		all := documents(t, file)
		if len(c.policies) == 0 {
			for _, d := range all {
				if strings.HasPrefix(d.Kind, "ValidatingAdmissionPolicy") {
					t.Errorf("%s: %s %s was not asked for", file, d.Kind, d.name)
				}
			}
			continue
		}
		policies := of[admissionv1.ValidatingAdmissionPolicy](t, all, "ValidatingAdmissionPolicy")
		bindings := of[admissionv1.ValidatingAdmissionPolicyBinding](t, all, "ValidatingAdmissionPolicyBinding")
		if names := slices.Sorted(maps.Keys(policies)); !slices.Equal(names, c.policies) || len(bindings) != len(policies) {
			t.Errorf("%s: the policies are %q, with %d bindings; want %q", file, names, len(bindings), c.policies)
		}
		for name, p := range policies {
			b := bindings[name]
			if b == nil || b.Spec.PolicyName != name || !slices.Contains(b.Spec.ValidationActions, admissionv1.Deny) || b.Spec.MatchResources != nil {
				t.Errorf("%s: %s is bound by %+v", file, name, b)
			}
			if p.Spec.FailurePolicy == nil || *p.Spec.FailurePolicy != admissionv1.Fail || len(p.Spec.MatchConditions) != 1 ||
				!strings.Contains(p.Spec.MatchConditions[0].Expression, "authorizer.serviceAccount("+c.account+")") {
				t.Errorf("%s: %s is %+v", file, name, p.Spec)
			}
			resource := "certificatesigningrequests"
			if strings.HasSuffix(name, "-pods") {
				resource = "pods"
			}
			if rules := p.Spec.MatchConstraints.ResourceRules; len(rules) != 1 || !slices.Equal(rules[0].Resources, []string{resource}) || !slices.Equal(rules[0].Operations, []admissionv1.OperationType{admissionv1.Create}) {
				t.Errorf("%s: %s is for %+v", file, name, rules)
			}
		}
	}
}

// TestNodeAdmissionIsOff: it is off by default, because it needs a newer Kubernetes than Bowline
// itself.
func TestNodeAdmissionIsOff(t *testing.T) {
	data := testutil.ReadFile(t, "bowline/values.yaml")
	var values struct{ NodeAdmission *bool }
	if err := yaml.Unmarshal(data, &values); err != nil || values.NodeAdmission == nil || *values.NodeAdmission {
		t.Errorf("nodeAdmission is %v: %v", values.NodeAdmission, err)
	}
}
