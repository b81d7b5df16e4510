package labtest

import (
	"math/rand/v2"
	"time"
)

// LinkFault is a way in which a link fails.
type LinkFault struct {
	Name string
	// Begin starts the fault; r picks how severe it is. Wire.Restore ends it.
	Begin func(w *Wire, r *rand.Rand)
	// Breaks is set if nothing gets through.
	Breaks bool
}

// LinkFaults lists all link faults.
var LinkFaults = []LinkFault{
	{"cut", func(w *Wire, _ *rand.Rand) { w.Cut() }, true},
	{"half open", func(w *Wire, _ *rand.Rand) { w.Swallow() }, true},
	{"corrupt", func(w *Wire, _ *rand.Rand) { w.Corrupt() }, true},
	{"throttle", func(w *Wire, r *rand.Rand) { w.Throttle(2000 + r.IntN(8000)) }, false},
	{"delay", func(w *Wire, r *rand.Rand) { w.Delay(time.Duration(200+r.IntN(600)) * time.Millisecond) }, false},
}

// LinkFaultTime picks how long a link fails: for a moment, or for longer than the detection of a
// dead link takes.
func LinkFaultTime(r *rand.Rand) time.Duration {
	if r.IntN(2) == 0 {
		return time.Duration(300+r.IntN(2700)) * time.Millisecond
	}
	return time.Duration(10_000+r.IntN(6000)) * time.Millisecond
}
