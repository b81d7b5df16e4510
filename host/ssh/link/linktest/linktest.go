// Package linktest runs a link to an sshd of a test.
package linktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Run runs a link to s until the test ends. c needs no target; a login may take a minute, because
// the machine may be busy.
func Run(t testing.TB, s *sshtest.Server, c link.Config) *link.Link {
	t.Helper()
	var err error
	c.Target, err = endpoint.Resolve(s.URL("/run/no.sock"), s.Options())
	testutil.Must(t, err)
	c.Wait = time.Minute
	l, err := link.New(c)
	testutil.Must(t, err)
	stop := testutil.Go(context.Background(), l.Run)
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), stop()); err != nil {
			t.Error(err)
		}
	})
	return l
}
