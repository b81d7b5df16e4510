package hosts

// Synced tells whether the Hosts that there are have been read, so that what is driven
// is all that there is to drive.
func (s *Source) Synced() bool { return s.hosts.HasSynced() }
