// Package hostcheck examines a machine before it becomes a node. For each requirement of a node it
// reports whether the machine meets it and, if not, how to fix that. It changes nothing on the
// machine.
//
// The check functions are pure: they turn what was found into a Line. The gathering code (remote.go,
// gather.go, system.go) decides nothing.
package hostcheck

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// Config of a check.
type Config struct {
	Endpoint string           // as configured, for the report
	Target   *endpoint.Target // nil: the local machine
	Socket   string           // of the runtime, a path on the machine
	RootDir  string           // of pods' volumes, a path on the machine
	// Expose is the port of the machine at which the API server shall reach the node; 0: it reaches
	// the node elsewhere.
	Expose int
	// AllowSwap is the opposite of the node's failSwapOn.
	AllowSwap bool
	// Managed is the node that may be managing the machine now; its locks are no failure. The zero
	// value: none.
	Managed   owner.Identity
	Witnesses owner.Witnesses // of Managed's cluster
}

// Machine is the part of host.Host that a check uses.
type Machine interface {
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
	Run(ctx context.Context, cmd host.Command) (host.Result, error)
	Facts(ctx context.Context) (host.Facts, error)
	ClockOffset(ctx context.Context) (offset, uncertainty time.Duration, err error)
	Close() error
}

// way is how a check reaches a machine.
type way interface {
	// come adds the lines about the way. It returns false if the machine cannot be examined.
	come(ctx context.Context, r *Report) bool
	// open fails if the machine lacks the tools that Bowline needs.
	open(ctx context.Context, sudo bool) (Machine, error)
	dial(ctx context.Context, socket string) (net.Conn, error)
	close()
}

// relayer is a way that can open the socket with sudo if the login user may not open it.
type relayer interface {
	// relay returns the program that opens the socket. From then on dial uses it too.
	relay(ctx context.Context, user, socket string) (string, error)
}

// Run checks everything. A machine that is down, or goes down meanwhile, is reported within about
// 15 s.
func Run(ctx context.Context, c Config) *Report {
	r, _ := Look(ctx, c)
	return r
}

func look(ctx context.Context, c Config, w way, local bool) (*Report, Found) {
	defer w.close()
	r := &Report{Endpoint: c.Endpoint}
	subjects, first := remoteSubjects, Reachability
	if local {
		subjects, first = localSubjects, Rights
	}
	if c.Expose != 0 && !local {
		subjects = slices.Insert(slices.Clone(subjects), slices.Index(subjects, Forwarding)+1, Exposure)
	}
	var found Found
	if w.come(ctx, r) {
		e := &examination{Config: c, way: w, local: local, report: r}
		e.all(ctx)
		if e.gone != nil {
			r.add(Line{Failure, first, fmt.Sprintf("the host answered at first, but does not answer any more: %v", e.gone), "check again when it answers"})
		}
		found = e.found()
	}
	r.finish(subjects)
	return r, found
}

// localWay reaches the local machine.
type localWay struct{ rootDir string }

func (localWay) come(context.Context, *Report) bool { return true }
func (localWay) close()                             {}

func (w localWay) open(context.Context, bool) (Machine, error) {
	return local.New(local.Config{RootDir: w.rootDir})
}

func (localWay) dial(ctx context.Context, socket string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", socket)
}

// askTime bounds one request to a machine that has answered before; it is generous for a machine
// under load. The link reports a machine that is gone earlier.
const askTime = 30 * time.Second

// ask makes one request with a timeout. Once the machine is gone, it makes no more.
func (e *examination) ask(ctx context.Context, f func(ctx context.Context) error) error {
	if e.gone != nil {
		return e.gone
	}
	limited, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	err := f(limited)
	if err != nil && (errors.Is(err, host.ErrUnreachable) || ctx.Err() != nil) {
		e.gone = err
	}
	return err
}
