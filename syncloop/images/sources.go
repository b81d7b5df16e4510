package images

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Providers have credentials besides those of pull secrets.
type Providers interface {
	// Credentials returns the credentials for a pod that fit the repository, in the order in which
	// to try them; it may return none.
	Credentials(ctx context.Context, p *v1.Pod, repository string) []Credential
}

// AccountID is a service account whose token gave the credentials that pulled an image. Other pods
// of the same account may use the image, too.
type AccountID struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// sources are the credentials of each secret that fit the repository.
func sources(secrets []v1.Secret, repository string) []Credential {
	var out []Credential
	for i := range secrets {
		// The error is reported where the credentials are used.
		found, _ := credentials(secrets[i:i+1], repository)
		out = append(out, found...)
	}
	return out
}

// of returns the secret with the hash of one of its credentials.
func (s secretID) of(auth *runtimeapi.AuthConfig, f *recordFile) secretID {
	s.Hash = f.hash(auth)
	return s
}

// letIn returns who may use an image that was pulled with the credential used.
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
			// The credential is in a secret: that a provider has it too opens the image to no one
			// else.
		case c.Account == nil:
			return access{Everyone: true}
		case !slices.Contains(a.Accounts, *c.Account):
			a.Accounts = append(a.Accounts, *c.Account)
		}
	}
	return a
}

// holdsAccount reports whether one of the credentials belongs to a service account that may use the
// image.
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

// accountsMay reports whether any service account may use the image, so that it is worth running
// the providers.
func (r *records) accountsMay(ctx context.Context, repository, id string) (some bool, err error) {
	err = r.locked(ctx, func(f *recordFile) bool {
		some = len(f.Images[id][repository].Accounts) > 0
		return false
	})
	return some, err
}
