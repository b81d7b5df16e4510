package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// isAway says of an error that the API server could not answer, and that it may later.
// What it did answer is believed.
func isAway(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		var lost interface{ Timeout() bool } // every error of a request that had no answer
		return errors.As(err, &lost) || errors.Is(err, context.DeadlineExceeded)
	}
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err)
}

// isRefusal says of an error that an API server answered, and refused. One that starts does
// so to every client until it has read its roles and accounts.
func isRefusal(err error) bool {
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
}

// ownedAs is the owner file of a machine that is this node; nil where it has none, or is
// another node.
func ownedAs(machine host.Files, cfg *config.Host, nodeName string) func(context.Context) *owner.Record {
	return func(ctx context.Context) *owner.Record {
		data, err := machine.ReadFile(ctx, owner.FilePath(cfg.RootDirectory), 1<<16)
		if err != nil {
			return nil
		}
		record, err := owner.ParseRecord(data)
		if err != nil || record == nil || record.NodeName != nodeName {
			return nil
		}
		return record
	}
}

// Pauses between tries to meet the API server.
const (
	firstMeetPause = time.Second
	mostMeetPause  = 10 * time.Second
)

// meet waits for an API server that did not answer at the start, and finds out what it is.
// One that refuses its answers is waited for as well: the machine is a node of the cluster
// already, and its pods run on as with a kubelet. An error says that it is not this node's.
// Where no witness tells, what runs may: runtime lists it.
func (c *cluster) meet(ctx context.Context, nodeName string, runtime owner.Runtime) error {
	var refusal string
	for pause := firstMeetPause; ; pause = min(2*pause, mostMeetPause) {
		select {
		case <-c.met:
			return nil
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		seen := &cluster{rest: c.rest, client: c.client, identity: c.identity}
		same := false
		err := seen.introduce(ctx, nodeName)
		if err == nil {
			same, err = c.sameAs(ctx, seen, runtime)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (isAway(err) || cri.IsTransport(err)):
			klog.FromContext(ctx).V(1).Info("It is not known yet whether the API server is this node's", "err", err)
			continue
		case err != nil && isRefusal(err):
			if said := err.Error(); said != refusal {
				refusal = said
				klog.FromContext(ctx).Error(err, "The API server refuses this node, will retry")
			}
			continue
		case err != nil:
			return err
		case !same:
			return fmt.Errorf("the API server at %s is of cluster %s, and the machine is a node of cluster %s; use that cluster's kubeconfig, or remove the owner file if that cluster has given the machine up", c.rest.Host, seen.uid, c.uid)
		}
		klog.FromContext(ctx).Info("The API server answers")
		c.shared, c.witnesses = seen.shared, seen.witnesses
		close(c.met)
		return nil
	}
}

// sameAs says whether an API server that has been seen is that of the machine's cluster.
// The pods are asked for where the witnesses do not tell.
func (c *cluster) sameAs(ctx context.Context, seen *cluster, runtime owner.Runtime) (bool, error) {
	if c.known.Compare(seen.uid, seen.witnesses) == owner.Same {
		return true, nil
	}
	sandboxes, err := runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return false, fmt.Errorf("list the runtime's sandboxes: %w", err)
	}
	pods, err := podsOf(ctx, c.client, c.known.NodeName)
	if err != nil {
		return false, err
	}
	return c.known.IsOf(seen.uid, seen.witnesses, owner.Sandboxes(sandboxes), pods), nil
}

// acquaintance keeps true what the owner file says of the cluster: a Node that registers
// for the first time, or again, is a witness that the claim could not see.
type acquaintance struct {
	cluster *cluster
	learn   func(context.Context, owner.Witnesses) error
	node    atomic.Pointer[types.UID]
	due     nudge
}

// see takes in a version of the node's object.
func (a *acquaintance) see(node *v1.Node) {
	if provider.CheckOwn(node) != nil {
		return // no witness of ours
	}
	if last := a.node.Swap(&node.UID); last == nil || *last != node.UID {
		a.due.poke()
	}
}

// learnPause is between tries.
const learnPause = 10 * time.Second

// run has the owner file written each time that there is something to tell, until ctx
// ends. The cluster has been met.
func (a *acquaintance) run(ctx context.Context) error {
	failing := false
	for {
		w := a.cluster.witnesses
		if uid := a.node.Load(); uid != nil {
			w.Node = string(*uid)
		}
		err := a.learn(ctx, w)
		if ctx.Err() != nil {
			return nil
		}
		var again <-chan time.Time
		if err != nil {
			again = time.After(learnPause)
			if !failing {
				klog.FromContext(ctx).Info("What tells the cluster from others could not be written on the machine yet, will retry", "err", err)
			}
		}
		failing = err != nil
		select {
		case <-again:
		case <-a.due:
		case <-ctx.Done():
			return nil
		}
	}
}

// isMet says whether the API server may be told anything.
func (c *cluster) isMet() bool {
	select {
	case <-c.met:
		return true
	default:
		return false
	}
}

// whenMet is run once the API server has been met.
func (c *cluster) whenMet(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-c.met:
			return run(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}
