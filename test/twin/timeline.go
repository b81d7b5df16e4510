package twin

import (
	"fmt"
	"time"
)

// Timeline is a recording without what differs from node to node.
type Timeline struct {
	Scenario string
	Tracks   map[string][]Value     // by name
	Events   map[string][]EventLine // by the field path of their object; "" is the pod
	Lives    map[string][]Life      // by container
	Settled  map[string]string      // the last status before the deletion, by field
	Last     map[string]string      // the last status of all, by field
	Moments  []Moment               // in the order of their times
	Ending   time.Duration          // from the request to delete the pod until it was gone; 0: it was not deleted
}

// Value is one value of a track.
type Value struct {
	Text   string
	Kind   string        // what a neighbour must share for the value to be passing; see passing
	Lasted time.Duration // until the next value
}

// EventLine is one event in its last state.
type EventLine struct {
	Text  string // type, reason, reporter, message
	Cause string // the reason alone
	Count int32
}

// Life is the life of a container, from one start to its end. A running container's current life is
// not included.
type Life struct {
	End    string        // how it ended
	Ran    time.Duration // whole seconds
	Waited time.Duration // since the end of the previous one; 0 for the first
}

// Moment is a start or an end of a container's life, as the runtime reported it.
type Moment struct {
	What string
	At   time.Time // to the second
}

// Difference is a difference between two timelines of a scenario.
type Difference struct {
	Scenario string `json:"scenario"`
	Where    string `json:"where"` // a track, a field, the events of a part, …
	Kubelet  string `json:"kubelet"`
	Other    string `json:"other"` // Bowline's, or the other kubelet's
}

func (d Difference) String() string {
	return fmt.Sprintf("%s: %s:\n\tkubelet: %s\n\tother:   %s", d.Scenario, d.Where, d.Kubelet, d.Other)
}
