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
	"github.com/bowline-k8s/bowline/syncloop/regular"
)

// Rotator looks at logs and rotates them.
type Rotator struct{ cfg Config }

// New makes a Rotator; Run drives it.
func New(c Config) (*Rotator, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.LogsRoot = path.Clean(c.LogsRoot)
	return &Rotator{cfg: c}, nil
}

// Run looks once each interval until ctx ends; a rotation that has begun ends first.
func (r *Rotator) Run(ctx context.Context) error {
	if r.cfg.MaxSize < 0 {
		<-ctx.Done()
		return nil
	}
	return regular.Run(ctx, r.cfg.Interval, "Could not keep all container logs within their bounds", func(ctx context.Context) error {
		rotated, err := r.Sweep(ctx)
		if rotated > 0 {
			klog.FromContext(ctx).V(1).Info("Rotated container logs", "containers", rotated)
		}
		return err
	})
}

// Sweep looks at the logs of all running containers once, and rotates those that are
// too large. An error of one log does not keep the others from being rotated.
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
	infos, err := r.cfg.Host.StatAll(ctx, paths)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return 0, nil // one went while they were looked at: a container's end
		}
		return 0, fmt.Errorf("look at the sizes of container logs: %w", err)
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
		case infos[i] == host.FileInfo{}:
			work = r.reopen
		case infos[i].Mode.IsRegular() && infos[i].Size >= r.cfg.MaxSize:
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
			case err == nil && infos[i].Inode != 0:
				rotated++
			case err != nil && r.runs(c.ID):
				faults = append(faults, fmt.Errorf("container %s: %w", c.ID, err))
			}
		})
	}
	workers.Wait()
	return rotated, errors.Join(faults...)
}

// runs: an error about a container that has ended meanwhile says nothing new.
func (r *Rotator) runs(id string) bool {
	return slices.ContainsFunc(r.cfg.Containers(), func(c Container) bool { return c.ID == id })
}

// reopen is for a log that is not there: its rotation was cut off, or someone took it
// away. Until then the runtime writes to a file that nobody finds.
func (r *Rotator) reopen(ctx context.Context, c Container) error {
	if err := r.cfg.Runtime.ReopenContainerLog(ctx, c.ID); err != nil {
		return fmt.Errorf("the log %s is not there, and is not opened anew: %w", c.LogPath, err)
	}
	return nil
}

// rotate makes room, compresses what was rotated before, then rotates. The log that was
// rotated last is left as it is, as the runtime and collectors are not done with it.
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

// replaceLimit bounds what is not cut off by our own end.
const replaceLimit = 45 * time.Second

// replace has the runtime write to a new file. It is gone through with even if ctx ends,
// as between its steps the log has no name that readers know.
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
	err = fmt.Errorf("%s is now %s, and no new log is opened: %w", c.LogPath, path.Base(rotated), err)
	if r.cfg.IsTransport(err) {
		return err // it may have been: the next look finds it, or asks again
	}
	if back := r.cfg.Host.Rename(ctx, rotated, c.LogPath); back != nil && !errors.Is(back, fs.ErrExist) {
		return errors.Join(err, fmt.Errorf("give %s its name back: %w", rotated, back))
	}
	return err
}
