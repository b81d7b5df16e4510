package local

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Watch reports each kind of change, a directory that is created later, and a file through its
// parent directory.
func TestWatch(t *testing.T) {
	t.Parallel()
	write := func(name string) func(dir string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600) }
	}
	for what, tc := range map[string]struct {
		path    string // below the directory
		prepare func(dir string) error
		act     func(dir string) error
	}{
		"written": {"", nil, write("a")},
		"renamed": {"", write("a"), func(dir string) error { return os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "b")) }},
		"removed": {"", write("a"), func(dir string) error { return os.Remove(filepath.Join(dir, "a")) }},
		"one file": {"a", write("a"), func(dir string) error {
			if err := write("b")(dir); err != nil {
				return err
			}
			return os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "a"))
		}},
		"comes to be": {"d", nil, func(dir string) error { return os.Mkdir(filepath.Join(dir, "d"), 0o700) }},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if tc.prepare != nil {
				testutil.Must(t, tc.prepare(dir))
			}
			path := filepath.Join(dir, tc.path)
			hints := watching(t, path)
			await(t, hints, "the watch begins")
			drain(hints)
			testutil.Must(t, tc.act(dir))
			await(t, hints, what)
			if tc.path != "d" {
				return
			}
			// Once the new directory itself is watched, changes in it are reported too.
			for late := time.After(time.Minute); ; {
				drain(hints)
				testutil.Must(t, write("in")(path))
				select {
				case <-hints:
					return
				case <-late:
					t.Fatal("what is in it is not reported")
				case <-time.After(100 * time.Millisecond): // the watch was moved while we wrote
				}
			}
		})
	}
}

func watching(t *testing.T, path string) chan struct{} {
	ctx, cancel := context.WithCancel(context.Background())
	hints, done := make(chan struct{}, 1), make(chan error)
	go func() {
		done <- Watch(ctx, path, func() {
			select {
			case hints <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return hints
}

func drain(hints chan struct{}) {
	select {
	case <-hints:
	default:
	}
}

func await(t *testing.T, hints chan struct{}, what string) {
	t.Helper()
	testutil.Receive(t, hints, time.Minute, what+": no one tells")
}
