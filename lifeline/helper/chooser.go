package helper

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

// maxAffinities is the most sources whose backends are remembered.
const maxAffinities = 8192

// chooser chooses backends of Services: in turn, or the one that the source had before. Its methods may be
// called at the same time.
type chooser struct {
	mu   sync.Mutex
	kept map[client]choice
}

// client is a source of flows to a Service. With sessionAffinity ClientIP, all its flows have one backend.
type client struct {
	service address
	source  netip.Addr
}

type choice struct {
	backend netip.AddrPort
	until   time.Time
}

// order returns the backends in the order in which they are tried.
func (c *chooser) order(s *target, source netip.Addr, now time.Time) []netip.AddrPort {
	turn := int(s.turn.Add(1)-1) % len(s.Backends)
	all := slices.Concat(s.Backends[turn:], s.Backends[:turn])
	if s.Affinity == 0 {
		return all
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before, ok := c.kept[client{address{s.Protocol, s.Address}, source}]
	if i := slices.Index(all, before.backend); ok && i > 0 && now.Before(before.until) {
		all = slices.Insert(slices.Delete(all, i, i+1), 0, before.backend)
	}
	return all
}

// keep remembers the backend of a source, from now on for the time of the Service.
func (c *chooser) keep(s *target, source netip.Addr, backend netip.AddrPort, now time.Time) {
	if s.Affinity == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := client{address{s.Protocol, s.Address}, source}
	if _, known := c.kept[key]; !known && len(c.kept) >= maxAffinities {
		c.makeRoom(now)
	}
	if c.kept == nil {
		c.kept = map[client]choice{}
	}
	c.kept[key] = choice{backend, now.Add(s.Affinity)}
}

// makeRoom needs the lock. It drops what has expired, or the first that it finds.
func (c *chooser) makeRoom(now time.Time) {
	for key, kept := range c.kept {
		if !now.Before(kept.until) {
			delete(c.kept, key)
		}
	}
	for key := range c.kept {
		if len(c.kept) < maxAffinities {
			return
		}
		delete(c.kept, key)
	}
}
