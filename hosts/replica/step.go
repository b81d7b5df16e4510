package replica

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/hosts/shard"
)

// step reads the Leases, decides and acts. next is when to run again if nothing happens.
func (r *Replica) step(ctx context.Context, now time.Time) (next time.Time) {
	seen := r.view.look(r.identity, r.cfg.Name, now)
	if !seen.synced {
		return time.Time{}
	}
	log := klog.FromContext(ctx)
	if seen.heard != r.heard {
		r.heard = seen.heard
		if r.heard {
			log.Info("Observed own Lease renewals; resuming assignment", "replica", r.cfg.Name)
		} else {
			log.Error(nil, "Missed own Lease renewals; keeping hosts", "replica", r.cfg.Name)
		}
	}
	r.mu.Lock()
	hosts, known, leaving := r.hosts, r.known, r.leaving
	r.mu.Unlock()
	next = seen.wake
	if living := append(seen.others, shard.Replica{Name: r.cfg.Name, Leaving: leaving}); !same(living, r.living) {
		r.living, r.changed = living, now
		log.Info("Observed a change of the replica set", "replicas", fmt.Sprint(living))
	}
	if !known {
		return next
	}
	holders := map[string]string{}
	for _, h := range hosts {
		if l := seen.leases[leaseName(h)]; l != nil {
			holders[h] = holder(l)
		}
	}
	r.hold(ctx, holders)
	var plan shard.Plan
	if r.heard {
		plan = shard.Decide(shard.Input{Replicas: r.living, Hosts: hosts, Holders: holders, Changed: r.changed, Moved: seen.moved, Now: now})
		next = sooner(next, plan.WakeAt)
	}
	targets := map[string]shard.Move{}
	for _, m := range plan.Moves {
		switch {
		case m.From == r.cfg.Name:
			targets[m.Host] = m
		// One after another, in the plan's order, so that a replica that sees a part of it done
		// comes to the same plan for the rest.
		case m.Reason == shard.Unheld && m.To == r.cfg.Name && !r.takes():
			next = sooner(next, r.write(ctx, m, seen.leases[leaseName(m.Host)], now))
		}
	}
	next = sooner(next, r.give(ctx, targets, seen, now))
	if r.heard {
		next = sooner(next, r.tidy(ctx, hosts, seen, now))
	}
	return next
}

// hold adopts what the Leases say. It takes new hosts only while we are heard, and lets go at once
// of hosts that are not ours any more.
func (r *Replica) hold(ctx context.Context, holders map[string]string) {
	var look []string
	r.mu.Lock()
	for h, who := range holders {
		if who == r.cfg.Name && !r.held[h] && r.heard && !r.leaving {
			klog.FromContext(ctx).Info("Acquired the host", "host", h)
			r.held[h] = true
			look = append(look, h)
		}
	}
	for h := range r.held {
		if who := holders[h]; who != r.cfg.Name {
			klog.FromContext(ctx).Info("Lost the host to another replica", "host", h, "holder", who)
			delete(r.held, h)
			delete(r.given, h)
			look = append(look, h)
		}
	}
	if len(look) > 0 {
		r.pass()
	}
	r.mu.Unlock()
	for _, h := range look {
		r.objects.Look(h)
	}
}

// give lets go of hosts that are to move to other replicas, and writes the new holder once no work
// on them is left here. It takes back a host that is not to move any more.
func (r *Replica) give(ctx context.Context, targets map[string]shard.Move, seen snapshot, now time.Time) (next time.Time) {
	var look []string
	r.mu.Lock()
	for h, m := range targets {
		if r.held[h] && !r.given[h] {
			klog.FromContext(ctx).Info("Handing over the host", "host", h, "to", m.To, "reason", m.Reason)
			r.given[h] = true
			look = append(look, h)
		}
	}
	for h := range r.given {
		if _, ok := targets[h]; !ok && !r.writing[h].underWay(version(seen.leases[leaseName(h)]), now) {
			klog.FromContext(ctx).Info("Keeping the host after all", "host", h)
			delete(r.given, h)
			look = append(look, h)
		}
	}
	if len(look) > 0 {
		r.pass()
	}
	given := slices.Collect(maps.Keys(r.given))
	r.mu.Unlock()
	for _, h := range look {
		r.objects.Look(h)
	}
	for _, h := range given {
		m, ok := targets[h]
		switch {
		case !ok: // its Lease is being written
		case r.cfg.Managed(h) || r.objects.At(h):
			next = sooner(next, now.Add(lookAgain))
		default:
			next = sooner(next, r.write(ctx, m, seen.leases[leaseName(h)], now))
		}
	}
	return next
}

func same(a, b []shard.Replica) bool {
	byName := func(a, b shard.Replica) int { return cmp.Compare(a.Name, b.Name) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), byName), slices.SortedFunc(slices.Values(b), byName))
}

// sooner returns the earlier of two times, where zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
