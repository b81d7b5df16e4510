// Package fleet runs many hosts in one process: those of the configuration file, which it watches,
// and those of the cluster's Host objects. Package pool isolates them from each other; package node
// runs each.
package fleet

import (
	"cmp"
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/bowline-k8s/bowline/pool"
)

// Run runs the pool and the sources of its hosts until ctx ends, no host is left, or a source
// fails. When ctx ends, the drivers run on until left is closed, because a replica first hands over
// its hosts.
func Run(ctx context.Context, hosts *pool.Pool, left <-chan struct{}, sources ...func(context.Context) error) error {
	managing, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	ctx, cancel := context.WithCancel(ctx)
	background, ctx := errgroup.WithContext(ctx)
	for _, source := range sources {
		background.Go(func() error { return source(ctx) })
	}
	background.Go(func() error {
		<-ctx.Done()
		<-left
		end()
		return nil
	})
	err := hosts.Run(managing)
	cancel()
	return cmp.Or(background.Wait(), err) // a source that failed is why the drivers were ended
}
