package main

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
)

// looked is a machine that counts how often its shims are looked at.
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

// Shims are looked at after each word, again while that fails, and not for ever.
func TestStrayShims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		m := &looked{err: fs.ErrNotExist}
		s := strayShims{make(nudge, 1), &shims.Reaper{Machine: m, Runtime: m}}
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
		s.due.poke()
		check("after a word", 1)
		m.err = errors.New("not now")
		s.due.poke()
		check("while it fails", strayLooks)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
