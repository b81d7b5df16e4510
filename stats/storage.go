package stats

import (
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/wall"
)

// imageDir returns where the runtime has its images. Until it says so, it is the root directory.
func (c *Collector) imageDir(ctx context.Context) string {
	c.mu.Lock()
	dir := c.images
	c.mu.Unlock()
	if dir != "" {
		return dir
	}
	info, err := c.cfg.Runtime.ImageFsInfo(ctx)
	if err == nil {
		for _, fs := range info.GetImageFilesystems() {
			if dir = fs.GetFsId().GetMountpoint(); path.IsAbs(dir) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.images = dir
				return dir
			}
		}
	}
	return c.cfg.RootDir
}

// storagePeriod is how long the measured storage is used.
func (c *Collector) storagePeriod() time.Duration {
	if c.cfg.VolumePeriod < 0 {
		return storageFresh
	}
	return min(c.cfg.VolumePeriod, storageFresh)
}

// measured returns the storage that the pods of s use, or what is known of it: nil if nothing is.
func (c *Collector) measured(ctx context.Context, s *Snapshot) *Storage {
	c.mu.Lock()
	known, now := c.storage, c.now()
	c.mu.Unlock()
	if known != nil && current(known.Time, now, c.storagePeriod()) {
		return known
	}
	if known != nil && known.Time.Round(0).After(now.Round(0)) {
		known = nil // the local clock was set back
	}
	short, cancel := context.WithTimeout(ctx, storagePatience)
	defer cancel()
	got, err := share(short, &c.calls, "storage", storageTimeout, func(ctx context.Context) (*Storage, error) {
		storage, err := c.measure(ctx, s)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.storage = storage
		return storage, nil
	})
	if err != nil {
		return known
	}
	return got
}

