// Package dnscache answers the DNS questions of pods from a cache, as NodeLocal DNSCache does on the nodes of a
// cluster. A name of the Internet costs a pod up to ten questions in turn (ndots:5), each of which takes a
// round trip of the link. While the upstream is silent, answers that have expired are served (RFC 8767).
package dnscache

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/bowline-k8s/bowline/lifeline/wire"
)

const (
	maxAnswers = 4096     // that are kept
	maxBytes   = 8 << 20  // of all answers that are kept
	maxAsked   = 1024     // questions that wait for the upstream; for one more the answer is a failure
	MaxMessage = 64 << 10 // bytes of a message, which a limit never exceeds

	askTimeout = 5 * time.Second // of a question to the upstream
	// patience is how long a client waits for the upstream while there is a stale answer. Resolvers ask again
	// after 2.5 s (musl) or 5 s (glibc).
	patience = time.Second
)

// Config says where questions go.
type Config struct {
	// Ask asks the upstream. The flow is that of the client whose question it is. Before it sends the query, it
	// may set the query's ID, which is 0; the answer may have any ID.
	Ask func(ctx context.Context, asked wire.Flow, query []byte) (answer []byte, err error)
	// Stale is how long an answer that has expired is served while the upstream does not answer.
	Stale time.Duration
}

// Cache answers questions. Its methods may be called at the same time.
type Cache struct {
	cfg    Config
	starts chan *flight

	mu      sync.Mutex
	answers map[key]*list.Element // of recent
	recent  *list.List            // of *entry, the one that was used last first
	bytes   int
	flights map[key]*flight
	silent  bool // the upstream has left a question unanswered since its last answer
	hits    uint64
	misses  uint64
}

// entry is an answer that is kept.
type entry struct {
	key     key
	answer  answer
	arrived time.Time
}

// flight is a question to the upstream, for all who ask the same.
type flight struct {
	key    key
	name   dnsmessage.Name
	asked  wire.Flow
	done   chan struct{}
	answer answer // once done is closed, and err is nil
	err    error
}

// New makes a cache. It asks the upstream while Run runs.
func New(cfg Config) *Cache {
	return &Cache{
		cfg: cfg, starts: make(chan *flight), flights: map[key]*flight{},
		answers: map[key]*list.Element{}, recent: list.New(),
	}
}

// Run asks the upstream until ctx ends, and returns when no question waits for an answer.
func (c *Cache) Run(ctx context.Context) error {
	var flights sync.WaitGroup
	defer flights.Wait()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case f := <-c.starts:
			flights.Go(func() { c.fly(ctx, f) })
		}
	}
}

// Counts returns how many questions were answered from the cache, and how many were not, since New.
func (c *Cache) Counts() (hits, misses uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hits, c.misses
}

// Answer returns the answer to a query, in at most limit bytes; by UDP the client's own limit counts as well.
// Where no answer can be had, the answer says so (SERVFAIL). It fails if msg is no query, and when ctx ends.
func (c *Cache) Answer(ctx context.Context, asked wire.Flow, msg []byte, limit int) ([]byte, error) {
	q, rcode, err := parseQuery(msg)
	if err != nil {
		return nil, err
	}
	if rcode != dnsmessage.RCodeSuccess {
		return q.failure(rcode)
	}
	if asked.Protocol == wire.UDP {
		limit = min(limit, q.size)
	}
	old, f, first, silent := c.look(q, asked)
	if f == nil && old == nil {
		return q.failure(dnsmessage.RCodeServerFailure)
	}
	if first {
		if err := c.start(ctx, f); err != nil {
			return nil, err
		}
	}
	if f == nil || old != nil && silent {
		return old.serve(q, limit)
	}
	var late <-chan time.Time
	if old != nil {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-f.done:
	case <-late:
		c.noteSilence()
		return old.serve(q, limit)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	switch {
	case f.err == nil:
		return f.answer.reply(q, 0, false, limit)
	case old != nil:
		return old.serve(q, limit)
	}
	return q.failure(dnsmessage.RCodeServerFailure)
}

// look returns the answer for q that is kept, unless it is too old, and the question to the upstream unless
// that answer has not expired. first: the caller starts that question. Both are nil if too many wait.
func (c *Cache) look(q query, asked wire.Flow) (old *entry, f *flight, first, silent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if element, ok := c.answers[q.key]; ok {
		e := element.Value.(*entry)
		switch age := time.Since(e.arrived); {
		case age < e.answer.ttl:
			c.recent.MoveToFront(element)
			c.hits++
			return e, nil, false, false
		case age < e.answer.ttl+c.cfg.Stale:
			old = e
		default:
			c.drop(element)
		}
	}
	c.misses++
	f, waits := c.flights[q.key]
	if !waits && len(c.flights) < maxAsked {
		f, first = &flight{key: q.key, name: q.name, asked: asked, done: make(chan struct{})}, true
		c.flights[q.key] = f
	}
	return old, f, first, c.silent
}

// start hands a question to Run.
func (c *Cache) start(ctx context.Context, f *flight) error {
	select {
	case c.starts <- f:
		return nil
	case <-ctx.Done():
		c.land(f, answer{}, fmt.Errorf("ask for %q: %w", f.key.name, ctx.Err()))
		return ctx.Err()
	}
}

// fly asks the upstream.
func (c *Cache) fly(ctx context.Context, f *flight) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	msg, err := f.key.message(f.name)
	if err != nil {
		c.land(f, answer{}, err)
		return
	}
	got, err := c.cfg.Ask(ctx, f.asked, msg)
	if err != nil {
		c.land(f, answer{}, err)
		return
	}
	a, err := parseAnswer(f.key, got)
	c.land(f, a, err)
}

// land notes how a question ended, and wakes those who wait for it.
func (c *Cache) land(f *flight, a answer, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flights, f.key)
	f.answer, f.err = a, err
	close(f.done)
	c.silent = errors.Is(err, context.DeadlineExceeded) || c.silent && err != nil
	if err == nil && a.keep {
		c.keep(&entry{key: f.key, answer: a, arrived: time.Now()})
	}
}

func (c *Cache) noteSilence() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = true
}

// keep needs the lock.
func (c *Cache) keep(e *entry) {
	if old, ok := c.answers[e.key]; ok {
		c.drop(old)
	}
	c.answers[e.key] = c.recent.PushFront(e)
	c.bytes += e.size()
	for c.recent.Len() > maxAnswers || c.bytes > maxBytes {
		c.drop(c.recent.Back())
	}
}

// drop needs the lock.
func (c *Cache) drop(element *list.Element) {
	e := c.recent.Remove(element).(*entry)
	delete(c.answers, e.key)
	c.bytes -= e.size()
}

func (e *entry) size() int { return len(e.answer.packed) + len(e.key.name) }

// serve answers q with what is kept, as of now.
func (e *entry) serve(q query, limit int) ([]byte, error) {
	age := time.Since(e.arrived)
	return e.answer.reply(q, age, age >= e.answer.ttl, limit)
}
