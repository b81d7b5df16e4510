package volume

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
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
	// nfsAtOnce is how many attempts there are at a time for one server, and for all those
	// together that did not answer when they were last tried: so the machine's few
	// connections and the mounts of other servers do not wait for a server that is away.
	nfsAtOnce = 2
	// nfsInAll is how many attempts there are at a time for the servers that answer.
	nfsInAll = 4
	// nfsForget is how long a server that did not answer is remembered as such.
	nfsForget = time.Hour
)

// nfsTurns gives mounts their turn, so that a server that is away delays its own alone.
type nfsTurns struct {
	answering, away chan struct{} // of capacities nfsInAll and nfsAtOnce

	mu      sync.Mutex
	servers map[string]*nfsServer
	silent  map[string]time.Time // when a server was last found to be away
}

// nfsServer is one server while a mount of it is made or waits.
type nfsServer struct {
	turns   chan struct{} // of capacity nfsAtOnce: held by who mounts
	callers int           // guarded by nfsTurns.mu
}

func newNFSTurns() *nfsTurns {
	return &nfsTurns{
		answering: make(chan struct{}, nfsInAll), away: make(chan struct{}, nfsAtOnce),
		servers: map[string]*nfsServer{}, silent: map[string]time.Time{},
	}
}

// mount has do mount what the server exports, when it is its turn.
func (n *nfsTurns) mount(ctx context.Context, server string, do func(context.Context) error) error {
	n.mu.Lock()
	s := n.servers[server]
	if s == nil {
		s = &nfsServer{turns: make(chan struct{}, nfsAtOnce)}
		n.servers[server] = s
	}
	s.callers++
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if s.callers--; s.callers == 0 {
			delete(n.servers, server)
		}
	}()
	if err := enter(ctx, s.turns); err != nil {
		return err
	}
	defer func() { <-s.turns }()
	lane := n.answering
	if n.isSilent(server) {
		lane = n.away
	}
	if err := enter(ctx, lane); err != nil {
		return err
	}
	defer func() { <-lane }()
	try, cancel := context.WithTimeout(ctx, nfsTime)
	defer cancel()
	err := do(try)
	if ctx.Err() == nil {
		n.answered(server, try.Err() == nil)
	}
	return err
}

func enter(ctx context.Context, lane chan struct{}) error {
	select {
	case lane <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for other mounts: %w", ctx.Err())
	}
}

func (n *nfsTurns) isSilent(server string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, ok := n.silent[server]
	return ok && time.Since(at) < nfsForget
}

func (n *nfsTurns) answered(server string, yes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.silent, func(_ string, at time.Time) bool { return time.Since(at) >= nfsForget })
	if delete(n.silent, server); !yes {
		n.silent[server] = time.Now()
	}
}

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
	export, err := nfsSource(source.Server, source.Path)
	if err != nil {
		return err
	}
	if options, err = nfsOptions(name, options); err != nil {
		return err
	}
	mount := host.Mount{Source: export, Target: dir, Type: "nfs", Options: options}
	if readOnly {
		mount.Options = append(mount.Options, "ro")
	}
	if err := m.nfs.mount(ctx, source.Server, func(ctx context.Context) error { return m.cfg.Host.Mount(ctx, mount) }); err != nil {
		if there, lookErr := m.exist(ctx, nfsHelper); lookErr == nil && !there {
			return fmt.Errorf("mount %s: the machine has no %s; install its NFS client (Debian: nfs-common, others: nfs-utils): %w", mount.Source, nfsHelper, err)
		}
		return fmt.Errorf("mount %s: %w", mount.Source, err)
	}
	vs.ready = true
	return nil
}
