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

// measured returns the storage that the pods of s use, or what is known of it: nil if nothing is.
func (c *Collector) measured(ctx context.Context, s *Snapshot) *Storage {
	c.mu.Lock()
	known := c.storage
	c.mu.Unlock()
	if known != nil && time.Since(known.Time).Abs() <= storageFresh {
		return known
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

// measure measures the storage that the pods of s use.
func (c *Collector) measure(ctx context.Context, s *Snapshot) (*Storage, error) {
	var dirs []string
	for _, p := range s.Pods {
		for _, k := range p.Containers {
			dirs = append(dirs, path.Join(p.LogDir, k.Name))
		}
		for _, v := range p.Volumes {
			if v.Claim == "" {
				dirs = append(dirs, v.Path)
			}
		}
	}
	out := &Storage{Time: time.Now(), Layers: map[string]host.Usage{}, Dirs: map[string]host.Usage{}, Claims: c.sharedClaims(ctx, s.Pods)}
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

// sharedClaims returns the file systems of the pods' claims, at most storageFresh old, or what was known
// before if ctx ends.
func (c *Collector) sharedClaims(ctx context.Context, pods []Pod) map[string]host.FileSystem {
	c.mu.Lock()
	known := c.claimed
	c.mu.Unlock()
	if known != nil && time.Since(known.at).Abs() <= storageFresh {
		return known.byPath
	}
	got, err := share(ctx, &c.calls, "claims", storageTimeout, func(ctx context.Context) (*claimed, error) {
		now := &claimed{time.Now(), c.claims(ctx, pods)}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.claimed = now
		return now, nil
	})
	switch {
	case err == nil:
		return got.byPath
	case known != nil:
		return known.byPath
	}
	return nil
}

// claims measures the file systems of claims, each by itself: the file server of one may not answer.
func (c *Collector) claims(ctx context.Context, pods []Pod) map[string]host.FileSystem {
	out := map[string]host.FileSystem{}
	for _, p := range pods {
		for _, v := range p.Volumes {
			if ctx.Err() != nil {
				return out // those that were not measured have not failed
			}
			if _, done := out[v.Path]; v.Claim == "" || done || !c.patience.may(v.Path) {
				continue
			}
			measure, cancel := context.WithTimeout(ctx, claimTimeout)
			got, err := c.cfg.Host.Measure(measure, "", v.Path)
			cancel()
			if ctx.Err() != nil {
				return out
			}
			if c.patience.note(v.Path, err == nil); err == nil {
				out[v.Path] = got.FileSystems[0]
			}
		}
	}
	return out
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
