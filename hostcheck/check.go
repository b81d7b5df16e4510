// Package hostcheck looks at a machine before it becomes a node, and says of each
// thing that a node needs whether it is there and, if not, how to mend it. It changes
// nothing on the machine.
//
// The judge functions are pure: what was found to a Line. The gathering (far.go,
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
	Endpoint string           // as it was written, for the report
	Target   *endpoint.Target // nil: it is this machine
	Socket   string           // of the runtime, a path on the machine
	RootDir  string           // of pods' volumes, a path on the machine
	// Expose is the port of the machine at which the API server is to find the node; 0:
	// it finds it elsewhere.
	Expose int
	// Driven is the node that is driven on the machine now, and may be; the zero value:
	// there is none.
	Driven    owner.Identity
	Witnesses owner.Witnesses // of its cluster
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

// way is how a machine is come to.
type way interface {
	// come adds the lines of the way; false if the machine cannot be asked.
	come(ctx context.Context, r *Report) bool
	// open fails where the machine lacks the tools to be driven by.
	open(ctx context.Context, sudo bool) (Machine, error)
	dial(ctx context.Context, socket string) (net.Conn, error)
	close()
}

// relayer is a way that opens the socket by sudo where the login may not open it.
type relayer interface {
	// relay names the program that does, from now on for dial as well.
	relay(ctx context.Context, user, socket string) (string, error)
}

// Run looks at everything that can be asked. A machine that is dead, or dies
// meanwhile, is told within some 15 s.
func Run(ctx context.Context, c Config) *Report {
	r, _ := Look(ctx, c)
	return r
}

func run(ctx context.Context, c Config, w way, near bool) *Report {
	r, _ := look(ctx, c, w, near)
	return r
}

func look(ctx context.Context, c Config, w way, near bool) (*Report, Found) {
	defer w.close()
	r := &Report{Endpoint: c.Endpoint}
	subjects, first := farSubjects, Reachability
	if near {
		subjects, first = nearSubjects, Rights
	}
	if c.Expose != 0 && !near {
		subjects = slices.Insert(slices.Clone(subjects), slices.Index(subjects, Forwarding)+1, Exposure)
	}
	var found Found
	if w.come(ctx, r) {
		e := &examination{Config: c, way: w, near: near, report: r}
		e.all(ctx)
		if e.gone != nil {
			r.add(Line{Failure, first, fmt.Sprintf("the machine answered at first and does no more: %v", e.gone), "check again when it answers"})
		}
		found = e.found()
	}
	r.finish(subjects)
	return r, found
}

// nearWay is this machine.
type nearWay struct{ rootDir string }

func (nearWay) come(context.Context, *Report) bool { return true }
func (nearWay) close()                             {}

func (w nearWay) open(context.Context, bool) (Machine, error) {
	return local.New(local.Config{RootDir: w.rootDir})
}

func (nearWay) dial(ctx context.Context, socket string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", socket)
}

// askTime bounds one question to a machine that has answered before. One that is gone
// is told earlier, by its link; this is for one under load.
const askTime = 30 * time.Second

// ask asks one thing under a time limit; nothing is asked any more once the machine
// has gone.
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