// measure measures the storage that the pods of s use, except volumes that were measured less than the
// period of volumes ago.
func (c *Collector) measure(ctx context.Context, s *Snapshot) (*Storage, error) {
	out := &Storage{Time: c.now(), Layers: map[string]host.Usage{}, Dirs: map[string]host.Usage{}}
	out.VolumesAt = out.Time
	var volumes map[string]host.Usage
	c.mu.Lock()
	if c.storage != nil && current(c.storage.VolumesAt, out.Time, c.cfg.VolumePeriod) {
		volumes, out.VolumesAt = c.storage.Dirs, c.storage.VolumesAt
	}
	c.mu.Unlock()
	var dirs []string
	for _, p := range s.Pods {
		for _, k := range p.Containers {
			dirs = append(dirs, logDir(p, k))
		}
		for _, v := range p.Volumes {
			if v.Claim != "" || c.cfg.VolumePeriod < 0 {
				continue
			}
			if used, ok := volumes[v.Path]; ok {
				out.Dirs[v.Path] = used
			} else {
				dirs = append(dirs, v.Path)
			}
		}
	}
	out.Claims = c.sharedClaims(ctx, s.Pods)
	layers, err := c.cfg.Runtime.ListContainerStats(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list the containers' writable layers: %w", err)
	}
	for _, l := range layers {
		if w := l.GetWritableLayer(); w != nil {
			out.Layers[l.GetAttributes().GetId()] = host.Usage{Bytes: int64(w.GetUsedBytes().GetValue()), Inodes: int64(w.GetInodesUsed().GetValue())}
		}
	}
	info, err := c.cfg.Runtime.ImageFsInfo(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the runtime's image file system: %w", err)
	}
	for _, fs := range info.GetImageFilesystems() {
		out.Images = host.Usage{Bytes: int64(fs.GetUsedBytes().GetValue()), Inodes: int64(fs.GetInodesUsed().GetValue())}
		break
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	used, err := c.cfg.Host.DiskUsage(ctx, dirs...)
	if err != nil {
		return nil, fmt.Errorf("measure the pods' directories: %w", err)
	}
	for i, dir := range dirs {
		out.Dirs[dir] = used[i]
	}
	return out, nil
}

// logDir is the directory of a container's logs.
func logDir(p Pod, k Container) string { return path.Join(p.LogDir, k.Name) }

// logs has what directories of logs use, by path.
type logs struct {
	at     time.Time
	byPath map[string]host.Usage
}

// logsOf returns the pods and what their containers' logs use, by path, at most storageFresh old. If that
// cannot be measured now, it is what was known before, at most storageOldest old: the metric has no time, so an
// older value would look like a new one. Without pods it asks the host nothing.
func (c *Collector) logsOf(ctx context.Context) ([]Pod, map[string]host.Usage) {
	pods := c.cfg.Pods()
	var dirs []string
	for _, p := range pods {
		for _, k := range p.Containers {
			if p.LogDir != "" {
				dirs = append(dirs, logDir(p, k))
			}
		}
	}
	if len(dirs) == 0 {
		return pods, nil
	}
	c.mu.Lock()
	known, storage := c.logs, c.storage
	c.mu.Unlock()
	if storage != nil && (known == nil || storage.Time.After(known.at)) {
		known = &logs{storage.Time, storage.Dirs}
	}
	if known != nil && current(known.at, c.now(), storageFresh) {
		return pods, known.byPath
	}
	short, cancel := context.WithTimeout(ctx, storagePatience)
	defer cancel()
	got, err := share(short, &c.calls, "logs", storageTimeout, func(ctx context.Context) (*logs, error) {
		used, err := c.cfg.Host.DiskUsage(ctx, dirs...)
		if err != nil {
			return nil, err
		}
		now := &logs{c.now(), make(map[string]host.Usage, len(dirs))}
		for i, dir := range dirs {
			now.byPath[dir] = used[i]
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.logs = now
		return now, nil
	})
	switch {
	case err == nil:
		return pods, got.byPath
	case known != nil && current(known.at, c.now(), storageOldest):
		return pods, known.byPath
	}
	return pods, nil
}

// claimsOf returns the pods and the file systems of their claims, by path. Without claims it asks the host
// nothing.
func (c *Collector) claimsOf(ctx context.Context) ([]Pod, map[string]host.FileSystem) {
	pods := c.cfg.Pods()
	if !slices.ContainsFunc(pods, func(p Pod) bool {
		return slices.ContainsFunc(p.Volumes, func(v Volume) bool { return v.Claim != "" })
	}) {
		return pods, nil
	}
	short, cancel := context.WithTimeout(ctx, storagePatience)
	defer cancel()
	return pods, c.sharedClaims(short, pods)
}

// claimed has the file systems of claims, by path.
type claimed struct {
	at     time.Time
	byPath map[string]host.FileSystem
}

// sharedClaims returns the file systems of the pods' claims, at most as old as the period of volumes. If ctx
// ends or the host does not answer, it is what was known before, at most storageTimeout older: see logsOf.
func (c *Collector) sharedClaims(ctx context.Context, pods []Pod) map[string]host.FileSystem {
	if c.cfg.VolumePeriod < 0 {
		return nil
	}
	c.mu.Lock()
	known := c.claimed
	c.mu.Unlock()
	if known != nil && current(known.at, c.now(), c.cfg.VolumePeriod) {
		return known.byPath
	}
	got, err := share(ctx, &c.calls, "claims", storageTimeout, func(ctx context.Context) (*claimed, error) {
		byPath, err := c.claims(ctx, pods)
		if err != nil {
			return nil, err
		}
		now := &claimed{c.now(), byPath}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.claimed = now
		return now, nil
	})
	switch {
	case err == nil:
		return got.byPath
	case known != nil && current(known.at, c.now(), c.cfg.VolumePeriod+storageTimeout):
		return known.byPath
	}
	return nil
}

// claims measures the file systems of claims, each by itself: the file server of one may not answer. An
// error means that the host does not answer, so nothing is known of those that were not measured.
func (c *Collector) claims(ctx context.Context, pods []Pod) (map[string]host.FileSystem, error) {
	out := map[string]host.FileSystem{}
	for _, p := range pods {
		for _, v := range p.Volumes {
			if ctx.Err() != nil {
				return out, nil // those that were not measured have not failed
			}
			if _, done := out[v.Path]; v.Claim == "" || done || !c.patience.may(v.Path) {
				continue
			}
			fs, err := c.fileSystem(ctx, v.Path)
			if err != nil && ctx.Err() == nil {
				// A hanging link and a hanging file server give the same error. The host's own file
				// system tells them apart.
				if _, down := c.fileSystem(ctx, c.cfg.RootDir); down != nil {
					return nil, fmt.Errorf("measure the claims: %w", down)
				}
			}
			if ctx.Err() != nil {
				return out, nil
			}
			if c.patience.note(v.Path, err == nil); err == nil {
				out[v.Path] = fs
			}
		}
	}
	return out, nil
}

// fileSystem measures the file system of a path.
func (c *Collector) fileSystem(ctx context.Context, path string) (host.FileSystem, error) {
	measure, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	got, err := c.cfg.Host.Measure(measure, "", path)
	if err != nil {
		return host.FileSystem{}, err
	}
	return got.FileSystems[0], nil
}

// patience remembers the claims whose file system did not answer. It asks them again
// at growing intervals, because each question may leave a process on the host that waits as well. Only one goroutine uses
// it at a time.
type patience map[string]pause

type pause struct {
	next  wait.Backoff
	until time.Time
}

func (p patience) may(path string) bool { return wall.Passed(p[path].until, time.Now()) }

func (p patience) note(path string, answered bool) {
	if answered {
		delete(p, path)
		return
	}
	at, known := p[path]
	if !known {
		at.next = wait.Backoff{Duration: firstPause, Factor: 2, Steps: 10, Cap: longestPause}
	}
	at.until = time.Now().Add(at.next.Step())
	p[path] = at
}
