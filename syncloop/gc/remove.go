package gc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/syncloop/gc/gcpolicy"
)

// remove removes the chosen objects, each kind after those that may still depend on it. Before it
// removes an object of an unknown pod, it asks the loop once more: a static pod comes back under its
// old UID.
func (s *Sweeper) remove(ctx context.Context, r gcpolicy.Removals) (Result, error) {
	result := Result{Foreign: r.Foreign}
	var faults []error
	// try reports whether the removal succeeded.
	try := func(count *int, what string, err error) bool {
		if err != nil {
			faults = append(faults, fmt.Errorf("remove %s: %w", what, err))
			return false
		}
		*count++
		return true
	}
	failed := map[types.UID]bool{} // pods with a failed removal
	occupied := map[string]bool{}  // sandboxes with a container that could not be removed
	stayed := map[string]bool{}    // IDs of containers that could not be removed

	for _, c := range r.Containers {
		if !try(&result.Containers, "container "+c.ID, s.cfg.Runtime.RemoveContainer(ctx, c.ID)) {
			failed[c.UID], occupied[c.SandboxID], stayed[c.ID] = true, true, true
			continue
		}
		if err := s.removeLog(ctx, c); err != nil {
			faults = append(faults, fmt.Errorf("remove log of container %s: %w", c.ID, err))
		}
	}
	for _, sb := range r.Sandboxes {
		if occupied[sb.ID] || !try(&result.Sandboxes, "sandbox "+sb.ID, s.cfg.Runtime.RemoveSandbox(ctx, sb.ID)) {
			failed[sb.UID] = true
		}
	}
	came := func(uid types.UID) bool { return failed[uid] || s.cfg.Pods.Known(uid) }
	for _, uid := range r.PodDirs {
		if came(uid) {
			continue
		}
		if !try(&result.PodDirs, "volumes of pod "+string(uid), s.cfg.Volumes.Release(ctx, uid)) {
			failed[uid] = true
			result.PodDirsFailed++
		}
	}
	for _, name := range r.LogDirs {
		if came(gcpolicy.LogDirUID(name)) || !single(name) {
			continue
		}
		try(&result.LogDirs, "log directory "+name, ignoreMissing(s.cfg.Host.RemoveTree(ctx, path.Join(s.cfg.LogsRoot, name))))
	}
	for _, name := range r.Links {
		if single(name) && !stayed[gcpolicy.LinkContainerID(name)] {
			try(&result.Links, "log link "+name, ignoreMissing(s.cfg.Host.Remove(ctx, path.Join(s.cfg.LinksDir, name))))
		}
	}
	for _, c := range r.Cgroups {
		if !came(c.UID) {
			try(&result.Cgroups, "cgroup "+c.Path, s.cfg.Host.RemoveCgroup(ctx, c.Path, false))
		}
	}
	asked := false
	for _, uid := range r.Records {
		if came(uid) || !single(string(uid)) {
			continue
		}
		asked = true
		left, err := s.cfg.Runtime.RemoveRemnants(ctx, uid, s.cfg.MinAge)
		if err != nil {
			faults = append(faults, fmt.Errorf("remove what is left of pod %s in the runtime: %w", uid, err))
		}
		if left || err != nil {
			continue
		}
		try(&result.Records, "record of pod "+string(uid), ignoreMissing(s.cfg.Host.Remove(ctx, path.Join(s.cfg.RecordDir, string(uid)))))
	}
	if asked {
		s.cfg.AfterRemnants()
	}
	return result, errors.Join(faults...)
}

// removeLog removes a container's log and its rotated files (0.log, 0.log.20260102-150405, ...gz),
// if they lie in its own pod's log directory.
func (s *Sweeper) removeLog(ctx context.Context, c gcpolicy.Container) error {
	rest, ok := strings.CutPrefix(path.Clean(c.LogPath), path.Clean(s.cfg.LogsRoot)+"/")
	podDir, _, _ := strings.Cut(rest, "/")
	if !ok || c.UID == "" || gcpolicy.LogDirUID(podDir) != c.UID {
		return nil
	}
	dir, base := path.Split(path.Clean(c.LogPath))
	files, err := s.list(ctx, path.Clean(dir))
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.Name != base && !strings.HasPrefix(f.Name, base+".") {
			continue
		}
		if err := ignoreMissing(s.cfg.Host.Remove(ctx, path.Join(dir, f.Name))); err != nil {
			return err
		}
	}
	return nil
}

// single reports whether name is one path element, as every name from a listing is.
func single(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.Contains(name, "/")
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
