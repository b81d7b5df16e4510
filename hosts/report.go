package hosts

import (
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/config"
)

// Report is what a driver says of its host. Until the driver has a node, only Config and Err are
// set.
type Report struct {
	// Config that the driver runs with. It tells a report that predates a change of the Host from a
	// later one.
	Config *config.Host
	// Err is why the last attempt to manage the host ended; nil while it is managed.
	Err error
	// Quarantined is the time until which the host is not tried again, because it exceeded a
	// budget; otherwise zero.
	Quarantined time.Time

	// NodeName of the managed node; empty until the driver holds the machine's lock.
	NodeName string
	// Link to a remote host; nil for a local one.
	Link *Link
	// Unlocked means that the lock of the host was lost, and is not held again yet.
	Unlocked bool
	// Exposed tells whether the machine listens for the node's API (kubeletExposure: host); nil if
	// it is not configured to, or not known yet.
	Exposed *Exposed
	// RuntimeName and RuntimeVersion as the CRI reports them.
	RuntimeName, RuntimeVersion string
	// Pods on the machine.
	Pods int
	// Ready, Reason and Message of the node's Ready condition as it is written.
	Ready           bool
	Reason, Message string
}

// Link is the state of the link to a remote host.
type Link struct {
	Up      bool
	Message string
	// RTT is the round-trip time of the last keepalive; 0 before the first.
	RTT time.Duration
}

// Exposed is the node's condition KubeletExposed.
type Exposed struct {
	Status          metav1.ConditionStatus
	Reason, Message string
}

// Report stores what a driver says of the host called name. It ignores reports on a host that is no
// longer wanted. It returns at once.
func (s *Source) Report(name string, r Report) {
	s.mu.Lock()
	before, known := s.reports[name]
	wanted := s.wanted[name] != nil
	if wanted {
		s.reports[name] = r
		if e := lockEvent(&before, &r); known && e != nil {
			s.pending[name] = append(s.pending[name], *e)
		}
	}
	s.mu.Unlock()
	if wanted && (!known || !reflect.DeepEqual(before, r)) {
		s.queue.Add(name)
	}
}

// coarse rounds a round-trip time to 1, 2 or 5 times a power of ten. It keeps the value before
// while the measured one is between half and double of it, so a steady link causes no writes.
func coarse(before string, rtt time.Duration) string {
	if rtt <= 0 {
		return before
	}
	if shown, err := time.ParseDuration(before); err == nil && shown > 0 && rtt >= shown/2 && rtt <= 2*shown {
		return before
	}
	for step := time.Millisecond; ; step *= 10 {
		// Each step covers the values up to the geometric middle between it and the next.
		switch {
		case rtt <= step*14/10:
			return step.String()
		case rtt <= step*32/10:
			return (2 * step).String()
		case rtt <= step*7:
			return (5 * step).String()
		}
	}
}
