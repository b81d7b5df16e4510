package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// The guard removes a lab whose maker was killed, and leaves the lab alone if its maker removed it
// itself.
func TestGuard(t *testing.T) {
	if dir := os.Getenv("BOWLINE_GUARDED"); dir != "" {
		g, err := newGuard(dir)
		testutil.Must(t, err)
		if os.Getenv("BOWLINE_GUARD_ENDS") == "dismissed" {
			g.dismiss()
			return
		}
		p, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = p.Kill()
		}
		t.Fatal(err)
	}
	for how, want := range map[string]bool{"killed": true, "dismissed": false} {
		cache := t.TempDir()
		testutil.Must(t, os.Mkdir(filepath.Join(cache, "bin"), 0o755))
		// In place of bowline-lab: it writes down its arguments, and removes the lab.
		testutil.Must(t, os.WriteFile(filepath.Join(cache, "bin/bowline-lab"), []byte("#!/bin/sh\ncd \"$2/../..\" && echo \"$@\" >asked.new && rmdir \"$2\" && mv asked.new asked\n"), 0o755))
		around := t.TempDir()
		dir := filepath.Join(around, "bowline-guarded", "lab")
		testutil.Must(t, os.MkdirAll(dir, 0o755))
		cmd := exec.Command(os.Args[0], "-test.run", "^TestGuard$")
		cmd.Env = append(os.Environ(), "BOWLINE_CACHE="+cache, "BOWLINE_GUARDED="+dir, "BOWLINE_GUARD_ENDS="+how)
		if out, err := cmd.CombinedOutput(); (err == nil) == want {
			t.Fatalf("%s: %v\n%s", how, err, out)
		}
		asked := func(context.Context) error {
			data, err := os.ReadFile(filepath.Join(around, "asked"))
			if err == nil && string(data) != "--dir "+dir+" down\n" {
				err = errors.New("it was asked " + string(data))
			}
			return err
		}
		if want {
			if err := Until(t.Context(), 30*time.Second, "the lab is taken down", asked); err != nil {
				t.Error(err)
			}
			if err := Until(t.Context(), 30*time.Second, "the test's directory goes", func(context.Context) error {
				if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, os.ErrNotExist) {
					return fmt.Errorf("it is there: %v", err)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		} else if err := Holds(t.Context(), time.Second, "the lab stays", func(ctx context.Context) error {
			if asked(ctx) == nil {
				return errors.New("it was taken down")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}
