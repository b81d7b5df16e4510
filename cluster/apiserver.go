package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/logonce"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// isUnavailable reports whether err means that the API server could not answer and may answer later.
// Any answer that it did give is final.
func isUnavailable(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		var lost interface{ Timeout() bool } // an http client error: no response
		return errors.As(err, &lost) || errors.Is(err, context.DeadlineExceeded)
	}
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err)
}

// isRefusal reports whether an API server answered and refused. A starting API server refuses every
// client until it has read its roles and accounts.
func isRefusal(err error) bool {
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
}

// OwnedAs returns a function that reads the host's owner file. It returns nil unless the file is
// readable and names NodeName.
func OwnedAs(machine host.Files, cfg *config.Host, nodeName string) func(context.Context) *owner.Record {
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

// WaitForAPIServer waits for an API server that did not answer at startup, and verifies that it
// belongs to the cluster in the owner file. An error means that it belongs to another cluster. It
// also retries while the API server refuses requests: the host already is a node of the cluster, and
// its pods keep running, as with a kubelet. If no witness decides, the running pods may; runtime
// lists them.
func (c *Connection) WaitForAPIServer(ctx context.Context, nodeName string, runtime owner.Runtime) error {
	var refusal logonce.Failure
	retry := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: 10 * time.Second}
	for {
		select {
		case <-c.Ready:
			return nil
		case <-ctx.Done():
			return nil
		case <-time.After(retry.Step()):
		}
		seen := &Connection{Rest: c.Rest, Client: c.Client, Identity: c.Identity}
		same := false
		err := seen.identify(ctx, nodeName)
		if err == nil {
			same, err = c.sameAs(ctx, seen, runtime)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (isUnavailable(err) || cri.IsTransport(err)):
			klog.FromContext(ctx).V(1).Info("Failed to verify the cluster of the API server, will retry", "err", err)
			continue
		case err != nil && isRefusal(err):
			if refusal.Changed(err) {
				klog.FromContext(ctx).Error(err, "Failed to log in to the API server as the node, will retry", hint.With(err)...)
			}
			continue
		case err != nil:
			return err
		case !same:
			return hint.Add(fmt.Errorf("API server %s is not cluster %s, but %s", c.Rest.Host, c.UID, Name(seen.Witnesses)),
				"use the kubeconfig of the cluster that the host is a node of, or remove the owner file if that cluster no longer uses the host")
		}
		klog.FromContext(ctx).Info("Connected to the API server", "server", c.Rest.Host)
		seen.share(c.known)
		c.Shared, c.Witnesses = seen.Shared, seen.Witnesses
		close(c.Ready)
		return nil
	}
}

// sameAs reports whether seen, the API server that answered, belongs to the host's cluster. It
// compares the running pods if the witnesses do not decide.
func (c *Connection) sameAs(ctx context.Context, seen *Connection, runtime owner.Runtime) (bool, error) {
	if c.known.Compare(seen.UID, seen.Witnesses) == owner.Same {
		return true, nil
	}
	sandboxes, err := runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return false, fmt.Errorf("list the runtime's sandboxes: %w", err)
	}
	pods, err := podsOf(ctx, c.Client, c.known.NodeName)
	if err != nil {
		return false, err
	}
	return c.known.IsOf(seen.UID, seen.Witnesses, owner.Sandboxes(sandboxes), pods), nil
}

// IdentityRecorder keeps the cluster's witnesses in the owner file up to date. A Node that registers
// for the first time, or again, is a witness that the claim could not see.
type IdentityRecorder struct {
	Cluster *Connection
	Learn   func(context.Context, owner.Witnesses) error
	node    atomic.Pointer[types.UID]
	Due     notify.Signal
}

// See handles a new version of the Node object.
func (a *IdentityRecorder) See(node *v1.Node) {
	if provider.CheckOwn(node) != nil {
		return // another agent's Node is no witness
	}
	if last := a.node.Swap(&node.UID); last == nil || *last != node.UID {
		a.Due.Send()
	}
}

// learnPause is the pause after a failed write of the owner file.
const learnPause = 10 * time.Second

// Run writes the owner file at the start and after each signal of Due, until ctx ends. Call it after
// the API server is ready.
func (a *IdentityRecorder) Run(ctx context.Context) error {
	failing := false
	for {
		w := a.Cluster.Witnesses
		if uid := a.node.Load(); uid != nil {
			w.Node = string(*uid)
			clusters.of(a.Cluster.Shared, a.Cluster.Shared.UID, w.Node)
		}
		err := a.Learn(ctx, w)
		if ctx.Err() != nil {
			return nil
		}
		var again <-chan time.Time
		if err != nil {
			again = time.After(learnPause)
			if !failing {
				klog.FromContext(ctx).Error(err, "Failed to record the cluster's identity on the host, will retry")
			}
		}
		failing = err != nil
		select {
		case <-again:
		case <-a.Due:
		case <-ctx.Done():
			return nil
		}
	}
}

// IsReady reports whether the API server is ready, so that the node may write to it.
func (c *Connection) IsReady() bool {
	select {
	case <-c.Ready:
		return true
	default:
		return false
	}
}

// AfterReady delays run until the API server is ready.
func (c *Connection) AfterReady(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-c.Ready:
			return run(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}
