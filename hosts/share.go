package hosts

import (
	"context"

	"k8s.io/klog/v2"
)

// counts calls Shard.Hosts with the current names at each signal.
func (s *Source) counts(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.names:
			s.cfg.Shard.Hosts(s.hosts.GetStore().ListKeys())
		}
	}
}

// Look enqueues a Host, because it may now belong to this process, or to another.
func (s *Source) Look(name string) { s.queue.Add(name) }

// At reports whether this process may still be working on a Host. A Host that the Shard no longer
// holds is let go at the next look.
func (s *Source) At(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[name]
}

// enter reports whether a Host is ours to reconcile. It records the Host before it asks the Shard.
// So once the Shard has changed its answer, a caller for whom At is false knows that no work is in
// progress.
func (s *Source) enter(name string) bool {
	if s.cfg.Shard == nil {
		return true
	}
	s.mu.Lock()
	s.at[name] = true
	s.mu.Unlock()
	return s.cfg.Shard.Holds(name)
}

// leave lets go of a Host that belongs to another replica: this process stops managing it and
// writes no status. A running release is cancelled; the other replica continues it.
func (s *Source) leave(ctx context.Context, name string) {
	s.unwant(name)
	s.secrets.follow(name, "")
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reports, name)
	delete(s.written, name)
	if r := s.releases[name]; r != nil && r.running {
		klog.FromContext(ctx).Info("Handed the removal to another replica")
		r.cancel()
		return // when the release ends, the Host is enqueued again
	}
	delete(s.releases, name)
	delete(s.at, name)
}
