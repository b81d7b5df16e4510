package images

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// provided is a fake Providers by service account; those of "" are the node's own.
type provided struct {
	by    map[string][]Credential
	asked int
}

func (p *provided) Credentials(_ context.Context, pod *v1.Pod, repository string) []Credential {
	p.asked++
	if !strings.HasPrefix(repository, "registry.example/") {
		return nil
	}
	return p.by[pod.Spec.ServiceAccountName]
}

func credential(user, password string, account *AccountID) Credential {
	return Credential{Auth: &runtimeapi.AuthConfig{Username: user, Password: password}, Account: account}
}

func account(name string, uid types.UID) *AccountID {
	return &AccountID{Namespace: "shop", Name: name, UID: uid}
}

func podAs(account string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", UID: types.UID("uid-" + account)}, Spec: v1.PodSpec{ServiceAccountName: account}}
}

// Pull secrets are tried first, then what providers have.
func TestOrderOfSources(t *testing.T) {
	r := &registry{pullErr: onlyFor("provider", "2")}
	m, _ := manager(t, r, Config{Providers: &provided{by: map[string][]Credential{
		"robot": {credential("other", "0", account("robot", "r1")), credential("ann", "1", nil), credential("provider", "2", account("robot", "r1"))},
	}}})
	c := &v1.Container{Name: "c", Image: private}
	if _, err := m.Ensure(t.Context(), podAs("robot"), c, []v1.Secret{pullSecret("s", "ann", "1"), pullSecret("s2", "bob", "1")}); err != nil {
		t.Fatal(err)
	}
	var tried []string
	for _, call := range r.calls {
		if _, user, ok := strings.Cut(call, " as "); ok {
			tried = append(tried, user)
		}
	}
	if got := strings.Join(tried, " "); got != "ann bob other provider" {
		t.Errorf("tried %s", got)
	}
}

// An image pulled with a service account's credential is open to the pods of that account; one
// pulled with the node's own, to all; one pulled with a secret, only by that secret.
func TestWhoMayUseAnImageOfAProvider(t *testing.T) {
	for name, c := range map[string]struct {
		first  string // the account of the pod that pulls
		secret bool   // which has a pull secret with the same credentials
		pulls  map[string]bool
	}{
		"account": {"robot", false, map[string]bool{"robot": false, "reborn": true, "other": true, "": true, "node": true}},
		"node":    {"node", false, map[string]bool{"robot": false, "reborn": false, "other": false, "": false, "node": false}},
		"secret":  {"node", true, map[string]bool{"robot": true, "other": true, "": true, "node": true}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &files{}
			providers := &provided{by: map[string][]Credential{
				"robot": {credential("ann", "1", account("robot", "r1"))}, "reborn": {credential("ann", "1", account("robot", "r2"))},
				"other": {credential("ann", "1", account("other", "o1"))}, "node": {credential("ann", "1", nil)},
			}}
			r := &registry{pullErr: onlyFor("ann", "1")}
			node := func() *Manager {
				m, _ := manager(t, r, Config{Files: f, RecordPath: "/records", Providers: providers})
				return m
			}
			var secrets []v1.Secret
			if c.secret {
				secrets = []v1.Secret{pullSecret("s", "ann", "1")}
			}
			image := &v1.Container{Name: "c", Image: private, ImagePullPolicy: v1.PullIfNotPresent}
			if _, err := node().Ensure(t.Context(), podAs(c.first), image, secrets); err != nil {
				t.Fatal(err)
			}
			record := string(f.data)
			if strings.Contains(record, `"ann"`) {
				t.Errorf("the record has the credential: %s", record)
			}
			for who, pulls := range c.pulls {
				f.data = []byte(record)
				before, asked := r.pulls(), providers.asked
				// A new process knows only what is recorded.
				_, err := node().Ensure(t.Context(), podAs(who), &v1.Container{Name: "c", Image: private, ImagePullPolicy: v1.PullNever}, nil)
				if (err != nil) != pulls || r.pulls() != before {
					t.Errorf("%q: %v; want it to need a pull: %v", who, err, pulls)
				}
				if c.first != "robot" && providers.asked != asked {
					t.Errorf("%q: a provider was asked where no account is let in", who)
				}
			}
		})
	}
}

// A pod that waits for its back-off runs no program.
func TestNoProviderInBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		providers := &provided{}
		m, _ := manager(t, &registry{pullErr: onlyFor("ann", "1")}, Config{Providers: providers})
		c := &v1.Container{Name: "c", Image: private}
		for range 5 {
			if _, err := m.Ensure(t.Context(), podAs("robot"), c, nil); err == nil {
				t.Fatal("it was pulled")
			}
		}
		if providers.asked != 1 {
			t.Errorf("asked %d times", providers.asked)
		}
		time.Sleep(11 * time.Second)
		_, _ = m.Ensure(t.Context(), podAs("robot"), c, nil)
		if providers.asked != 2 {
			t.Errorf("asked %d times after the back-off", providers.asked)
		}
	})
}
