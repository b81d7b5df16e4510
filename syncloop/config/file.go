package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/config/manifest"
)

// Files are what the file source asks of the machine.
type Files interface {
	Stat(ctx context.Context, path string) (host.FileInfo, error)
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
}

// FileConfig is of the file source.
type FileConfig struct {
	Files Files
	// Path is a directory of manifests on the machine, or one manifest.
	Path     string
	NodeName string
	// Period between two looks.
	Period time.Duration
	// Changed brings the next look forward; nil: nobody tells of changes.
	Changed <-chan struct{}
	// Event tells of a manifest that cannot be used, on the node.
	Event func(reason, message string)
}

// File is the file source: static pods that are written down on the machine.
type File struct {
	cfg    FileConfig
	config *PodConfig
	read   map[string]*reading // by path
	told   teller
}

// reading is what was last read of one manifest.
type reading struct {
	info  host.FileInfo // of what was read
	since time.Time     // our clock when info was first seen
	at    time.Time     // our clock when it was read
	pod   *v1.Pod       // the newest that could be used; nil: there was none
}

// settled is how long a file must have looked the same before it is not read again: the
// times of a file may be as coarse as a second or two.
const settled = 3 * time.Second

// sideBySide bounds the files that are read at a time.
const sideBySide = 8

// NewFile makes the file source; Run looks.
func NewFile(c *PodConfig, cfg FileConfig) *File {
	return &File{cfg: cfg, config: c, read: map[string]*reading{}, told: newTeller(cfg.Event)}
}

// Run looks until ctx ends. A machine that cannot be read changes nothing: what is not
// seen is not gone.
func (f *File) Run(ctx context.Context) error {
	tick := time.NewTicker(f.cfg.Period)
	defer tick.Stop()
	for {
		pods, err := f.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			f.config.Withhold(f.unknown())
			f.config.Replace(SourceFile, pods)
			f.told.well(ctx, f.cfg.Path)
		case errors.Is(err, host.ErrUnreachable):
			klog.FromContext(ctx).V(1).Info("Static pods could not be looked for", "path", f.cfg.Path, "err", err)
		default:
			f.told.fault(ctx, f.cfg.Path, "StaticPodsUnreadable", fmt.Sprintf("Static pods could not be looked for in %s, and stay as they are: %v", f.cfg.Path, err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-f.cfg.Changed:
			f.gather(ctx)
		}
	}
}

// gather waits for the hints that come together: who writes one file causes several, and
// who never stops is looked at as often as this.
const gather = 200 * time.Millisecond

func (f *File) gather(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(gather):
	}
	select {
	case <-f.cfg.Changed:
	default:
	}
}

// look is everything that is written down now. An error says that it is not known.
func (f *File) look(ctx context.Context) ([]*v1.Pod, error) {
	files, err := f.list(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	next := make(map[string]*reading, len(files))
	errs := make([]error, len(files))
	var all sync.WaitGroup
	turn := make(chan struct{}, sideBySide)
	for i, info := range files {
		old := f.read[info.Name]
		if old != nil && same(old.info, info) && info.Mode.IsRegular() && old.at.Sub(old.since) >= settled {
			next[info.Name] = old
			continue
		}
		r := &reading{info: info, since: now, at: now}
		if old != nil {
			if r.pod = old.pod; same(old.info, info) {
				r.since = old.since
			}
		}
		next[info.Name] = r
		all.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			errs[i] = f.manifest(ctx, r)
		})
	}
	all.Wait()
	for i, err := range errs {
		switch {
		case errors.Is(err, fs.ErrNotExist): // it went while we looked
			delete(next, files[i].Name)
		case err != nil:
			return nil, err
		}
	}
	f.read = next
	f.told.only(func(name string) bool { return name == f.cfg.Path || next[name] != nil })
	return f.distinct(ctx, files), nil
}

