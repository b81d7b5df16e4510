package api

import (
	"slices"
	"sync"
)

// Strangers bounds what callers without an authorized request so far cost a process, at all the
// nodes that share it. One node's own bounds do not suffice: two hundred nodes would take two
// hundred times as much.
//
// It takes from the node that has the most: no caller of another node is disconnected while that
// node has less than an equal share, of 512 connections and 1.25 MiB between 200 nodes: 2
// connections and 6 KiB. So a flood of one node costs callers of the others nothing. Below that, it
// takes from the address that has the most at this node and, if they are equal, in the process. So a
// flood of all nodes from a few addresses costs callers from others nothing, such as the API server,
// whose connection is a stranger until its first request has been authorized.
//
// What a disconnected stranger has sent takes memory until the server has ended its requests, which
// may be late if CPU time is short. Strangers wait for that before they send more.
type Strangers struct {
	most, mostSent, mostEnding int

	mu      sync.Mutex
	ended   *sync.Cond          // ending has decreased, or a stranger was disconnected
	nodes   map[*conns]struct{} // with strangers
	strange int
	sent    int            // bytes that strangers have sent, with what counts as that
	ending  int            // the same of those that are disconnected, but not ended
	from    map[string]int // strangers by IP
	taken   int            // strangers so far
}

// What strangers may cost a process: up to 24 bytes of memory for each byte that counts as sent, so
// 36 MiB in all, and less than 64 MiB in the moments when connections begin and end.
// TestStrangersOfAProcessAreBounded measures it.
const (
	processStrangers = 512
	processSent      = 1280 << 10
	processEnding    = 256 << 10
	// connectionCost and requestCost count as sent for each connection and for each request whose
	// header is complete. A connection takes 10 KiB before it has sent anything, and a request that
	// is being authenticated takes 10 KiB beside its header. A byte of HTTP/2 counts twice.
	connectionCost = 512
	requestCost    = 1 << 10
)

// NewStrangers returns the bound of a process, for the Config of each of its nodes.
func NewStrangers() *Strangers {
	s := &Strangers{most: processStrangers, mostSent: processSent, mostEnding: processEnding, nodes: map[*conns]struct{}{}, from: map[string]int{}}
	s.ended = sync.NewCond(&s.mu)
	return s
}

// add counts a new stranger. The caller holds s.mu.
func (s *Strangers) add(c *caller) {
	l := c.of
	s.nodes[l] = struct{}{}
	s.taken++
	c.number = s.taken
	s.strange++
	l.strange++
	s.from[c.from]++
	l.strangers[c.from] = append(l.strangers[c.from], c)
	s.charge(c, connectionCost)
}

// charge counts n as sent by the stranger c. The caller holds s.mu.
func (s *Strangers) charge(c *caller, n int) {
	c.sent += n
	c.of.sent += n
	s.sent += n
}

// excess removes the strangers that have sent too much, at l or in the process, and returns them to
// be disconnected. The caller holds s.mu.
func (s *Strangers) excess(l *conns) (over []*caller) {
	for l.sent > l.bounds.sent {
		over = append(over, s.remove(s.heaviest(l)))
	}
	for s.sent > s.mostSent {
		over = append(over, s.remove(s.heaviest(nil)))
	}
	return over
}

// wait waits until little of disconnected strangers is left, or c is disconnected or known. The
// caller holds s.mu.
func (s *Strangers) wait(c *caller) {
	for s.ending > s.mostEnding && !c.known {
		s.ended.Wait()
	}
}

// remove frees the place of the stranger c, whose requests end. The caller holds s.mu, and
// disconnects c.
func (s *Strangers) remove(c *caller) *caller {
	s.forget(c)
	c.of.open--
	c.closed = true
	c.ending = c.sent
	s.ending += c.ending
	c.cancel()
	s.ended.Broadcast()
	return c
}

// end counts c as ended if the server has closed it and none of its requests is left. The caller
// holds s.mu.
func (s *Strangers) end(c *caller) {
	if c.left && c.requests == 0 && c.ending > 0 {
		s.ending -= c.ending
		c.ending = 0
		s.ended.Broadcast()
	}
}

// forget makes c known. The caller holds s.mu.
func (s *Strangers) forget(c *caller) {
	if c.known {
		return
	}
	c.known = true
	c.through.Store(true)
	c.timer.Stop()
	l := c.of
	s.strange--
	l.strange--
	s.sent -= c.sent
	l.sent -= c.sent
	if s.from[c.from]--; s.from[c.from] == 0 {
		delete(s.from, c.from)
	}
	l.strangers[c.from] = slices.DeleteFunc(l.strangers[c.from], func(other *caller) bool { return other == c })
	if len(l.strangers[c.from]) == 0 {
		delete(l.strangers, c.from)
	}
	if l.strange == 0 {
		delete(s.nodes, l)
	}
}

// oldest is the oldest stranger of the address with the most of them, at the node with the most of
// them, or at the node only if that is not nil. The caller holds s.mu.
func (s *Strangers) oldest(only *conns) *caller {
	return s.worst(only, func(l *conns, of []*caller) (*caller, []int) {
		return of[0], []int{l.strange, len(of), s.from[of[0].from], -of[0].number}
	})
}

// heaviest is the stranger that has sent the most, of the address that has, at the node that has,
// or at the node only if that is not nil. The caller holds s.mu.
func (s *Strangers) heaviest(only *conns) *caller {
	return s.worst(only, func(l *conns, of []*caller) (*caller, []int) {
		sum, most := 0, of[0]
		for _, c := range of {
			if sum += c.sent; c.sent > most.sent {
				most = c
			}
		}
		return most, []int{l.sent, sum, most.sent, -most.number}
	})
}

// worst is the stranger with the greatest rank, of the one that rank chooses for each address at
// each node.
func (s *Strangers) worst(only *conns, rank func(l *conns, of []*caller) (*caller, []int)) (worst *caller) {
	var greatest []int
	for l := range s.nodes {
		if only != nil && l != only {
			continue
		}
		for _, of := range l.strangers {
			if c, r := rank(l, of); slices.Compare(r, greatest) > 0 {
				worst, greatest = c, r
			}
		}
	}
	return worst
}
