package local

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

func (h *Host) Sample(ctx context.Context, r host.SampleRequest) (host.Sampled, error) {
	return call(h, ctx, "Sample", shortDeadline, func(ctx context.Context) (host.Sampled, error) {
		full := make([]string, len(r.Trees))
		for i, tree := range r.Trees {
			var err error
			if full[i], err = h.cgroupPath(tree); err != nil {
				return host.Sampled{}, fmt.Errorf("sample %s: %w", h.name, err)
			}
		}
		s := machine.NewSample(h.hier, r, full)
		ofHost, ofCgroups := machine.SampleFiles(h.hier, r)
		for _, f := range ofHost {
			if digest, ok := digestOf(f, f.File); ok {
				s.Host(f.Code, digest)
			}
		}
		if r.Detail {
			interfaces(s, "", "/proc/net/dev")
		}
		base := machine.SampleBase(h.hier)
		pods := map[string]bool{} // whose network is read
		files := machine.NewWalk(procFS{})
		var walk func(p string, depth int) error
		walk = func(p string, depth int) error {
			for _, f := range ofCgroups {
				digest, ok := digestOf(f, filepath.Join(f.Dir, p, f.File))
				if ok && f.Digest == machine.OpenFiles {
					digest = files.Digest(digest, p == "")
				}
				if ok {
					s.Cgroup(p, f.Code, digest)
				}
			}
			if p == "" {
				return nil
			}
			if r.Detail {
				network(s, base, p, r.HostNetwork, pods)
			}
			if depth == 0 {
				return nil
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			children, err := subdirs(filepath.Join(base, p))
			if err != nil { // removed meanwhile, or it never existed
				return nil
			}
			for _, c := range children {
				child := path.Join(p, c)
				if !machine.SampledCgroup(child) {
					break
				}
				if err := walk(child, depth-1); err != nil {
					return err
				}
			}
			return nil
		}
		_ = walk("", 0)
		for _, p := range full {
			if err := walk(p, host.SampleDepth); err != nil {
				return host.Sampled{}, err
			}
		}
		out, err := s.Result()
		if err != nil {
			return host.Sampled{}, err
		}
		for _, p := range r.Paths {
			f, err := fileSystem(p)
			if err != nil {
				return host.Sampled{}, fmt.Errorf("measure the file system of %s: %w", p, err)
			}
			out.FileSystems = append(out.FileSystems, f)
		}
		return out, nil
	})
}

func digestOf(f machine.SampleFile, file string) (string, bool) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", false
	}
	return f.Of(string(content))
}

// interfaces adds what /proc says of a network, and reports whether it has any interface.
func interfaces(s *machine.Sample, cgroup, file string) bool {
	content, err := os.ReadFile(file)
	for line := range strings.Lines(string(content)) {
		s.Interface(cgroup, line)
	}
	return err == nil
}

// network adds the network of a pod once, read through the first process of a container.
func network(s *machine.Sample, base, container string, skip []string, pods map[string]bool) {
	pod := path.Dir(container)
	uid, ok := machine.PodOfCgroup(pod)
	if !ok || pods[pod] || slices.Contains(skip, uid) {
		return
	}
	procs, err := os.ReadFile(filepath.Join(base, container, "cgroup.procs"))
	first, _, _ := strings.Cut(string(procs), "\n")
	if err != nil || first == "" || first == "0" {
		return
	}
	pods[pod] = interfaces(s, pod, "/proc/"+first+"/net/dev")
}
