package images

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Credential is a registry credential and its source.
type Credential struct {
	Auth *runtimeapi.AuthConfig
	// Account is the service account whose token it was obtained with. A credential without an
	// account and without a pull secret is open to every pod of the node.
	Account *AccountID
	secret  *secretID // without its hash
}

// Keyring holds credentials by registry, named as in Docker's configuration: registry.example,
// *.example:5000, registry.example/team.
type Keyring map[string][]Credential

// Add adds a credential for a registry.
func (k Keyring) Add(registry string, c Credential) {
	key := registryKey(registry)
	k[key] = append(k[key], c)
}

// Lookup returns the credentials that fit a repository, the most specific registry first. If
// several fit, they are tried in order, so that a rotated one takes over.
func (k Keyring) Lookup(repository string) []Credential {
	var keys []string
	for key := range k {
		if Fits(key, repository) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	slices.Reverse(keys) // of two keys with the same beginning, the longer one is more specific and sorts later
	var out []Credential
	for _, key := range keys {
		out = append(out, k[key]...)
	}
	if len(out) == 0 && strings.HasPrefix(repository, "docker.io/") {
		out = slices.Clone(k["index.docker.io"])
	}
	return out
}

// credentials returns the credentials in pull secrets that fit a repository. The error names the
// secret, never its content.
func credentials(secrets []v1.Secret, repository string) ([]Credential, error) {
	ring := Keyring{}
	for i := range secrets {
		if err := addSecret(ring, &secrets[i]); err != nil {
			return nil, fmt.Errorf("pull secret %s/%s: %w", secrets[i].Namespace, secrets[i].Name, err)
		}
	}
	return ring.Lookup(repository), nil
}

// distinct returns the credentials to try, without duplicates.
func distinct(list []Credential) []*runtimeapi.AuthConfig {
	var out []*runtimeapi.AuthConfig
	for _, c := range list {
		if !slices.ContainsFunc(out, func(b *runtimeapi.AuthConfig) bool { return sameAuth(c.Auth, b) }) {
			out = append(out, c.Auth)
		}
	}
	return out
}

func sameAuth(a, b *runtimeapi.AuthConfig) bool {
	return a.Username == b.Username && a.Password == b.Password
}

// dockerAuth is one entry of a Docker configuration file.
type dockerAuth struct {
	Username string `json:"username"`
	Password string `json:"password"`
	Auth     string `json:"auth"` // base64 of username:password; overrides them
}

// addSecret reads a secret of type dockerconfigjson or dockercfg and ignores others.
func addSecret(ring Keyring, s *v1.Secret) error {
	var auths map[string]dockerAuth
	switch s.Type {
	case v1.SecretTypeDockerConfigJson:
		var file struct {
			Auths map[string]dockerAuth `json:"auths"`
		}
		if data := s.Data[v1.DockerConfigJsonKey]; len(data) > 0 {
			if json.Unmarshal(data, &file) != nil {
				return fmt.Errorf("%s is not a Docker configuration in JSON", v1.DockerConfigJsonKey)
			}
		}
		auths = file.Auths
	case v1.SecretTypeDockercfg:
		if data := s.Data[v1.DockerConfigKey]; len(data) > 0 {
			if json.Unmarshal(data, &auths) != nil {
				return fmt.Errorf("%s is not a Docker configuration in JSON", v1.DockerConfigKey)
			}
		}
	}
	for registry, entry := range auths {
		auth, err := entry.config()
		if err != nil {
			return fmt.Errorf("entry %q: %w", registry, err)
		}
		ring.Add(registry, Credential{Auth: auth, secret: &secretID{Namespace: s.Namespace, Name: s.Name, UID: s.UID}})
	}
	return nil
}

func (d dockerAuth) config() (*runtimeapi.AuthConfig, error) {
	out := &runtimeapi.AuthConfig{Username: d.Username, Password: d.Password}
	if d.Auth == "" {
		return out, nil
	}
	encoding := base64.RawStdEncoding
	if strings.HasSuffix(strings.TrimSpace(d.Auth), "=") {
		encoding = base64.StdEncoding
	}
	decoded, err := encoding.DecodeString(strings.TrimSpace(d.Auth))
	if err != nil {
		return nil, fmt.Errorf("auth is not base64")
	}
	user, password, ok := strings.Cut(string(decoded), ":")
	if !ok {
		return nil, fmt.Errorf("auth must be base64 of username:password")
	}
	out.Username, out.Password = user, password
	return out, nil
}

// registryKey is host and path of a registry name in a Docker configuration, which may have a
// scheme or an API version.
func registryKey(registry string) string {
	for _, scheme := range []string{"https://", "http://"} {
		if rest, ok := strings.CutPrefix(registry, scheme); ok {
			registry = rest
			break
		}
	}
	host, p, _ := strings.Cut(registry, "/")
	if p == "" {
		return host
	}
	p = "/" + p
	for _, version := range []string{"/v1/", "/v2/"} {
		if strings.HasPrefix(p, version) {
			p = p[len(version)-1:]
			break
		}
	}
	if p == "/" {
		return host
	}
	return host + p
}

// Fits reports whether a registry matches a repository: equal ports, hosts with equally many parts,
// each part matching the registry's glob, and the registry's path a prefix.
func Fits(key, repository string) bool {
	keyHost, keyPath := cutPath(key)
	host, rest := cutPath(repository)
	keyHost, keyPort := cutPort(keyHost)
	host, port := cutPort(host)
	if keyPort != port || !strings.HasPrefix(rest, keyPath) {
		return false
	}
	keyParts, parts := strings.Split(keyHost, "."), strings.Split(host, ".")
	if len(keyParts) != len(parts) {
		return false
	}
	for i := range parts {
		if keyParts[i] == parts[i] { // an IPv6 address in brackets is no glob
			continue
		}
		if ok, err := path.Match(keyParts[i], parts[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func cutPath(s string) (host, path string) {
	if i := strings.IndexByte(s, '/'); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

func cutPort(s string) (host, port string) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.HasSuffix(s, "]") {
		return s, ""
	}
	return s[:i], s[i+1:]
}
