// Package http demonstrates what virtual-kubelet's HTTP handlers and its nodeutil do that
// provider/api does not. It is a separate Go module, because those packages need modules that
// Bowline's own build does not.
package http
