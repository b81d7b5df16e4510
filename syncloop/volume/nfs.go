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

	"github.com/bowline-k8s/bowline/host"
)

const (
	// pluginNFS is the kubelet's plugin name with the slash escaped.
	pluginNFS = "kubernetes.io~nfs"
	// nfsHelper is what mount(8) needs for it.
	nfsHelper = "/sbin/mount.nfs"
	// nfsTime is for one attempt. It is made again, by the back-off of the pod's start.
	nfsTime = 30 * time.Second
	// nfsInAll is how many attempts there are at a time. Over SSH each holds one of the four
	// shells of the machine (shell.MaxShells) for as long as it takes: the other two are for
	// everything else.
	nfsInAll = 2
	// nfsAtOnce is how many there are for one server that has answered; others have one.
	nfsAtOnce = 2
	// nfsAway is how many there are for all servers together that did not answer when they
	// were last tried, so that the mounts of others do not wait for them.
	nfsAway = 1
	// nfsForget is how long a server that did not answer is remembered as such.
	nfsForget = time.Hour
)

// nfsTurns gives mounts their turn, so that a server that is away delays its own alone.
type nfsTurns struct {
	mu      sync.Mutex
	waiting []*nfsTurn     // in the order in which they came
	now     int            // turns that are taken
	away    int            // those of them that are of servers known to be away
	servers map[string]int // turns that are taken, by server
	// tried is when a server was last found to answer, or to be away.
	tried map[string]nfsTry
}

type nfsTry struct {
	at       time.Time
	answered bool
}

// nfsTurn is one mount that waits, or is made.
type nfsTurn struct {
	server string
	away   bool          // as was known when it was given
	given  chan struct{} // closed when it is
}

func newNFSTurns() *nfsTurns {
	return &nfsTurns{servers: map[string]int{}, tried: map[string]nfsTry{}}
}

// mount has do mount what the server exports, when it is its turn.
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

// give gives the turns that may be had, those of servers known to be away last; mu is held.
func (n *nfsTurns) give() {
	for _, away := range []bool{false, true} {
		n.waiting = slices.DeleteFunc(n.waiting, func(t *nfsTurn) bool {
			most := 1
			last, known := n.tried[t.server]
			if known = known && time.Since(last.at) < nfsForget; known && last.answered {
				most = nfsAtOnce
			}
			t.away = known && !last.answered
			if t.away != away || n.now >= nfsInAll || n.servers[t.server] >= most || away && n.away >= nfsAway {
				return false
			}
			n.count(t, 1)
			close(t.given)
			return true
		})
	}
}

// end gives a turn back, or takes it out of those that wait.
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
