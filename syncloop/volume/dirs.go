package volume

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
)

// The kubelet's plugin names with the slash escaped, as in paths.
const (
	pluginConfigMap   = "kubernetes.io~configmap"
	pluginSecret      = "kubernetes.io~secret"
	pluginProjected   = "kubernetes.io~projected"
	pluginDownwardAPI = "kubernetes.io~downward-api"
	pluginEmptyDir    = "kubernetes.io~empty-dir"
)

// podDirMode is the kubelet's mode for a pod's directories that are not volumes.
const podDirMode = fs.FileMode(0o750)

// PodDir is the pod's directory below the root directory.
func PodDir(root string, uid types.UID) string { return path.Join(root, "pods", string(uid)) }

func (m *Manager) podDir(uid types.UID) string { return PodDir(m.cfg.RootDir, uid) }

func (m *Manager) volumeDir(uid types.UID, plugin, name string) string {
	return path.Join(m.podDir(uid), "volumes", plugin, name)
}

// checkUID refuses a UID that is not a single path element: it names a directory that is later
// removed with all its content.
func checkUID(uid types.UID) error {
	s := string(uid)
	if s == "" || s == "." || s == ".." || strings.ContainsAny(s, "/\x00") {
		return fmt.Errorf("pod UID %q cannot name a directory", s)
	}
	return nil
}

// checkNames refuses volume and container names that are not a single path element. The API server
// has checked them, but not for a manifest from a file.
func checkNames(p *v1.Pod) error {
	check := func(kind, name string) error {
		if faults := validation.IsDNS1123Label(name); len(faults) != 0 {
			return fmt.Errorf("pod %s/%s: %s name %q: %s", p.Namespace, p.Name, kind, name, faults[0])
		}
		return nil
	}
	for i := range p.Spec.Volumes {
		if err := check("volume", p.Spec.Volumes[i].Name); err != nil {
			return err
		}
	}
	for c := range pod.AllContainers(&p.Spec) {
		if err := check("container", c.Name); err != nil {
			return err
		}
	}
	return nil
}

// ensurePodDirs records the pod as ours and creates its directories, once per process. Everything
// else of a pod on the host (its cgroup, its log directory) must be created after this, or a crash
// in between leaves something that no sweep knows to be ours. It runs again after an ephemeral
// container was added.
func (m *Manager) ensurePodDirs(ctx context.Context, p *v1.Pod, ps *podState) error {
	if err := checkNames(p); err != nil {
		return err
	}
	dir := m.podDir(p.UID)
	var things []host.Entry
	if !ps.made {
		record, err := m.record(p)
		if err != nil {
			return err
		}
		things = append(things, record, host.Entry{Path: dir, Mode: fs.ModeDir | podDirMode})
	}
	dirs := []string{path.Join(dir, "volumes"), path.Join(dir, "plugins")}
	for c := range pod.AllContainers(&p.Spec) {
		dirs = append(dirs, path.Join(dir, "containers", c.Name))
	}
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return ps.dirs[d] })
	for _, d := range dirs {
		things = append(things, host.Entry{Path: d, Mode: fs.ModeDir | podDirMode})
	}
	if len(things) == 0 {
		return nil
	}
	made, err := m.cfg.Host.Make(ctx, things...)
	if err != nil {
		return &DirsError{Pod: p.Namespace + "/" + p.Name, Err: err}
	}
	if !ps.made {
		ps.made, ps.fresh, ps.new = true, made[1], made[1]
	}
	for _, d := range dirs {
		ps.dirs[d] = true
	}
	return nil
}
