package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/handover"
	"github.com/bowline-k8s/bowline/hostcheck"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/lifecycle"
	"github.com/bowline-k8s/bowline/syncloop/owner"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

func hostReleaseCommand() *cobra.Command {
	r := &release{}
	var flags hostFlags
	c := &cobra.Command{
		Use:   "release ENDPOINT",
		Short: "Hand a machine back: stop the node's pods, and leave nothing of it behind",
		Long: `Stop every pod that Bowline runs on a machine, each with its own grace, and remove
all that it left there: sandboxes, containers, volumes, logs, cgroups, the owner file;
then undo what "bowline host prepare" did. Pods of others on the same runtime are not
touched, and images stay.

With --kubeconfig (of somebody who may do so) the node is drained first: cordoned, its
pods evicted as their disruption budgets allow, and its object is deleted at the end.

Stop the Bowline that drives the machine first: while it lives it is refused, and it is
said who it is. A release that was cut off is gone on with by another one. The status
is 0 when nothing of Bowline's stays, and 1 otherwise.`,
		Example: `  bowline host release unix:///run/containerd/containerd.sock
  bowline host release --kubeconfig ~/.kube/config --identity-file ~/.ssh/id_ed25519 \
    --host-key SHA256:… ssh://root@10.0.0.7/run/containerd/containerd.sock`,
		Args: arguments("ENDPOINT"),
		RunE: func(c *cobra.Command, args []string) error {
			if r.maxGrace < 0 || r.drainTime <= 0 {
				return errors.New("--max-grace and --drain-timeout are to be positive")
			}
			if r.nodeName != "" && r.kubeconfig == "" {
				return errors.New("--node-name: of use with --kubeconfig only")
			}
			checked, err := flags.check(c, args[0])
			if err != nil {
				return err
			}
			r.check, r.cfg, r.out = checked, flags.host(checked), c.OutOrStdout()
			quiet() // what the link would log comes back as errors
			return r.run(c.Context())
		},
	}
	flags.register(c)
	f := c.Flags()
	f.StringVar(&r.kubeconfig, "kubeconfig", "", "drain the node with this credential, and delete it")
	f.StringVar(&r.nodeName, "node-name", "", "the node to drain and delete; the machine knows it as long as it has pods of it")
	f.DurationVar(&r.drainTime, "drain-timeout", 5*time.Minute, "how long evictions may be refused")
	f.DurationVar(&r.maxGrace, "max-grace", 0, "cut the pods' graces short")
	f.BoolVar(&r.keep, "keep-preparation", false, "leave what host prepare did")
	return c
}

// release is one run of the command.
type release struct {
	check      *hostcheck.Config
	cfg        *config.Host
	kubeconfig string
	nodeName   string
	cluster    *seenCluster // whose node it is; any, if nil
	drainTime  time.Duration
	maxGrace   time.Duration
	keep       bool
	may        recognize // nil: whichever machine it is
	out        io.Writer

	machine *machine
	client  *cri.Client
	hold    *holding
	id      owner.Identity // nobody, where the machine is no node
	file    *owner.Record  // nil: none
	running []owner.Sandbox
	offset  time.Duration // the machine's clock minus ours
}

func (r *release) say(format string, args ...any) {
	fmt.Fprintln(r.out, pod.PrintableLines(fmt.Sprintf(format, args...)))
}

