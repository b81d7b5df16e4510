// Package http shows what virtual-kubelet's HTTP handlers and its nodeutil do that
// provider/api does not. It is a Go module of its own: those packages need modules
// that Bowline's own build does not.
package http
