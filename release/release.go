// Package release removes a node from its host: it drains the node, stops its pods, removes what they
// left, and undoes the preparation of the host.
package release

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/ownership"
	"github.com/bowline-k8s/bowline/prepare"
	"github.com/bowline-k8s/bowline/syncloop/lifecycle"
	"github.com/bowline-k8s/bowline/syncloop/owner"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// Release is one run of "bowline host release", or the release of a deleted Host object's host.
type Release struct {
	Open       func(context.Context) (*connect.Host, error)
	Cfg        *config.Host
	Kubeconfig string
	NodeName   string
	Cluster    *cluster.Seen // cluster that the node must belong to; nil for any
	DrainTime  time.Duration
	MaxGrace   time.Duration
	Keep       bool
	Recognize  connect.Recognizer // nil: any machine
	// Step gets each step when it is made. Several goroutines may call it.
	Step func(Step)

	machine *connect.Host
	client  *cri.Client
	holder  *ownership.Holder
	id      owner.Identity // noOwner if the host is no node
	file    *owner.Record  // nil if there is none
	running []owner.Sandbox
	offset  time.Duration // the host's clock minus the local one
}

// Result is what a release changed on the host, and what it left.
type Result struct {
	Changes []Change
	Left    []string // of Bowline; empty after a complete release
}

// Err returns an error if anything of Bowline's is left.
func (r *Result) Err() error {
	if len(r.Left) == 0 {
		return nil
	}
	return errors.New("left of Bowline: " + strings.Join(r.Left, "; "))
}

func (r *Release) Run(ctx context.Context) (_ *Result, err error) {
	if r.machine, err = r.Open(ctx); err != nil {
		return nil, err
	}
	defer r.machine.Close()
	if r.Recognize != nil {
		facts, err := r.machine.Facts(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the host's facts: %w", err)
		}
		if err := r.machine.Recognized(ctx, facts, r.Recognize); err != nil {
			return nil, err
		}
	}
	if r.Cfg, err = connect.Resolve(ctx, r.machine, r.Cfg); err != nil {
		return nil, err
	}
	if r.client, err = connect.Runtime(ctx, r.Cfg, r.machine, r.machine.Hook, notify.New()); err != nil {
		return nil, hint.Add(err, "start the container runtime, which a release needs, and release the host again")
	}
	defer r.client.Close()
	record, err := prepare.ReadRecord(ctx, r.machine, r.Cfg.RootDirectory)
	if err != nil {
		return nil, err
	}
	if err := volume.CheckRecords(ctx, r.machine, r.Cfg.RootDirectory); err != nil {
		return nil, err
	}
	// Before the claim, because its lock files are on the host too.
	before, err := List(ctx, r.machine, r.Cfg.RootDirectory)
	if err != nil {
		return nil, err
	}
	if err := r.claim(ctx); err != nil {
		return nil, err
	}
	ours, left, err := r.empty(ctx, before)
	if err != nil {
		return nil, err
	}
	// The rest is quick, and an interrupted one would leave a mess.
	ctx = context.WithoutCancel(ctx)
	kept, err := r.undoPreparation(ctx, record)
	if err != nil {
		return nil, err
	}
	after, err := List(ctx, r.machine, r.Cfg.RootDirectory)
	if err != nil {
		return nil, err
	}
	left.AddTo(after)
	ours.Paths, ours.Bridges = r.ourPaths(record)
	return &Result{Compare(before, after), append(kept, Stays(after, ours)...)}, nil
}

// empty stops and removes what is Bowline's in the runtime, and adds to before what the runtime
// had. It returns what was Bowline's and what the runtime still has.
func (r *Release) empty(ctx context.Context, before Listing) (ours Ours, left Seen, err error) {
	ctx, stop := r.whileClaimed(ctx)
	defer stop()
	err = func() error {
		seen, err := See(ctx, r.client)
		if err != nil {
			return err
		}
		seen.AddTo(before)
		if ours, err = seen.Ours(ctx, r.machine, r.id.Stamp(), r.Cfg.RootDirectory); err != nil {
			return err
		}
		if err := r.pods(ctx); err != nil {
			return err
		}
		left, err = See(ctx, r.client)
		return err
	}()
	if err != nil {
		err = r.notReleased(ctx, err)
	}
	return ours, left, err
}

// noOwner is the owner of a host that is no node.
var noOwner = owner.Identity{ClusterUID: "none", NodeName: "none"}