func (r *release) run(ctx context.Context) (err error) {
	if r.machine, err = openChecked(ctx, r.check, r.cfg); err != nil {
		return err
	}
	defer r.machine.Close()
	if r.may != nil {
		facts, err := r.machine.Facts(ctx)
		if err != nil {
			return fmt.Errorf("read what the machine is: %w", err)
		}
		if err := r.machine.recognized(ctx, facts, r.may); err != nil {
			return err
		}
	}
	if r.cfg, err = onMachine(ctx, r.machine, r.cfg); err != nil {
		return err
	}
	if r.client, err = connectRuntime(ctx, r.cfg, r.machine, r.machine.hook, make(nudge, 1)); err != nil {
		return fmt.Errorf("%w; a machine is released by way of its runtime: start it, and release again", err)
	}
	defer r.client.Close()
	record, err := handover.ReadRecord(ctx, r.machine, r.cfg.RootDirectory)
	if err != nil {
		return err
	}
	// Before the lock, which is on the machine too.
	before, err := handover.List(ctx, r.machine, r.cfg.RootDirectory)
	if err != nil {
		return err
	}
	if err := r.claim(ctx); err != nil {
		return err
	}
	ours, left, err := r.empty(ctx, before)
	if err != nil {
		return err
	}
	// From here on it is quickly done, and half done it would be worse.
	ctx = context.WithoutCancel(ctx)
	kept, err := r.giveBack(ctx, record)
	if err != nil {
		return err
	}
	after, err := handover.List(ctx, r.machine, r.cfg.RootDirectory)
	if err != nil {
		return err
	}
	left.AddTo(after)
	ours.Paths, ours.Bridges = r.ourPaths(record)
	return r.tell(before, after, ours, kept)
}

// empty ends what is ours in the runtime, adds to before what that had, and returns
// what was ours and what the runtime has left.
func (r *release) empty(ctx context.Context, before handover.Listing) (ours handover.Ours, left handover.Seen, err error) {
	ctx, stop := r.whileOurs(ctx)
	defer stop()
	err = func() error {
		seen, err := handover.See(ctx, r.client)
		if err != nil {
			return err
		}
		seen.AddTo(before)
		if ours, err = seen.Ours(ctx, r.machine, r.id.Stamp(), r.cfg.RootDirectory); err != nil {
			return err
		}
		if err := r.pods(ctx); err != nil {
			return err
		}
		left, err = handover.See(ctx, r.client)
		return err
	}()
	if err != nil {
		err = r.notReleased(ctx, err)
	}
	return ours, left, err
}

// nobody is whose a machine is that is no node.
var nobody = owner.Identity{ClusterUID: "none", NodeName: "none"}

// claim takes the machine, as a node does, in the name of the node that it is.
func (r *release) claim(ctx context.Context) error {
	data, err := r.machine.ReadFile(ctx, owner.FilePath(r.cfg.RootDirectory), 1<<20)
	if err != nil && !isMissing(err) {
		return fmt.Errorf("read the owner file: %w", err)
	}
	file, _ := owner.ParseRecord(data) // the claim refuses one that is not ours, in words
	sandboxes, err := r.client.ListPodSandbox(ctx, nil)
	if err != nil {
		return fmt.Errorf("list the runtime's sandboxes: %w", err)
	}
	r.running = owner.Sandboxes(sandboxes)
	id, known := handover.Whose(file, r.running)
	switch {
	case known && r.nodeName != "" && r.nodeName != id.NodeName:
		return fmt.Errorf("this machine is %s, and not %q (--node-name)", id, r.nodeName)
	case known && r.cluster != nil:
		switch ours, err := r.cluster.has(ctx, file, id, r.running); {
		case err != nil:
			return err
		case !ours:
			return fmt.Errorf("this machine is %s, and not of the cluster %s", id, r.cluster.witnesses.Service)
		}
	case !known && r.kubeconfig != "" && r.nodeName == "":
		return errors.New("the machine has nothing of a node, and does not tell which one it was: name it by --node-name, or leave --kubeconfig out")
	case !known:
		// Nobody's: the lock is taken all the same, against one who begins just now.
		id = nobody
	}
	r.id, r.file = id, file
	r.cfg.AllowForeignPods = true
	r.hold = &holding{fence: r.machine.fence, take: func(ctx context.Context) (claim, error) {
		return claimRuntime(ctx, r.cfg, r.machine, r.client, owner.Config{ClusterUID: id.ClusterUID, NodeName: id.NodeName})
	}}
	if err := r.hold.hold(ctx); err != nil {
		return err
	}
	if known {
		r.say("This machine is %s.", id)
	} else {
		r.say("No node of Bowline's is on this machine.")
	}
	r.offset, _, err = r.machine.ClockOffset(ctx)
	return err
}

