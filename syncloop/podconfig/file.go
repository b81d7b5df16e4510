package podconfig

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
	"github.com/bowline-k8s/bowline/syncloop/podconfig/manifest"
)

// Files is the access to the host that the file source needs.
type Files interface {
	Stat(ctx context.Context, path string) (host.FileInfo, error)
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
}

// FileConfig configures the file source.
type FileConfig struct {
	Files Files
	// Path is a directory of manifests on the host, or one manifest.
	Path     string
	NodeName string
	// Period is the refresh interval.
	Period time.Duration
	// Changed brings the next look forward; nil if nothing watches for changes.
	Changed <-chan struct{}
	// Event reports on the node that a manifest cannot be used.
	Event func(reason, message string)
	// PodEvent records a Warning on a pod that is not used because another manifest has one of its name;
	// nil: none is recorded.
	PodEvent func(p *v1.Pod, reason, message string)
}

// File is the file source: static pods from manifests on the host.
type File struct {
	cfg    FileConfig
	config *PodConfig
	read   map[string]*reading // by path
	faults faultLog
}

// reading is the result of the last read of one manifest.
type reading struct {
	info  host.FileInfo // of the version that was read
	since time.Time     // when info was first seen, by this process's clock
	at    time.Time     // when it was read, by this process's clock
	pod   *v1.Pod       // from the newest usable version; nil if there was none
	sound bool          // the newest version is usable, and has no warnings
}

// settled is how long a file must have looked the same before it is no longer re-read: file times
// may be as coarse as a second or two.
const settled = 3 * time.Second

// sideBySide is how many files are read at a time.
const sideBySide = 8

// NewFile makes the file source. Run does the reading.
func NewFile(c *PodConfig, cfg FileConfig) *File {
	return &File{cfg: cfg, config: c, read: map[string]*reading{}, faults: newFaultLog(cfg.Event)}
}

// Run looks at the manifests until ctx ends. If the host cannot be read, the pods stay as they are:
// a manifest that was not seen is not necessarily gone.
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
			f.faults.well(ctx, f.cfg.Path)
		case errors.Is(err, host.ErrUnreachable):
			klog.FromContext(ctx).V(1).Info("Failed to read static pods", "path", f.cfg.Path, "err", err)
		default:
			f.faults.fault(ctx, f.cfg.Path, "StaticPodsUnreadable", fmt.Sprintf("Failed to read static pods from %s; they stay unchanged: %v", f.cfg.Path, err))
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

// gather is how long Run collects hints of changes before it reads the files: writing one file causes
// several hints. It also limits how often Run reads a file that a program writes continuously.
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

// look returns the pods of all manifests as they are now. On an error the current pods are unknown.
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
		case errors.Is(err, fs.ErrNotExist): // removed while we looked
			delete(next, files[i].Name)
		case err != nil:
			return nil, err
		}
	}
	f.read = next
	f.faults.only(func(name string) bool { return name == f.cfg.Path || next[name] != nil })
	return f.distinct(ctx, files), nil
}

// same says that nothing indicates another file, or other content.
func same(a, b host.FileInfo) bool {
	return a.Mode == b.Mode && a.Size == b.Size && a.Target == b.Target && a.Inode == b.Inode && a.Device == b.Device && a.Time.Equal(b.Time)
}

// unknown lists the manifests that cannot be used and never could be since this process started.
func (f *File) unknown() map[string]bool {
	out := map[string]bool{}
	for name, r := range f.read {
		if r.pod == nil {
			out[name] = true
		}
	}
	return out
}

// manifest reads one manifest. If it cannot be used, its last usable pod stays and an event reports
// the fault, because the author may still be writing it.
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
		what := "no pod runs from it"
		if r.pod != nil {
			what = "the pod keeps its last version"
		}
		f.faults.fault(ctx, name, "InvalidStaticPod", fmt.Sprintf("Static pod manifest %s is invalid, %s: %v", name, what, err))
		return nil
	}
	if len(warnings) > 0 {
		f.faults.fault(ctx, name, "StaticPodWarning", fmt.Sprintf("Static pod manifest %s: %s", name, strings.Join(warnings, "; ")))
	}
	r.pod, r.sound = pods[0], len(warnings) == 0
	if r.pod.Annotations[pod.AnnotationSeen] == "" {
		r.pod.Annotations[pod.AnnotationSeen] = r.at.UTC().Format(time.RFC3339Nano)
	}
	return nil
}

// list returns the manifests sorted by name, with full paths as names. It returns none if the path
// does not exist.
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

// distinct returns the pods of all manifests. If two have the same namespace and name, the one of
// the later file wins.
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
			told := f.faults.fault(ctx, other, "InvalidStaticPod", fmt.Sprintf("Static pod manifest %s is not used: %s has the same pod %s/%s", other, info.Name, of.namespace, of.name))
			if p := f.read[other].pod; told && f.cfg.PodEvent != nil {
				f.cfg.PodEvent(p, "FailedValidation", fmt.Sprintf("the pod of static pod manifest %s is not used: %s has a pod of the same name", other, info.Name))
			}
			pods = slices.DeleteFunc(pods, func(p *v1.Pod) bool { return nameOf(p) == of })
		}
		from[of] = info.Name
		pods = append(pods, r.pod)
	}
	for _, name := range from {
		if f.read[name].sound {
			f.faults.well(ctx, name)
		}
	}
	return pods
}
