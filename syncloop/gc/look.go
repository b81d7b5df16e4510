package gc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/gc/gcpolicy"
)

// look gathers the input of gcpolicy.What in the order that gcpolicy.Input demands: the records and
// which of their pods live, the host, the runtime, and the loop last. It also returns its listing
// of the directories that cutOff cleans.
func (s *Sweeper) look(ctx context.Context) (gcpolicy.Input, map[string][]host.FileInfo, error) {
	in := gcpolicy.Input{
		Owner:    s.cfg.Owner,
		MinAge:   s.cfg.MinAge,
		LogsRoot: s.cfg.LogsRoot,
		Known:    map[types.UID]bool{},
		Records:  map[types.UID]bool{},
		Lived:    map[types.UID]bool{},
	}
	records, err := s.list(ctx, s.cfg.RecordDir)
	if err != nil {
		return in, nil, err
	}
	seen := s.cfg.Pods.SourcesSeen()
	for _, f := range records {
		// The temporary name of an interrupted write is not a UID.
		if f.Mode.IsRegular() && !strings.HasPrefix(f.Name, ".") {
			uid := types.UID(f.Name)
			in.Records[uid] = true
			in.Lived[uid] = !seen || s.cfg.Pods.Known(uid)
		}
	}
	if in.PodDirs, err = s.cfg.Volumes.Orphans(ctx, records); err != nil {
		return in, nil, err
	}
	logs, err := s.list(ctx, s.cfg.LogsRoot)
	if err != nil {
		return in, nil, err
	}
	for _, f := range logs {
		if f.Mode.IsDir() {
			in.LogDirs = append(in.LogDirs, f.Name)
		}
	}
	links, err := s.list(ctx, s.cfg.LinksDir)
	if err != nil {
		return in, nil, err
	}
	for _, f := range links {
		if f.Mode&fs.ModeSymlink != 0 && path.IsAbs(f.Target) {
			in.Links = append(in.Links, gcpolicy.Link{Name: f.Name, Target: f.Target})
		}
	}
	if in.Cgroups, err = s.cgroups(ctx); err != nil {
		return in, nil, err
	}
	if in.Sandboxes, in.Containers, err = s.cfg.Runtime.List(ctx); err != nil {
		return in, nil, fmt.Errorf("list what the runtime has: %w", err)
	}
	in.SourcesSeen = s.cfg.Pods.SourcesSeen()
	s.know(&in)
	in.Now = time.Now()
	return in, map[string][]host.FileInfo{s.cfg.RecordDir: records, s.cfg.LinksDir: links}, nil
}

// know asks the loop about every pod that the lists contain.
func (s *Sweeper) know(in *gcpolicy.Input) {
	ask := func(uid types.UID) {
		if _, asked := in.Known[uid]; !asked {
			in.Known[uid] = s.cfg.Pods.Known(uid)
		}
	}
	for i := range in.Sandboxes {
		ask(in.Sandboxes[i].UID)
	}
	for i := range in.Containers {
		ask(in.Containers[i].UID)
	}
	for uid := range in.Records {
		ask(uid)
	}
}

func (s *Sweeper) cgroups(ctx context.Context) ([]gcpolicy.Cgroup, error) {
	var list []gcpolicy.Cgroup
	for _, parent := range s.cfg.CgroupParents {
		names, err := s.cfg.Host.ListCgroups(ctx, parent)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list cgroups in %s: %w", parent, err)
		}
		for _, name := range names {
			if uid := gcpolicy.CgroupUID(name); uid != "" {
				list = append(list, gcpolicy.Cgroup{Path: path.Join(parent, name), UID: uid})
			}
		}
	}
	return list, nil
}

// list is the host's List; a missing directory counts as empty.
func (s *Sweeper) list(ctx context.Context, dir string) ([]host.FileInfo, error) {
	infos, err := s.cfg.Host.List(ctx, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	return infos, nil
}
