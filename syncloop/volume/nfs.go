package volume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host"
)

const (
	// pluginNFS is the kubelet's plugin name with the slash escaped.
	pluginNFS = "kubernetes.io~nfs"
	// nfsHelper is what mount(8) needs for it.
	nfsHelper = "/sbin/mount.nfs"
	// nfsTime is for one attempt. It is made again, by the back-off of the pod's start.
	nfsTime = 30 * time.Second
	// nfsAtOnce is how many attempts there are at a time, each of which may wait for a
	// server that is away and holds one of the machine's few connections.
	nfsAtOnce = 2
)

// setUpNFS mounts what a server exports in the pod's own directory. name is of the volume,
// or of the persistent one. Neither the owner nor the label of what is there is changed: it
// is the server's.
func (m *Manager) setUpNFS(ctx context.Context, p *v1.Pod, name string, source *v1.NFSVolumeSource, options []string, readOnly bool, vs *volumeState, at setUpState) error {
	if strings.ContainsRune(name, '/') {
		return fmt.Errorf("the volume's name %q cannot name a directory", name)
	}
	dir := m.volumeDir(p.UID, pluginNFS, name)
	vs.mount, vs.bound = Mount{HostPath: dir, ReadOnly: readOnly}, true
	if vs.ready = at.mounted[dir]; vs.ready {
		return nil
	}
	server := source.Server
	if strings.ContainsRune(server, ':') && !strings.HasPrefix(server, "[") {
		server = "[" + server + "]" // an IPv6 address
	}
	mount := host.Mount{Source: server + ":" + source.Path, Target: dir, Type: "nfs", Options: slices.Clone(options)}
	if server == "" || server[0] == '-' || !strings.HasPrefix(source.Path, "/") {
		return fmt.Errorf("nfs server %q and path %q name no export", source.Server, source.Path)
	}
	if readOnly {
		mount.Options = append(mount.Options, "ro")
	}
	select {
	case m.nfs <- struct{}{}:
		defer func() { <-m.nfs }()
	case <-ctx.Done():
		return fmt.Errorf("mount %s: wait for other mounts: %w", mount.Source, ctx.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, nfsTime)
	defer cancel()
	if err := m.cfg.Host.Mount(ctx, mount); err != nil {
		if there, lookErr := m.exist(ctx, nfsHelper); lookErr == nil && !there {
			return fmt.Errorf("mount %s: the machine has no %s; install its NFS client (Debian: nfs-common, others: nfs-utils): %w", mount.Source, nfsHelper, err)
		}
		return fmt.Errorf("mount %s: %w", mount.Source, err)
	}
	vs.ready = true
	return nil
}