// claim claims the host as a node does, for the node that the host is.
func (r *Release) claim(ctx context.Context) error {
	data, err := r.machine.ReadFile(ctx, owner.FilePath(r.Cfg.RootDirectory), 1<<20)
	if err != nil && !isMissing(err) {
		return fmt.Errorf("read the owner file: %w", err)
	}
	file, _ := owner.ParseRecord(data) // the claim refuses a file that is not Bowline's, with a message
	sandboxes, err := r.client.ListPodSandbox(ctx, nil)
	if err != nil {
		return fmt.Errorf("list the runtime's sandboxes: %w", err)
	}
	r.running = owner.Sandboxes(sandboxes)
	id, known := Whose(file, r.running)
	switch {
	case known && r.NodeName != "" && r.NodeName != id.NodeName:
		return fmt.Errorf("host belongs to %s, not to node %q (--node-name)", id, r.NodeName)
	case known && r.Cluster != nil:
		switch ours, err := r.Cluster.Has(ctx, file, id, r.running); {
		case err != nil:
			return err
		case !ours:
			return fmt.Errorf("host belongs to %s, not to %s", id, cluster.Name(r.Cluster.Witnesses))
		}
	case !known && r.Kubeconfig != "" && r.NodeName == "":
		return hint.Add(errors.New("the host has no record of a node"), "set --node-name, or omit --kubeconfig")
	case !known:
		// No owner. Take the lock all the same, against a process that starts now.
		id = noOwner
	}
	r.id, r.file = id, file
	r.Cfg.AllowForeignPods = true
	r.holder = ownership.NewHolder(r.machine.Fence, func(ctx context.Context) (ownership.Claim, error) {
		return ownership.Take(ctx, r.Cfg, r.machine, r.client, owner.Config{ClusterUID: id.ClusterUID, NodeName: id.NodeName})
	})
	if err := r.holder.Acquire(ctx); err != nil {
		return err
	}
	if known {
		r.Step(Step{What: Recognized, Object: id.String()})
	} else {
		r.Step(Step{What: NoNode})
	}
	r.offset, _, err = r.machine.ClockOffset(ctx)
	return err
}

// whileClaimed returns a context that ends when the claim is lost: a host without a claim is not
// touched.
func (r *Release) whileClaimed(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-r.holder.Claim.Lost():
			if f := r.machine.Fence; f != nil {
				f.Close()
			}
			cancel(hint.Add(errors.New("lost the host lock; the release stopped"), "run it again"))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

// notReleased gives the claim back and returns the error. The owner file stays while anything of
// Bowline's is left on the host.
func (r *Release) notReleased(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	} else if ctx.Err() != nil {
		err = errors.New("interrupted; to continue, release the host again")
	}
	ownership.Release(ctx, r.holder.Claim)
	return err
}

// pods stops all pods of the node and removes what they left, on the host and in the cluster.
func (r *Release) pods(ctx context.Context) error {
	drain, err := newDraining(ctx, r.Kubeconfig, r.file, r.id, r.running, r.NodeName, r.Step)
	if err != nil {
		return err
	}
	if drain != nil {
		if err := drain.evict(ctx, r.DrainTime); err != nil {
			return err
		}
	}
	hooks := &lifecycle.Runner{Exec: r.client, Dial: r.machine}
	stopper := &Stopper{
		Runtime: r.client, Stamp: r.id.Stamp(), MaxGrace: r.MaxGrace, Step: r.Step,
		Hook: func(ctx context.Context, sb *runtimeapi.PodSandbox, c *runtimeapi.Container) {
			r.preStop(ctx, hooks, sb, c)
		},
	}
	seen, err := See(ctx, r.client)
	if err != nil {
		return err
	}
	if err := stopper.Stop(ctx, seen); err != nil {
		return err
	}
	if err := r.sweep(ctx); err != nil {
		return err
	}
	if drain != nil {
		return drain.forget(ctx)
	}
	return nil
}

// undoPreparation undoes what "host prepare" did. It releases the claim after the undo steps that
// need the CRI, and before those that restart the runtime or take the CRI away. kept is what could
// not be restored.
func (r *Release) undoPreparation(ctx context.Context, record *prepare.Record) (kept []string, err error) {
	undo := func(restarts bool) {
		if record == nil || r.Keep {
			return
		}
		u := prepare.Undo(ctx, r.machine, record, restarts)
		for _, line := range u.Done {
			r.Step(Step{What: Undone, Object: line})
		}
		kept = append(kept, u.Kept...)
	}
	undo(false)
	releaseCtx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := r.holder.Claim.Release(releaseCtx); err != nil {
		return kept, err
	}
	if err := r.machine.UndoShared(releaseCtx, r.Cfg.RootDirectory); err != nil {
		return kept, err
	}
	undo(true)
	if r.Keep || len(kept) > 0 {
		return kept, nil // the record stays, for a retry
	}
	if record == nil {
		record = &prepare.Record{}
	}
	return nil, prepare.Forget(ctx, r.machine, record, r.Cfg.RootDirectory)
}

// ourPaths returns the files and links that are Bowline's, of this node and of others.
func (r *Release) ourPaths(record *prepare.Record) (paths, bridges []string) {
	root := r.Cfg.RootDirectory
	paths = append(owner.LockPaths(root, owner.RunDir, r.Cfg.SocketPath()), owner.FilePath(root), volume.RecordDir(root))
	if r.Keep {
		return paths, nil
	}
	paths = append(paths, path.Join(root, "bowline"))
	if record != nil {
		for _, m := range record.Fixes {
			for _, e := range m.Edits {
				if e.Old == nil {
					paths = append(paths, e.Path)
				}
			}
			if m.Bridge != "" {
				bridges = append(bridges, m.Bridge)
			}
		}
	}
	return paths, bridges
}
