package ssh

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestManyDisks: a host with a thousand block devices is sampled, and is not hostile.
func TestManyDisks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "diskstats")
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, " 253 %7d dm-%d 1234567 890123 45678901 2345678 9012345 678901 2345678 9012345 0 678901 2345678\n", i, i)
	}
	testutil.Must(t, os.WriteFile(file, []byte(b.String()), 0o644))
	text := scriptSample
	defer func() { scriptSample = text }()
	scriptSample = strings.Replace(text, "host=$1", `host=$(printf %s "$1" | sed "s|/proc/diskstats|`+file+`|")`, 1)
	for name, config := range shellsHere(t) {
		t.Run(name, func(t *testing.T) {
			account := budget.New(budget.Limits{})
			config.Name, config.RootDir, config.Transport, config.Budget = "remote.example", t.TempDir(), &shtest.Transport{}, account
			h, err := New(context.Background(), config)
			testutil.Must(t, err)
			defer h.Close()
			got, err := h.Sample(t.Context(), host.SampleRequest{Detail: true})
			if err != nil || len(got.Disks) != 256 || got.Disks[255].Name != "dm-255" {
				t.Fatalf("%d disks, %v", len(got.Disks), err)
			}
		})
	}
}
