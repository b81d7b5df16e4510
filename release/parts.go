package release

import (
	"context"
	"errors"
	"io/fs"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The types below replace the sync loop and the cluster in a release, which only removes what is
// left on a host.

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// noPods are the pods of a release: none is known, and none will come.
type noPods struct{}

func (noPods) SourcesSeen() bool    { return true }
func (noPods) Known(types.UID) bool { return false }

// Finished returns false: the sweep of a release removes everything anyway.
func (noPods) Finished(types.UID) bool { return false }

var errNoCluster = errors.New("the host is being released: nothing is created on it")

type noObjects struct{}

func (noObjects) ConfigMap(context.Context, string, string) (*v1.ConfigMap, error) {
	return nil, errNoCluster
}

func (noObjects) Secret(context.Context, string, string) (*v1.Secret, error) {
	return nil, errNoCluster
}

type noTokens struct{}

func (noTokens) Token(context.Context, *v1.Pod, string, int64) (string, error) {
	return "", errNoCluster
}
func (noTokens) Forget(types.UID) {}
