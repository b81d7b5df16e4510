package volume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
)

const (
	// pluginNFS is the kubelet's plugin name with the slash escaped.
	pluginNFS = "kubernetes.io~nfs"
	// nfsHelper is what mount(8) needs for NFS.
	nfsHelper = "/sbin/mount.nfs"
	// nfsTime bounds one attempt. The back-off of the pod's start repeats it.
	nfsTime = 30 * time.Second
	// nfsInAll bounds concurrent attempts. Over SSH each holds one of the host's shells (shell.MaxShells,
	// at least four) as long as it takes: the others are for everything else.
	nfsInAll = 2
	// nfsAtOnce bounds concurrent attempts for one server that has answered.
	nfsAtOnce = 2
	// nfsAway bounds concurrent attempts for all other servers together: those that have not been
	// tried yet and those that did not answer when last tried. So mounts of servers that answer do
	// not wait for them.
	nfsAway = 1
	// nfsForget is how long it is remembered whether a server answered.
	nfsForget = time.Hour
)

// nfsTurns schedules mounts, so that a server that does not answer delays only its own.
type nfsTurns struct {
	mu      sync.Mutex
	waiting []*nfsTurn     // in order of arrival
	now     int            // turns in use
	away    int            // those of servers that may not answer
	newest  bool           // the next server that is tried for the first time is the newest one
	servers map[string]int // turns in use, by server
	// tried is when a server was last tried, and whether it answered.
	tried map[string]nfsTry
}

type nfsTry struct {
	at       time.Time
	answered bool
}

// nfsTurn is one mount that waits or runs.
type nfsTurn struct {
	server string
	away   bool          // when the turn was given, the server was not known to answer
	given  chan struct{} // closed when the turn is given
}

func newNFSTurns() *nfsTurns {
	return &nfsTurns{servers: map[string]int{}, tried: map[string]nfsTry{}}
}

// mount waits for a turn and calls do.
func (n *nfsTurns) mount(ctx context.Context, server string, do func(context.Context) error) error {
	turn := n.ask(server)
	defer n.end(turn)
	select {
	case <-turn.given:
	case <-ctx.Done():
		return fmt.Errorf("wait for other mounts: %w", ctx.Err())
	}
	try, cancel := context.WithTimeout(ctx, nfsTime)
	defer cancel()
	err := do(try)
	if ctx.Err() == nil {
		n.answered(server, try.Err() == nil)
	}
	return err
}

func (n *nfsTurns) ask(server string) *nfsTurn {
	n.mu.Lock()
	defer n.mu.Unlock()
	turn := &nfsTurn{server: server, given: make(chan struct{})}
	n.waiting = append(n.waiting, turn)
	n.give()
	return turn
}

// give gives the available turns; the caller holds mu. Servers whose last try answered come first.
// Then comes one that was not tried yet, the one that has waited longest and the newest by turns: so
// each is tried some time, and a new one soon however many wait. One that did not answer comes last.
func (n *nfsTurns) give() {
	var untried, away []*nfsTurn
	for _, t := range slices.Clone(n.waiting) {
		last, known := n.tried[t.server]
		switch known = known && time.Since(last.at) < nfsForget; {
		case known && last.answered:
			if n.now < nfsInAll && n.servers[t.server] < nfsAtOnce {
				n.giveTo(t, false)
			}
		case n.servers[t.server] > 0: // its own earlier turn may still answer
		case known:
			away = append(away, t)
		default:
			untried = append(untried, t)
		}
	}
	if n.now >= nfsInAll || n.away >= nfsAway {
		return
	}
	switch {
	case len(untried) > 0 && n.newest:
		n.newest = false
		n.giveTo(untried[len(untried)-1], true)
	case len(untried) > 0:
		n.newest = true
		n.giveTo(untried[0], true)
	case len(away) > 0:
		n.giveTo(away[0], true)
	}
}

func (n *nfsTurns) giveTo(t *nfsTurn, away bool) {
	n.waiting = slices.DeleteFunc(n.waiting, func(w *nfsTurn) bool { return w == t })
	t.away = away
	n.count(t, 1)
	close(t.given)
}

// end returns a turn, or stops waiting for it.
func (n *nfsTurns) end(t *nfsTurn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-t.given:
		n.count(t, -1)
		n.give()
	default:
		n.waiting = slices.DeleteFunc(n.waiting, func(w *nfsTurn) bool { return w == t })
	}
}

func (n *nfsTurns) count(t *nfsTurn, by int) {
	n.now += by
	if t.away {
		n.away += by
	}
	if n.servers[t.server] += by; n.servers[t.server] == 0 {
		delete(n.servers, t.server)
	}
}

func (n *nfsTurns) answered(server string, yes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.tried, func(_ string, t nfsTry) bool { return time.Since(t.at) >= nfsForget })
	n.tried[server] = nfsTry{time.Now(), yes}
}

// setUpNFS mounts a server's export in the pod's own directory. name is that of the volume, or of
// the persistent volume. Ownership and SELinux labels of the content are not changed: they belong
// to the server.
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
			return hint.Add(fmt.Errorf("mount %s: the host has no %s: %w", mount.Source, nfsHelper, err), "install the NFS client of the host (Debian: nfs-common, others: nfs-utils)")
		}
		return fmt.Errorf("mount %s: %w", mount.Source, err)
	}
	vs.ready = true
	return nil
}