// whileOurs ends with the claim: what is lost is not driven any more.
func (r *release) whileOurs(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-r.hold.claim.Lost():
			if f := r.machine.fence; f != nil {
				f.shut.Store(true)
			}
			cancel(errors.New("the lock of the machine was lost, with the link or to another process: nothing more is done; release it again"))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

// notReleased lets go of the machine; what is left of ours keeps its owner file.
func (r *release) notReleased(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	} else if ctx.Err() != nil {
		err = errors.New("interrupted; release the machine again to go on")
	}
	letGo(ctx, r.hold.claim)
	return err
}

// pods ends all pods and removes what they left, on the machine and in the cluster.
func (r *release) pods(ctx context.Context) error {
	drain, err := newDrain(ctx, r.kubeconfig, r.file, r.id, r.running, r.nodeName, r.say)
	if err != nil {
		return err
	}
	if drain != nil {
		if err := drain.evict(ctx, r.drainTime); err != nil {
			return err
		}
	}
	hooks := &lifecycle.Runner{Exec: r.client, Dial: r.machine}
	stopper := &handover.Stopper{
		Runtime: r.client, Stamp: r.id.Stamp(), MaxGrace: r.maxGrace, Log: r.say,
		Hook: func(ctx context.Context, sb *runtimeapi.PodSandbox, c *runtimeapi.Container) {
			r.preStop(ctx, hooks, sb, c)
		},
	}
	seen, err := handover.See(ctx, r.client)
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

// giveBack undoes what was prepared, and gives the lock back between what needs the
// runtime's CRI and what takes that away. kept is what could not be brought back.
func (r *release) giveBack(ctx context.Context, record *handover.Record) (kept []string, err error) {
	undo := func(restarts bool) {
		if record == nil || r.keep {
			return
		}
		u := handover.Undo(ctx, r.machine, record, restarts)
		for _, line := range u.Done {
			r.say("%s", line)
		}
		kept = append(kept, u.Kept...)
	}
	undo(false)
	letGo, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := r.hold.claim.Release(letGo); err != nil {
		return kept, err
	}
	if err := r.machine.UndoShared(letGo, r.cfg.RootDirectory); err != nil {
		return kept, err
	}
	undo(true)
	if r.keep || len(kept) > 0 {
		return kept, nil // the record stays, for another try
	}
	if record == nil {
		record = &handover.Record{}
	}
	return nil, handover.Forget(ctx, r.machine, record, r.cfg.RootDirectory)
}

// ourPaths are files and links that are ours whoever's pods there are.
func (r *release) ourPaths(record *handover.Record) (paths, bridges []string) {
	root := r.cfg.RootDirectory
	paths = append(owner.LockPaths(root, owner.RunDir, r.cfg.SocketPath()), owner.FilePath(root), volume.RecordDir(root))
	if r.keep {
		return paths, nil
	}
	paths = append(paths, path.Join(root, "bowline"))
	if record != nil {
		for _, m := range record.Mends {
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

// leftovers is what of Bowline's a release has left on the machine. The command has
// printed it by then.
type leftovers struct{ names []string }

func (l *leftovers) Error() string        { return "this stays of Bowline's: " + strings.Join(l.names, "; ") }
func (l *leftovers) Is(target error) bool { return target == errSaid }

// tell is the listing, and whether anything of ours is in it still.
func (r *release) tell(before, after handover.Listing, ours handover.Ours, kept []string) error {
	r.say("\n%s", handover.Text(handover.Compare(before, after)))
	stays := append(kept, handover.Stays(after, ours)...)
	if len(stays) > 0 {
		r.say("This stays of Bowline's:\n  %s", strings.Join(stays, "\n  "))
		return &leftovers{stays}
	}
	r.say("Nothing of Bowline's stays. Images that were pulled are left to the runtime (crictl rmi --prune).")
	return nil
}
