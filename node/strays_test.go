package node

import (
	"context"
	"errors"
	"io/fs"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/shims"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/notify"
)

// looked is a host that counts the looks at its shims.
type looked struct {
	shims.Machine
	shims.Runtime
	looks int
	err   error
}

func (l *looked) List(_ context.Context, dir string) ([]host.FileInfo, error) {
	if dir == shims.SocketDir {
		l.looks++
	}
	return nil, l.err
}

func (l *looked) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return nil, nil
}

// Shims are checked after each signal, and again while that fails, but not forever.
func TestStrayShims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		m := &looked{err: fs.ErrNotExist}
		s := orphanedShims{notify.New(), &shims.Reaper{Machine: m, Runtime: m}}
		done := make(chan error)
		go func() { done <- s.run(ctx) }()
		check := func(what string, want int) {
			t.Helper()
			time.Sleep(time.Hour)
			synctest.Wait()
			if m.looks != want {
				t.Errorf("%s: %d looks, want %d", what, m.looks, want)
			}
			m.looks = 0
		}
		check("before a word", 0)
		s.due.Send()
		check("after a word", 1)
		m.err = errors.New("not now")
		s.due.Send()
		check("while it fails", orphanLooks)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
