package store

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/linkpull/oci"
)

// errStalled means that containerd did not acknowledge for ackTime.
var errStalled = errors.New("containerd stopped acknowledging")

// tries is how often a call, or an upload without progress, is attempted.
const (
	tries    = 6
	maxPause = 4 * time.Second
)

// temporary reports whether the same call may succeed soon: the runtime did not answer, the reference of an
// ingest is still locked by a stream that was cut, or the source says so.
func temporary(err error) bool {
	var source interface{ Temporary() bool }
	var exceeded *budget.ExceededError
	switch {
	case err == nil, errors.As(err, &exceeded), errors.Is(err, budget.ErrPanicked):
		return false
	case errors.As(err, &source):
		return source.Temporary()
	case errors.Is(err, errStalled), errors.Is(err, io.EOF), cri.IsTransport(err):
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.Aborted:
		return true
	}
	return false
}

// transport gives an error of a stream the type that those of other calls have, if containerd did not answer.
func transport(d oci.Digest, err error) error {
	var source interface{ Temporary() bool }
	if !temporary(err) || errors.As(err, &source) || cri.IsTransport(err) {
		return err
	}
	return &cri.Error{Method: "ContainerdWriteContent", Object: string(d), Kind: cri.KindTransport, Err: err}
}

func isNotFound(err error) bool { return status.Code(err) == codes.NotFound }

func isExists(err error) bool { return status.Code(err) == codes.AlreadyExists }

// retry calls do until it succeeds, fails for good, or has failed too often.
func (s *Store) retry(ctx context.Context, do func() error) error {
	pause := pause{next: s.config.Pause}
	for {
		err := do()
		if err == nil || !temporary(err) || !pause.wait(ctx) {
			return err
		}
	}
}

// pause counts failures in a row, and waits between them.
type pause struct {
	next   time.Duration
	failed int
}

// wait reports whether there is another attempt, after the pause.
func (p *pause) wait(ctx context.Context) bool {
	if p.failed++; p.failed == tries || ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(p.next)
	defer timer.Stop()
	p.next = min(2*p.next, maxPause)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
