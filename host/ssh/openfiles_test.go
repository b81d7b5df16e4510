package ssh

import (
	"context"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/hosttest"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestOpenFiles: in every shell, Sample counts the open files of processes, whatever their names are.
// What it cannot count is unknown.
func TestOpenFiles(t *testing.T) {
	base, check := hosttest.OpenFiles(t)
	for name, config := range shellsHere(t) {
		t.Run(name, func(t *testing.T) {
			config.Name, config.RootDir, config.Transport = "remote.example", t.TempDir(), &shtest.Transport{}
			h, err := New(context.Background(), config)
			testutil.Must(t, err)
			defer h.Close()
			found := *h.machine()
			found.hier = machine.Hierarchies{Version: 2, V2: base, All: []string{base}}
			h.found.Store(&found)
			got, err := h.Sample(t.Context(), host.SampleRequest{Trees: []string{"/kubepods"}, Detail: true, OpenFiles: true})
			testutil.Must(t, err)
			check(t, got)
		})
	}
}

// BenchmarkOpenFiles measures what counting open files adds to a sample: of 30 containers with a process
// each, and of one with 500.
func BenchmarkOpenFiles(b *testing.B) {
	hosttest.BenchmarkOpenFiles(b, func(b *testing.B, base string, r host.SampleRequest) func() error {
		h, err := New(context.Background(), Config{Name: "remote.example", RootDir: b.TempDir(), Transport: &shtest.Transport{}})
		testutil.Must(b, err)
		b.Cleanup(func() { h.Close() })
		found := *h.machine()
		found.hier = machine.Hierarchies{Version: 2, V2: base, All: []string{base}}
		h.found.Store(&found)
		return func() error { _, err := h.Sample(context.Background(), r); return err }
	})
}
