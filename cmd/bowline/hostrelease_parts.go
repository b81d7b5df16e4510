package main

import (
	"context"
	"errors"
	"io/fs"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The types below stand for a loop and a cluster, where only what is left on a machine
// is removed.

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// noPods: no pod is known, and none will come.
type noPods struct{}

func (noPods) SourcesSeen() bool    { return true }
func (noPods) Known(types.UID) bool { return false }

// Finished of nobody: the sweep of a release removes everything by itself.
func (noPods) Finished(types.UID) bool { return false }

var errNoCluster = errors.New("a machine is being released: nothing is made on it")

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
