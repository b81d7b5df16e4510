package credentialprovider

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n"

// place writes files, those in bin/ executable, and returns their directory.
func place(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		mode := os.FileMode(0o600)
		if strings.HasPrefix(name, "bin/") {
			mode = 0o700
		}
		file := filepath.Join(dir, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(file), 0o700))
		testutil.Must(t, os.WriteFile(file, []byte(text), mode))
	}
	return dir
}

const plain = "{name: one, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [r.example], defaultCacheDuration: 1m"

// withTokens is plain with tokens of service accounts.
const withTokens = plain + ", tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true"

// Every possible mistake in a configuration, with its messages.
func TestMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string // nil: none
	}{
		"plain":       {head + "providers: [" + plain + "}]", nil},
		"older":       {"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: CredentialProviderConfig\nproviders: [" + plain + "}]", nil},
		"oldest":      {"apiVersion: kubelet.config.k8s.io/v1alpha1\nkind: CredentialProviderConfig\nproviders: [" + plain + "}]", nil},
		"all":         {head + "providers: [" + plain + ", args: [a], env: [{name: A, value: b}]}]", nil},
		"tokens":      {head + "providers: [" + withTokens + ", requiredServiceAccountAnnotationKeys: [x.example/A, b], optionalServiceAccountAnnotationKeys: [B]}}]", nil},
		"other kind":  {"apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration\n", []string{"not a CredentialProviderConfig of kubelet.config.k8s.io/v1"}},
		"other group": {"apiVersion: v1\nkind: CredentialProviderConfig\n", []string{"not a CredentialProviderConfig of kubelet.config.k8s.io/v1"}},
		"unknown":     {head + "providers: [" + plain + ", arguments: []}]", []string{`unknown field "providers[0].arguments"`}},
		"older has no tokens": {"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: CredentialProviderConfig\nproviders: [" + withTokens + "}}]",
			[]string{`provider "one" has tokenAttributes, which kubelet.config.k8s.io/v1 has and kubelet.config.k8s.io/v1beta1 has not`}},
		"not YAML": {"{", []string{"not a CredentialProviderConfig"}},
		"none":     {head + "providers: []", []string{"providers: Required value: there is no provider in it"}},
		"names": {head + "providers: [{name: a/b}, {name: 'a b'}, {name: .}, {name: ..}, {}]", []string{
			`providers[0].name: Invalid value: "a/b": a program's name`, `providers[1].name: Invalid value: "a b": a program's name`,
			`providers[2].name: Invalid value: ".": a program's name`, `providers[3].name: Invalid value: "..": a program's name`,
			`providers[4].name: Invalid value: "": the name of a program`}},
		"nothing in it": {head + "providers: [{name: one}]", []string{
			"providers[0].apiVersion: Required value", "providers[0].matchImages: Required value", "providers[0].defaultCacheDuration: Required value"}},
		"twice":      {head + "providers: [" + plain + "}, " + plain + "}]", []string{`providers[1].name: Duplicate value: "one"`}},
		"missing":    {head + "providers: [" + strings.Replace(plain, "one", "two", 1) + "}]", []string{`providers[0].name: Invalid value: "two": there is no such program in `}},
		"no program": {head + "providers: [" + strings.Replace(plain, "one", "dir", 1) + "}]", []string{`providers[0].name: Invalid value: "dir": there is no such program in `}},
		"values": {head + "providers: [{name: one, apiVersion: v2, matchImages: ['r.example', '[x', 'r.example:port'], defaultCacheDuration: -1s}]", []string{
			`providers[0].apiVersion: Unsupported value: "v2"`, `providers[0].matchImages[1]: Invalid value: "[x"`, `providers[0].matchImages[2]: Invalid value: "r.example:port"`,
			`providers[0].defaultCacheDuration: Invalid value: "-1s": at least 0s`}},
		"tokens without anything": {head + "providers: [" + plain + ", tokenAttributes: {}}]", []string{
			"tokenAttributes.serviceAccountTokenAudience: Required value", "tokenAttributes.requireServiceAccount: Required value", "tokenAttributes.cacheType: Required value"}},
		"tokens of an older protocol": {head + "providers: [" + strings.Replace(withTokens, "k8s.io/v1", "k8s.io/v1beta1", 1) + "}}]", []string{
			"providers[0].tokenAttributes: Forbidden: only credentialprovider.kubelet.k8s.io/v1 has tokens"}},
		"tokens' values": {head + "providers: [" + strings.Replace(strings.Replace(withTokens, "true", "false", 1), "cacheType: Token", "cacheType: Pod", 1) +
			", requiredServiceAccountAnnotationKeys: [a, 'b c', a], optionalServiceAccountAnnotationKeys: [d, a, d]}}]", []string{
			"requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount is false", `requiredServiceAccountAnnotationKeys[1]: Invalid value: "b c"`,
			`requiredServiceAccountAnnotationKeys[2]: Duplicate value: "a"`, `optionalServiceAccountAnnotationKeys[2]: Duplicate value: "d"`,
			`optionalServiceAccountAnnotationKeys[1]: Invalid value: "a": it is required already`, `cacheType: Unsupported value: "Pod"`}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := place(t, map[string]string{"c.yaml": c.text, "bin/one": "", "bin/dir/x": ""})
			programs, err := Load(dir+"/c.yaml", dir+"/bin", true)
			if c.want == nil {
				if err != nil || len(programs) != 1 || programs[0].Path != dir+"/bin/one" {
					t.Fatalf("Load: %v, %v", programs, err)
				}
				return
			}
			if err == nil {
				t.Fatal("it was taken")
			}
			if !strings.HasPrefix(err.Error(), "imageCredentialProviderConfig") {
				t.Errorf("%v: it does not say which field it is of", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nlacks %q", err, want)
				}
			}
		})
	}
}

