package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host"
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
func (c *cluster) meet(ctx context.Context, nodeName string) error {
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
		err := seen.introduce(ctx, nodeName)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && isAway(err):
			klog.FromContext(ctx).V(1).Info("The API server does not answer yet", "err", err)
			continue
		case err != nil && isRefusal(err):
			if said := err.Error(); said != refusal {
				refusal = said
				klog.FromContext(ctx).Error(err, "The API server refuses this node, will retry")
			}
			continue
		case err != nil:
			return err
		case c.known.Compare(seen.uid, seen.witnesses) != owner.Same:
			return fmt.Errorf("the API server at %s is of cluster %s, and the machine is a node of cluster %s; use that cluster's kubeconfig, or remove the owner file if that cluster has given the machine up", c.rest.Host, seen.uid, c.uid)
		}
		klog.FromContext(ctx).Info("The API server answers")
		c.shared = seen.shared
		close(c.met)
		return nil
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
