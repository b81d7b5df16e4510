package hosts

import (
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/config"
)

// Report is what a driver says of its host. Of a driver that has no node yet, Config
// and Err alone are set.
type Report struct {
	// Config is the host as it is driven: a report of a driver that was begun before the
	// Host was changed is known by it.
	Config *config.Host
	// Err is why the last try to drive it ended; nil while it is driven.
	Err error
	// Quarantined is until when the host is not tried again, as it cost too much; zero
	// where it is not so.
	Quarantined time.Time

	// NodeName is the node that is driven; empty before the machine was held.
	NodeName string
	// Link to a far machine; nil where there is none.
	Link *Link
	// Exposed tells whether the machine listens for the node's API, as kubeletExposure
	// host has it; nil where it is not to, or not known yet.
	Exposed *Exposed
	// RuntimeName and RuntimeVersion are the CRI's own words.
	RuntimeName, RuntimeVersion string
	// Pods that are held on the machine.
	Pods int
	// Ready, Reason and Message are the node's condition Ready as it is written.
	Ready           bool
	Reason, Message string
}

// Link is the link to a far machine.
type Link struct {
	Up      bool
	Message string
	// RTT is the round trip of the last keepalive; 0 before the first.
	RTT time.Duration
}

// Exposed is the node's condition KubeletExposed.
type Exposed struct {
	Status          metav1.ConditionStatus
	Reason, Message string
}

// Report takes what a driver says of the host called name; of one that is not wanted any
// more it is not heard. It returns at once.
func (s *Source) Report(name string, r Report) {
	s.mu.Lock()
	before, known := s.reports[name]
	wanted := s.wanted[name] != nil
	if wanted {
		s.reports[name] = r
	}
	s.mu.Unlock()
	if wanted && (!known || !reflect.DeepEqual(before, r)) {
		s.queue.Add(name)
	}
}

// coarse is the round trip as it is told: 1, 2 or 5 of a power of ten, and the same as
// before while the measured one is between half of it and its double. So a link that
// is as it was writes nothing.
func coarse(before string, rtt time.Duration) string {
	if rtt <= 0 {
		return before
	}
	if told, err := time.ParseDuration(before); err == nil && told > 0 && rtt >= told/2 && rtt <= 2*told {
		return before
	}
	for step := time.Millisecond; ; step *= 10 {
		// Each up to the middle between it and the next, as ratios go.
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
