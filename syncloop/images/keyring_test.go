package images

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// secret makes a dockerconfigjson from pairs of registry and user; the password is "p-" and the
// user.
func secret(pairs ...string) v1.Secret {
	var entries []string
	for i := 0; i+1 < len(pairs); i += 2 {
		auth := base64.StdEncoding.EncodeToString([]byte(pairs[i+1] + ":p-" + pairs[i+1]))
		entries = append(entries, fmt.Sprintf("%q:{\"auth\":%q}", pairs[i], auth))
	}
	return v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pull"},
		Type:       v1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths":{` + strings.Join(entries, ",") + `}}`)},
	}
}

func TestCredentials(t *testing.T) {
	for _, c := range []struct {
		name, repository string
		secrets          []v1.Secret
		want             []string // users, in order
	}{
		{"host", "r.example/a", []v1.Secret{secret("r.example", "u")}, []string{"u"}},
		{"other host", "r.example/a", []v1.Secret{secret("s.example", "u")}, nil},
		{"scheme and version", "r.example/a", []v1.Secret{secret("https://r.example/v2/", "u")}, []string{"u"}},
		{"path is a prefix, most specific first", "r.example/team/app", []v1.Secret{secret("r.example", "any", "r.example/team", "team", "r.example/other", "no")}, []string{"team", "any"}},
		{"glob of one part", "eu.r.example/a", []v1.Secret{secret("*.r.example", "g")}, []string{"g"}},
		{"glob does not span parts", "a.b.r.example/a", []v1.Secret{secret("*.r.example", "g")}, nil},
		{"port must be equal", "r.example:5000/a", []v1.Secret{secret("r.example", "no", "r.example:5000", "yes")}, []string{"yes"}},
		{"address with a port", "[fd00::1]:5000/a", []v1.Secret{secret("[fd00::1]:5000", "six")}, []string{"six"}},
		{"Docker Hub by its old name", "docker.io/library/a", []v1.Secret{secret("https://index.docker.io/v1/", "hub")}, []string{"hub"}},
		{"Docker Hub by its name wins", "docker.io/library/a", []v1.Secret{secret("https://index.docker.io/v1/", "old", "docker.io", "new")}, []string{"new"}},
		{"Docker Hub's go nowhere else", "localhost/a", []v1.Secret{secret("https://index.docker.io/v1/", "hub")}, nil},
		{"two secrets, in order", "r.example/a", []v1.Secret{secret("r.example", "first"), secret("r.example", "second")}, []string{"first", "second"}},
		{"the same twice", "r.example/a", []v1.Secret{secret("r.example", "u"), secret("r.example", "u")}, []string{"u"}},
		{"old form", "r.example/a", []v1.Secret{{Type: v1.SecretTypeDockercfg, Data: map[string][]byte{v1.DockerConfigKey: []byte(`{"r.example":{"username":"old","password":"x"}}`)}}}, []string{"old"}},
		{"not a pull secret", "r.example/a", []v1.Secret{{Type: v1.SecretTypeOpaque, Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(`{`)}}}, nil},
		{"unpadded", "r.example/a", []v1.Secret{{Type: v1.SecretTypeDockercfg, Data: map[string][]byte{v1.DockerConfigKey: []byte(`{"r.example":{"auth":"dTpwOnE"}}`)}}}, []string{"u"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			auths, err := credentials(c.secrets, c.repository)
			testutil.Must(t, err)
			var users []string
			for _, a := range distinct(auths) {
				users = append(users, a.Username)
			}
			if !slices.Equal(users, c.want) {
				t.Errorf("users %v, want %v", users, c.want)
			}
		})
	}
}

func TestCredentialsKeepColonsOfPasswords(t *testing.T) {
	auths, err := credentials([]v1.Secret{{Type: v1.SecretTypeDockercfg, Data: map[string][]byte{v1.DockerConfigKey: []byte(`{"r.example":{"auth":"dTpwOnE"}}`)}}}, "r.example/a")
	if err != nil || len(auths) != 1 || auths[0].Auth.Password != "p:q" {
		t.Errorf("got %v, %v; want the password p:q", auths, err)
	}
}

func TestBrokenSecretIsNamedAndNotShown(t *testing.T) {
	const hidden = "hunter2"
	for _, data := range []string{`{"auths": ` + hidden, `{"auths":{"r.example":{"auth":"` + hidden + `!"}}}`, `{"auths":{"r.example":{"auth":"` + base64.StdEncoding.EncodeToString([]byte(hidden)) + `"}}}`} {
		s := secret()
		s.Data[v1.DockerConfigJsonKey] = []byte(data)
		_, err := credentials([]v1.Secret{s}, "r.example/a")
		if err == nil || !strings.Contains(err.Error(), "shop/pull") || strings.Contains(err.Error(), hidden) {
			t.Errorf("%s: error %v; want one that names the secret and holds nothing of it", data, err)
		}
	}
}
