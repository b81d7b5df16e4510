package local

import (
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/hosttest"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestOpenFiles: Sample counts the open files of processes; what it cannot count is unknown.
func TestOpenFiles(t *testing.T) {
	base, check := hosttest.OpenFiles(t)
	h, err := New(Config{})
	testutil.Must(t, err)
	defer h.Close()
	h.(*Host).hier = machine.Hierarchies{Version: 2, V2: base, All: []string{base}}
	got, err := h.Sample(t.Context(), host.SampleRequest{Trees: []string{"/kubepods"}, Detail: true, OpenFiles: true})
	testutil.Must(t, err)
	check(t, got)
}

// BenchmarkOpenFiles measures what counting open files adds to a sample.
func BenchmarkOpenFiles(b *testing.B) {
	hosttest.BenchmarkOpenFiles(b, func(b *testing.B, base string, r host.SampleRequest) func() error {
		h, err := New(Config{})
		testutil.Must(b, err)
		b.Cleanup(func() { h.Close() })
		h.(*Host).hier = machine.Hierarchies{Version: 2, V2: base, All: []string{base}}
		return func() error { _, err := h.Sample(b.Context(), r); return err }
	})
}
