package provider

import (
	"sync"
	"time"
)

// Startup are the times of a node that this process has registered for the first time.
type Startup struct {
	// Asked is when the registration began, Registered when the API server had the node, and Ready
	// when the node was ready then.
	Asked, Registered, Ready time.Time
}

// startup collects a Startup. It reports nothing for a node that existed before.
type startup struct {
	report func(Startup) // nil: no one needs it

	mu       sync.Mutex
	times    Startup
	existed  bool
	isReady  bool
	reported bool
}

// asked notes the first attempt to register.
func (s *startup) asked(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.times.Asked.IsZero() {
		s.times.Asked = now
	}
}

// found notes that the API server has the node.
func (s *startup) found() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.existed = s.existed || s.times.Registered.IsZero()
}

// created notes that the node was registered.
func (s *startup) created(now time.Time) {
	s.update(now, func() {
		if s.times.Registered.IsZero() {
			s.times.Registered = now
		}
	})
}

// ready notes whether the node is ready.
func (s *startup) ready(now time.Time, is bool) { s.update(now, func() { s.isReady = is }) }

func (s *startup) update(now time.Time, change func()) {
	s.mu.Lock()
	change()
	due := s.report != nil && !s.reported && !s.existed && s.isReady && !s.times.Asked.IsZero() && !s.times.Registered.IsZero()
	if due {
		s.reported, s.times.Ready = true, now
	}
	times := s.times
	s.mu.Unlock()
	if due {
		s.report(times)
	}
}
