// Package fleet runs many hosts in one process: those of the configuration file, which it watches,
// and those of the cluster's Host objects. Package pool isolates them from each other; package node
// runs each.
package fleet

import (
	"context"
	"errors"
	"sync"

	"github.com/bowline-k8s/bowline/pool"
)

// Run runs the pool and the sources of its hosts until ctx ends, no host is left, or a source
// fails. When ctx ends, the drivers run on until left is closed, because a replica first hands over
// its hosts.
func Run(ctx context.Context, hosts *pool.Pool, left <-chan struct{}, sources ...func(context.Context) error) error {
	driving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	ctx, cancel := context.WithCancel(ctx)
	faults := make([]error, len(sources))
	var beside sync.WaitGroup
	for i, source := range sources {
		beside.Go(func() {
			if faults[i] = source(ctx); faults[i] != nil {
				cancel()
			}
		})
	}
	beside.Go(func() {
		<-ctx.Done()
		<-left
		end()
	})
	err := hosts.Run(driving)
	cancel()
	beside.Wait()
	if fault := errors.Join(faults...); fault != nil {
		return fault // the reason why the drivers were ended
	}
	return err
}
