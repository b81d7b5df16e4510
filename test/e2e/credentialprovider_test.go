package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

const providerConfig = `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: helper
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: [registry.lab/toolbox]
  defaultCacheDuration: 0s
  env: [{name: ASKED, value: FILE}]
  tokenAttributes: {serviceAccountTokenAudience: registry.lab, cacheType: Token, requireServiceAccount: true}
`

// credentialProvider puts a program beside the configuration, which writes down its request, and
// lets nodes request tokens for its audience, as the API server requires.
func credentialProvider(t *testing.T, own *labtest.Lab) (asked string) {
	t.Helper()
	asked = filepath.Join(own.Dir, "asked.json")
	testutil.Must(t, os.WriteFile(filepath.Join(own.Dir, "credentials.yaml"), []byte(strings.Replace(providerConfig, "FILE", asked, 1)), 0o600))
	testutil.Must(t, os.Mkdir(filepath.Join(own.Dir, "providers"), 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(own.Dir, "providers/helper"), []byte(`#!/bin/sh
cat >"$ASKED.new" && mv "$ASKED.new" "$ASKED"
echo '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Registry",
  "auth":{"registry.lab":{"username":"lab","password":"not-a-secret"}}}'
`), 0o755))
	rbac := own.Client.RbacV1()
	_, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "registry-tokens"},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"request-serviceaccounts-token-audience"}, APIGroups: []string{""}, Resources: []string{"registry.lab"}}}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	_, err = rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "registry-tokens"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "registry-tokens"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"}}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	return asked
}

// providerWasAsked checks that the provider got a token of the pod's service account, and that the
// record of pulls names this account as one that may use the image.
func providerWasAsked(t *testing.T, own *labtest.Lab, b *labtest.Bowline, asked, record string) {
	t.Helper()
	var request struct{ Image, ServiceAccountToken string }
	data, err := os.ReadFile(asked)
	if err != nil {
		t.Fatalf("the credential provider was not asked: %v\n%s", err, b.LogTail(8000))
	}
	testutil.Must(t, json.Unmarshal(data, &request))
	if request.Image != "registry.lab/toolbox" || strings.Count(request.ServiceAccountToken, ".") != 2 {
		t.Errorf("the credential provider was asked for %q, with a token of %d bytes", request.Image, len(request.ServiceAccountToken))
	}
	account, err := own.Client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
	testutil.Must(t, err)
	if data, err = os.ReadFile(record); err != nil || !strings.Contains(string(data), `"serviceAccounts":[{"namespace":"default","name":"default","uid":"`+string(account.UID)+`"}]`) {
		t.Errorf("the record of pulls lacks the service account: %v\n%s", err, data)
	}
}