// same: nothing shows that the file is another, or has other content.
func same(a, b host.FileInfo) bool {
	return a.Mode == b.Mode && a.Size == b.Size && a.Target == b.Target && a.Inode == b.Inode && a.Device == b.Device && a.Time.Equal(b.Time)
}

// unknown are the manifests that cannot be used and never could be since our start.
func (f *File) unknown() map[string]bool {
	out := map[string]bool{}
	for name, r := range f.read {
		if r.pod == nil {
			out[name] = true
		}
	}
	return out
}

// manifest reads one. A manifest that cannot be used leaves the pod that it last was,
// as who writes it may not have ended yet; an event says so.
func (f *File) manifest(ctx context.Context, r *reading) error {
	name := r.info.Name
	data, err := f.cfg.Files.ReadFile(ctx, name, manifest.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, host.ErrUnreachable) || ctx.Err() != nil {
		return err
	}
	var pods []*v1.Pod
	var warnings []string
	if err == nil {
		pods, warnings, err = manifest.Decode(data, manifest.Origin{Source: pod.SourceFile, Path: name, NodeName: f.cfg.NodeName})
	}
	if err != nil {
		what := "no pod runs by it"
		if r.pod != nil {
			what = "the pod goes on as it was last"
		}
		f.told.fault(ctx, name, "InvalidStaticPod", fmt.Sprintf("Static pod manifest %s cannot be used, %s: %v", name, what, err))
		return nil
	}
	if len(warnings) > 0 {
		f.told.fault(ctx, name, "StaticPodWarning", fmt.Sprintf("Static pod manifest %s: %s", name, strings.Join(warnings, "; ")))
	} else {
		f.told.well(ctx, name)
	}
	r.pod = pods[0]
	if r.pod.Annotations[pod.AnnotationSeen] == "" {
		r.pod.Annotations[pod.AnnotationSeen] = r.at.UTC().Format(time.RFC3339Nano)
	}
	return nil
}

// list is the manifests with their whole paths as names, in order; none where there is
// nothing at the path.
func (f *File) list(ctx context.Context) ([]host.FileInfo, error) {
	at, err := f.cfg.Files.Stat(ctx, f.cfg.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if at.Mode.IsRegular() {
		at.Name = f.cfg.Path
		return []host.FileInfo{at}, nil
	}
	infos, err := f.cfg.Files.List(ctx, f.cfg.Path)
	if at.Mode&fs.ModeSymlink != 0 && err != nil && !errors.Is(err, host.ErrUnreachable) {
		at.Name = f.cfg.Path // a link to a file, or to nothing
		return []host.FileInfo{at}, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	infos = slices.DeleteFunc(slices.Clone(infos), func(i host.FileInfo) bool {
		return strings.HasPrefix(i.Name, ".") || !i.Mode.IsRegular() && i.Mode&fs.ModeSymlink == 0
	})
	for i := range infos {
		infos[i].Name = path.Join(f.cfg.Path, infos[i].Name)
	}
	slices.SortFunc(infos, func(a, b host.FileInfo) int { return cmp.Compare(a.Name, b.Name) })
	return infos, nil
}

// distinct are the pods of all manifests. Of two of one name the later file's stands.
func (f *File) distinct(ctx context.Context, files []host.FileInfo) []*v1.Pod {
	from := map[fullName]string{}
	var pods []*v1.Pod
	for _, info := range files {
		r := f.read[info.Name]
		if r == nil || r.pod == nil {
			continue
		}
		of := nameOf(r.pod)
		if other, taken := from[of]; taken {
			f.told.fault(ctx, other, "InvalidStaticPod", fmt.Sprintf("Static pod manifest %s is not used: %s has the same pod %s/%s", other, info.Name, of.namespace, of.name))
			pods = slices.DeleteFunc(pods, func(p *v1.Pod) bool { return nameOf(p) == of })
		}
		from[of] = info.Name
		pods = append(pods, r.pod)
	}
	return pods
}
