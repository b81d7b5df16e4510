package hosts

import (
	"context"

	"k8s.io/klog/v2"
)

// count has the Shard told of the Hosts that there are.
func (s *Source) count() {
	select {
	case s.names <- struct{}{}:
	default:
	}
}

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

// Look has a Host looked at, as it may have become this process's, or another's.
func (s *Source) Look(name string) { s.queue.Add(name) }

// At tells whether something is or may be done about a Host. One that the Shard does
// not hold any more is let go of at the next look.
func (s *Source) At(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[name]
}

// enter says whether a Host is ours to see to. It is on record before the Shard is
// asked: who sees At deny it after the Shard's word has changed can rely on that.
func (s *Source) enter(name string) bool {
	if s.cfg.Shard == nil {
		return true
	}
	s.mu.Lock()
	s.at[name] = true
	s.mu.Unlock()
	return s.cfg.Shard.Holds(name)
}

// leave lets go of a Host that is another's: nothing of it is driven or told from here.
// What was begun on the machine is cut off, and gone on with by whose it is.
func (s *Source) leave(ctx context.Context, name string) {
	s.unwant(name)
	s.secrets.follow(name, "")
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reports, name)
	delete(s.written, name)
	if r := s.releases[name]; r != nil && r.running {
		klog.FromContext(ctx).Info("The machine is another's to empty; this is cut off")
		r.cancel()
		return // its end brings us back
	}
	delete(s.releases, name)
	delete(s.at, name)
}
