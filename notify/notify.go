// Package notify has the signal that wakes a goroutine.
package notify

// Signal wakes the goroutine that receives from it. Signals that are sent before it receives are one.
type Signal chan struct{}

// New makes a Signal.
func New() Signal { return make(Signal, 1) }

// Send sends the signal; it never blocks.
func (n Signal) Send() {
	select {
	case n <- struct{}{}:
	default:
	}
}
