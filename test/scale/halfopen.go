package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/test/fakehosts"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// atOnce is the number of concurrent pod starts while starts are timed.
const atOnce = 4

// round holds the timed starts, with or without half-open hosts.
type round struct {
	silent int
	took   []time.Duration // sorted
}

// percentile returns the value of a sorted list with a share of 1-p above it.
func percentile(sorted []time.Duration, p float64) time.Duration {
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}

// compare times starts on hosts with good links, in turn while all links are good and while some
// other hosts swallow everything. It starts at the moment that these begin to swallow, so that the
// measurement includes the seconds before a dead link is detected.
func (c *rig) compare(ctx context.Context) error {
	machines := c.fakes.Machines[:c.managed]
	dead, good := machines[:c.silent], machines[c.silent:]
	for range 2 {
		if err := c.timed(ctx, good, 0); err != nil {
			return err
		}
		for _, m := range dead {
			m.Wire.Swallow()
		}
		err := c.timed(ctx, good, c.silent)
		for _, m := range dead {
			m.Wire.Restore()
		}
		if err != nil {
			return err
		}
		for _, m := range dead {
			if err := labtest.Until(ctx, patience, "the link to "+m.Name+" is up again", c.linkUp(m.Name)); err != nil {
				return err
			}
		}
		if err := pause(ctx, settleTime); err != nil {
			return err
		}
	}
	return nil
}

func (c *rig) linkUp(node string) func(context.Context) error {
	return func(ctx context.Context) error {
		n, err := c.fakes.Lab.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range n.Status.Conditions {
			if cond.Type == "LinkUp" && cond.Status == v1.ConditionTrue {
				return nil
			}
		}
		return errors.New("its node does not say so")
	}
}

// timed starts pods on the machines in turn, and deletes each when it is Ready.
func (c *rig) timed(ctx context.Context, machines []*fakehosts.Machine, silent int) error {
	r := round{silent: silent}
	var mu sync.Mutex
	var failed error
	next := make(chan int)
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for i := range next {
				took, err := c.one(ctx, fmt.Sprintf("timed-%d", i), machines[i%len(machines)].Name)
				mu.Lock()
				r.took = append(r.took, took)
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	for range c.starts {
		mu.Lock()
		stop := failed != nil
		mu.Unlock()
		if stop {
			break
		}
		next <- c.made
		c.made++
	}
	close(next)
	all.Wait()
	if failed != nil {
		return failed
	}
	slices.Sort(r.took)
	c.rounds = append(c.rounds, r)
	fmt.Fprintf(os.Stderr, "%d of %d hosts half-open: a pod's start on the others p50 %s p99 %s; load %s\n", silent, c.managed,
		percentile(r.took, 0.5).Round(time.Millisecond), percentile(r.took, 0.99).Round(time.Millisecond), labtest.Load())
	return nil
}

// one is the time from the request for a pod to the event that shows it Ready.
func (c *rig) one(ctx context.Context, name, node string) (time.Duration, error) {
	began := time.Now()
	if err := c.create(ctx, name, node); err != nil {
		return 0, err
	}
	at, err := c.watch.ready(ctx, name, patience)
	if err != nil {
		return 0, err
	}
	if err := c.fakes.Lab.Client.CoreV1().Pods(c.namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, err
	}
	return at.Sub(began), c.watch.left(ctx, name, patience)
}

// joined returns all starts of the rounds with, or without, half-open hosts.
func (c *rig) joined(silent bool) (all []time.Duration) {
	for _, r := range c.rounds {
		if (r.silent > 0) == silent {
			all = append(all, r.took...)
		}
	}
	slices.Sort(all)
	return all
}
