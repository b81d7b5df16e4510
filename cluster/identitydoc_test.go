package cluster

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// The document and the program's messages give the same rights, and the document's configurations
// load.
func TestIdentityDocument(t *testing.T) {
	data := testutil.ReadFile(t, "../docs/identity.md")
	documented := map[string][]rbacv1.PolicyRule{
		"bowline-box-1": rules(t, impersonateRules("box-1")),
		"bowline-csr":   rules(t, certifyRights(config.IdentityCSR)),
	}
	configurations := 0
	for i, block := range strings.Split(string(data), "```") {
		text, isYAML := strings.CutPrefix(block, "yaml\n")
		if i%2 == 0 || !isYAML {
			continue
		}
		if strings.Contains(text, "kind: ClusterRole") {
			var role rbacv1.ClusterRole
			if err := yaml.UnmarshalStrict([]byte(text), &role); err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			if d := cmp.Diff(documented[role.Name], role.Rules); d != "" {
				t.Errorf("%s: the program asks for other rights (-program +document):\n%s", role.Name, d)
			}
			delete(documented, role.Name)
			continue
		}
		if !strings.Contains(text, "kubeconfig: ") {
			text = "kubeconfig: node.kubeconfig\n" + text
		}
		if _, err := config.Parse([]byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\n" + text)); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
		configurations++
	}
	if len(documented) > 0 || configurations != 4 {
		t.Errorf("%d configurations; not in the document: %v", configurations, documented)
	}
}

// rules parses the RBAC rules in a message.
func rules(t *testing.T, sentence string) (out []rbacv1.PolicyRule) {
	t.Helper()
	list := sentence[strings.Index(sentence, "[{"):]
	if err := yaml.UnmarshalStrict([]byte(list), &out); err != nil {
		t.Fatalf("the rules cannot be pasted: %v in %s", err, list)
	}
	return out
}
