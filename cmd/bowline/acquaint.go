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

// ownedAs is the cluster that the machine is this node of, as its owner file has it; empty
// where it has none, or is another node.
func ownedAs(machine host.Files, cfg *config.Host, nodeName string) func(context.Context) string {
	return func(ctx context.Context) string {
		data, err := machine.ReadFile(ctx, owner.FilePath(cfg.RootDirectory), 1<<16)
		if err != nil {
			return ""
		}
		record, err := owner.ParseRecord(data)
		if err != nil || record == nil || record.NodeName != nodeName {
			return ""
		}
		return record.ClusterUID
	}
}

// Pauses between tries to meet the API server.
const (
	firstMeetPause = time.Second
	mostMeetPause  = 10 * time.Second
)

// meet waits for an API server that did not answer at the start, and tells what it is. An
// error says that it is not to be this node's.
func (c *cluster) meet(ctx context.Context, nodeName string) error {
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
		case err != nil:
			return err
		case seen.uid != c.uid:
			return fmt.Errorf("the API server at %s is of cluster %s, and the machine is a node of cluster %s; use that cluster's kubeconfig, or remove the owner file if that cluster has given the machine up", c.rest.Host, seen.uid, c.uid)
		}
		klog.FromContext(ctx).Info("The API server answers")
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
