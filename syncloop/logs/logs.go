package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/syncloop/periodic"
)

// Rotator checks the sizes of logs and rotates them.
type Rotator struct{ cfg Config }

// New returns a Rotator; call Run or Sweep.
func New(c Config) (*Rotator, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.LogsRoot = path.Clean(c.LogsRoot)
	return &Rotator{cfg: c}, nil
}

// Run sweeps once each interval until ctx ends; it finishes a rotation that has begun.
func (r *Rotator) Run(ctx context.Context) error {
	if r.cfg.MaxSize < 0 {
		<-ctx.Done()
		return nil
	}
	return periodic.Run(ctx, r.cfg.Interval, func(ctx context.Context) error {
		rotated, err := r.Sweep(ctx)
		if rotated > 0 {
			klog.FromContext(ctx).V(1).Info("Rotated container logs", "containers", rotated)
		}
		return err
	}, func(log klog.Logger, err error) { log.Error(err, "Failed to rotate container logs, will retry") })
}

// Sweep checks the logs of all running containers once and rotates those that are too large. An
// error with one log does not prevent the rotation of the others.
func (r *Rotator) Sweep(ctx context.Context) (rotated int, err error) {
	list := slices.DeleteFunc(slices.Clone(r.cfg.Containers()), func(c Container) bool {
		return path.Clean(c.LogPath) != c.LogPath || !strings.HasPrefix(c.LogPath, r.cfg.LogsRoot+"/")
	})
	if len(list) == 0 {
		return 0, nil
	}
	paths := make([]string, len(list))
	for i, c := range list {
		paths[i] = c.LogPath
	}
	sizes, err := r.cfg.Host.FileSizes(ctx, paths)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return 0, nil // a log vanished during the request: its container ended
		}
		return 0, fmt.Errorf("read the sizes of container logs: %w", err)
	}
	var (
		mu      sync.Mutex
		faults  []error
		workers sync.WaitGroup
		places  = make(chan struct{}, r.cfg.MaxWorkers)
	)
	for i, c := range list {
		var work func(context.Context, Container) error
		switch {
		case sizes[i] == host.NoFile:
			work = r.reopen
		case sizes[i] >= r.cfg.MaxSize:
			work = r.rotate
		default:
			continue
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			workers.Wait()
			return rotated, errors.Join(append(faults, ctx.Err())...)
		}
		workers.Go(func() {
			defer budget.From(ctx).Recover("rotate a log")
			defer func() { <-places }()
			err := work(ctx, c)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && sizes[i] != host.NoFile:
				rotated++
			case err != nil && r.runs(c.ID):
				faults = append(faults, fmt.Errorf("container %s: %w", c.ID, err))
			}
		})
	}
	workers.Wait()
	return rotated, errors.Join(faults...)
}

// runs reports whether the container still runs. Errors about one that has ended are not reported.
func (r *Rotator) runs(id string) bool {
	return slices.ContainsFunc(r.cfg.Containers(), func(c Container) bool { return c.ID == id })
}

// reopen asks the runtime to reopen a log that does not exist: its rotation was interrupted, or
// someone removed it. Until then the runtime writes to a file that has no name that readers know.
func (r *Rotator) reopen(ctx context.Context, c Container) error {
	if err := r.cfg.Runtime.ReopenContainerLog(ctx, c.ID); err != nil {
		return fmt.Errorf("the log %s does not exist, and reopening it failed: %w", c.LogPath, err)
	}
	return nil
}

// rotate removes excess files, compresses older logs, then rotates. It does not compress the log
// that it now renames, because the runtime and collectors may still use it.
func (r *Rotator) rotate(ctx context.Context, c Container) error {
	dir, base := path.Split(c.LogPath)
	infos, err := r.cfg.Host.List(ctx, path.Clean(dir))
	if err != nil {
		return fmt.Errorf("rotate %s: %w", c.LogPath, err)
	}
	names := make([]string, len(infos))
	for i, info := range infos {
		names[i] = info.Name
	}
	remove, compress := choose(names, base, r.cfg.MaxFiles)
	for _, name := range remove {
		if err := r.cfg.Host.Remove(ctx, dir+name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rotate %s: %w", c.LogPath, err)
		}
	}
	var unpacked error
	for _, name := range compress {
		err := r.cfg.Host.Compress(ctx, dir+name)
		if errors.Is(err, host.ErrUnreachable) || ctx.Err() != nil {
			return fmt.Errorf("rotate %s: %w", c.LogPath, err)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			unpacked = fmt.Errorf("%s stays as it is: %w", dir+name, err)
		}
	}
	return errors.Join(unpacked, r.replace(ctx, c, dir+rotatedName(names, base, time.Now())))
}

// replaceLimit is the timeout of replace, which the end of ctx does not interrupt.
const replaceLimit = 45 * time.Second

// replace renames the log and has the runtime open a new one. It continues if ctx ends, because
// between the two steps the log has no name that readers know.
func (r *Rotator) replace(ctx context.Context, c Container, rotated string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), replaceLimit)
	defer cancel()
	if err := r.cfg.Host.Rename(ctx, c.LogPath, rotated); err != nil {
		return fmt.Errorf("rotate %s: %w", c.LogPath, err)
	}
	err := r.cfg.Runtime.ReopenContainerLog(ctx, c.ID)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("renamed %s to %s, but opening a new log failed: %w", c.LogPath, path.Base(rotated), err)
	if r.cfg.IsTransport(err) {
		return err // the runtime may have opened it: the next sweep finds it, or asks again
	}
	if back := r.cfg.Host.Rename(ctx, rotated, c.LogPath); back != nil && !errors.Is(back, fs.ErrExist) {
		return errors.Join(err, fmt.Errorf("rename %s back: %w", rotated, back))
	}
	return err
}
