package main

// nudge has room for one word that something is to be done.
type nudge chan struct{}

func (n nudge) poke() {
	select {
	case n <- struct{}{}:
	default:
	}
}
