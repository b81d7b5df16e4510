// Package notify has the signal that wakes a goroutine.
package notify

// Signal wakes the goroutine that receives from it. Make it with a buffer of one: signals that are
// sent before it receives are one.
type Signal chan struct{}

// Send sends the signal; it never blocks.
func (n Signal) Send() {
	select {
	case n <- struct{}{}:
	default:
	}
}
