package images

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Providers have credentials beside those of pull secrets.
type Providers interface {
	// Credentials that fit the repository, for a pod, in the order in which they are to
	// be tried; none where there are none to be had.
	Credentials(ctx context.Context, p *v1.Pod, repository string) []Credential
}

// AccountID is a service account for whose token credentials were had that pulled an
// image. Another pod of the same account may use the image as well.
type AccountID struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// sources are the credentials of each secret that fit the repository.
func sources(secrets []v1.Secret, repository string) []Credential {
	var out []Credential
	for i := range secrets {
		// An error is told where the credentials are to be used.
		found, _ := credentials(secrets[i:i+1], repository)
		out = append(out, found...)
	}
	return out
}

// of is the secret with the hash of one of its credentials.
func (s secretID) of(auth *runtimeapi.AuthConfig, f *recordFile) secretID {
	s.Hash = f.hash(auth)
	return s
}

// letIn are those to whom an image is open that was pulled with the credential used.
func letIn(used *runtimeapi.AuthConfig, have []Credential, f *recordFile) (a access) {
	if used == nil {
		return access{Everyone: true}
	}
	for _, c := range have {
		switch {
		case !sameAuth(c.Auth, used):
		case c.secret != nil:
			a.Secrets = append(a.Secrets, c.secret.of(c.Auth, f))
		case len(a.Secrets) > 0:
			// A secret's own: that a provider has it too opens the image to nobody else.
		case c.Account == nil:
			return access{Everyone: true}
		case !slices.Contains(a.Accounts, *c.Account):
			a.Accounts = append(a.Accounts, *c.Account)
		}
	}
	return a
}

// holdsAccount: the pod that has these credentials is of an account that is let in.
func (a access) holdsAccount(have []Credential) bool {
	return slices.ContainsFunc(have, func(c Credential) bool { return c.Account != nil && slices.Contains(a.Accounts, *c.Account) })
}

func (a *access) addAccounts(more []AccountID) (changed bool) {
	a.Accounts = slices.Clone(a.Accounts)
	for _, id := range more {
		if !slices.Contains(a.Accounts, id) && len(a.Accounts) < maxSecrets {
			a.Accounts, changed = append(a.Accounts, id), true
		}
	}
	return changed
}

// accountsMay says whether some account is let in, so that it is worth asking the
// providers whether the pod's is.
func (r *records) accountsMay(ctx context.Context, repository, id string) (some bool, err error) {
	err = r.locked(ctx, func(f *recordFile) bool {
		some = len(f.Images[id][repository].Accounts) > 0
		return false
	})
	return some, err
}