func TestLoadOfDirectories(t *testing.T) {
	other := strings.Replace(plain, "one", "two", 1)
	dir := place(t, map[string]string{
		"d/20.yaml": head + "providers: [" + plain + "}]", "d/10.yml": head + "providers: [" + other + "}]", "d/notes.txt": "not read", "d/sub.yaml/x": "not read",
		"e/a.json":  `{"apiVersion":"kubelet.config.k8s.io/v1","kind":"CredentialProviderConfig","providers":[` + `{"name":"one","apiVersion":"credentialprovider.kubelet.k8s.io/v1","matchImages":["r.example"],"defaultCacheDuration":"0s"}]}`,
		"e/b.yaml":  head + "providers: [" + plain + "}]",
		"bin/one":   "",
		"bin/two":   "",
		"empty/x":   "",
		"plain.txt": "",
	})
	programs, err := Load(dir+"/d", dir+"/bin", true)
	var names []string
	for _, p := range programs {
		names = append(names, p.Config.Name)
	}
	if err != nil || !slices.Equal(names, []string{"two", "one"}) {
		t.Errorf("a directory gave %v, %v; want two, then one", names, err)
	}
	for _, c := range []struct{ config, bin, want string }{
		{"e", "bin", `providers[1].name: Duplicate value: "one"`},
		{"empty", "bin", "there is no *.json, *.yaml or *.yml in it"},
		{"none", "bin", "imageCredentialProviderConfig: stat"},
		{"d", "none", "imageCredentialProviderBinDir: stat"},
		{"d", "plain.txt", "plain.txt is not a directory"},
	} {
		if _, err := Load(filepath.Join(dir, c.config), filepath.Join(dir, c.bin), true); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v, want %q", c.config, c.bin, err, c.want)
		}
	}
}

// TestTokensOff: without the feature gate of tokens, a provider that needs them is refused, and others work.
func TestTokensOff(t *testing.T) {
	dir := place(t, map[string]string{"plain.yaml": head + "providers: [" + plain + "}]", "tokens.yaml": head + "providers: [" + withTokens + "}}]", "bin/one": ""})
	if _, err := Load(dir+"/plain.yaml", dir+"/bin", false); err != nil {
		t.Error(err)
	}
	_, err := Load(dir+"/tokens.yaml", dir+"/bin", false)
	if want := "providers[0].tokenAttributes: Forbidden: the feature gate KubeletServiceAccountTokenForCredentialProviders is off"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	if _, err := Load(dir+"/tokens.yaml", dir+"/bin", true); err != nil {
		t.Error(err)
	}
}
