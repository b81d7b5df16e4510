package hosts

// Synced reports whether all Hosts have been listed. Before that, the wanted hosts are incomplete.
func (s *Source) Synced() bool { return s.hosts.HasSynced() }
