package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	contentapi "github.com/containerd/containerd/api/services/content/v1"

	"github.com/bowline-k8s/bowline/linkpull/oci"
)

const (
	// window is how many messages may be without an acknowledgement: at a round trip of 50 ms, 8 MiB are
	// 160 MiB/s. What is not acknowledged is not kept here: after a cut it is read again from the source.
	window = 8
	// ackTime is how long containerd may take to write a message to its disk, or to commit a blob.
	ackTime = 5 * time.Minute
	// openTime is how long it may take to begin, which includes reading an ingest to hash it.
	openTime = 10 * time.Minute
)

// errDamaged means that the bytes which containerd had of a blob before the upload began are not the blob's.
var errDamaged = errors.New("the part that was written earlier is damaged")

// put writes one blob, with its labels.
func (s *Store) put(ctx context.Context, b blob, source Source, p *progress) error {
	unlock, err := s.uploads.lock(ctx, string(b.Digest))
	if err != nil {
		return err
	}
	defer unlock()
	if b.data != nil {
		source = Memory{b.Digest: b.data}
	}
	u := &upload{store: s, blob: b, ref: "bowline-" + string(b.Digest), source: source, progress: p}
	existed, err := u.run(ctx)
	if err != nil {
		return fmt.Errorf("write %s to containerd: %w", b.Digest, transport(b.Digest, err))
	}
	u.reach(b.Size)
	if existed && len(b.labels) > 0 {
		return s.label(ctx, b.Digest, b.labels)
	}
	return nil
}

// upload writes one blob, in one or more streams.
type upload struct {
	store    *Store
	blob     blob
	ref      string // of the ingest
	source   Source
	progress *progress

	// acked is the offset that containerd has acknowledged in the last stream. While a stream is open, it
	// belongs to the goroutine that receives.
	acked int64
	// marks are the hashes of the blob's first bytes at the last offsets where a message ended: after a cut,
	// containerd has everything up to one of them.
	marks []mark
}

type mark struct {
	offset int64
	sum    hash.Cloner
}

// run repeats streams until the blob is there. existed means that another writer committed it.
func (u *upload) run(ctx context.Context) (existed bool, err error) {
	wait, restarted := pause{next: u.store.config.Pause}, false
	for {
		before := u.acked
		err := u.stream(ctx)
		switch {
		case err == nil:
			return false, nil
		case isExists(err):
			return true, nil
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case errors.Is(err, oci.ErrMismatch), errors.Is(err, errDamaged):
			// Nothing that was written is of use.
			if aborted := u.abort(ctx); aborted != nil {
				err = errors.Join(err, aborted)
			}
			if !errors.Is(err, errDamaged) || restarted {
				return false, err
			}
			restarted = true
			u.reach(0)
			continue
		case !temporary(err):
			return false, err
		}
		if u.acked > before {
			wait = pause{next: u.store.config.Pause}
		}
		if !wait.wait(ctx) {
			return false, err
		}
	}
}

// reach notes what containerd has of the blob.
func (u *upload) reach(offset int64) {
	u.progress.add(offset - u.acked)
	u.acked = offset
}

func (u *upload) abort(ctx context.Context) error {
	_, err := u.store.content.Abort(ctx, &contentapi.AbortRequest{Ref: u.ref})
	if err != nil && !isNotFound(err) {
		return fmt.Errorf("discard what was written: %w", err)
	}
	u.marks = nil
	return nil
}

// stream writes what is missing of the blob through one stream, and commits it.
func (u *upload) stream(ctx context.Context) error {
	for _, slots := range []Slots{u.store.own, u.store.config.Slots} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, err := u.begin(ctx, cancel)
	if err != nil {
		return err
	}
	sent := u.send(ctx, c)
	ended := context.Cause(ctx) // by the receiving side, the watch or the caller
	if sent != nil && (ended != nil || errors.Is(sent, errBroken)) {
		cancel(sent)
	} else if sent != nil {
		_ = c.CloseSend() // the source has failed; what is under way is still acknowledged
	}
	received := <-c.received
	c.watch.Stop()
	switch {
	case received == nil:
		return nil
	case errors.Is(context.Cause(ctx), errStalled):
		return errStalled
	case sent == nil || errors.Is(sent, errBroken):
		err = received
	case ended != nil:
		err = ended
	default:
		return sent
	}
	if status.Code(err) == codes.FailedPrecondition {
		// The commit found another digest or size. What was sent has been checked here.
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return err
}

// errBroken means that the stream has ended; what it received says why.
var errBroken = errors.New("the stream has ended")

// call is one stream of Content.Write.
type call struct {
	contentapi.Content_WriteClient
	offset   int64         // where it begins
	waiting  chan struct{} // one for each message without an acknowledgement
	received chan error    // the end of the receiving side; nil after the commit
	watch    *time.Timer   // cancels the stream when an acknowledgement is late
}

// begin opens a stream, learns how much of the blob containerd has, and starts receiving.
func (u *upload) begin(ctx context.Context, cancel context.CancelCauseFunc) (*call, error) {
	watch := time.AfterFunc(openTime, func() { cancel(errStalled) })
	fail := func(err error) (*call, error) {
		watch.Stop()
		if errors.Is(context.Cause(ctx), errStalled) {
			err = errStalled
		}
		return nil, err
	}
	stream, err := u.store.content.Write(ctx)
	if err != nil {
		return fail(err)
	}
	first := &contentapi.WriteContentRequest{Action: contentapi.WriteAction_STAT, Ref: u.ref, Total: u.blob.Size,
		Expected: string(u.blob.Digest)}
	// An error of Send is io.EOF; Recv has the reason.
	_ = stream.Send(first)
	reply, err := stream.Recv()
	if err != nil {
		return fail(err)
	}
	if reply.Offset < 0 || reply.Offset > u.blob.Size {
		return fail(fmt.Errorf("containerd has %d of %d bytes: %w", reply.Offset, u.blob.Size, errDamaged))
	}
	watch.Stop()
	c := &call{Content_WriteClient: stream, offset: reply.Offset, waiting: make(chan struct{}, window),
		received: make(chan error, 1)}
	// Between messages, while the source is slow, nothing is waited for.
	c.watch = time.AfterFunc(ackTime, func() {
		if len(c.waiting) > 0 {
			cancel(errStalled)
		}
	})
	u.reach(c.offset)
	go u.receive(ctx, cancel, c)
	return c, nil
}

// send reads the source from the stream's offset on, sends it, and asks for the commit. The error is that of
// the source, oci.ErrMismatch, or errBroken.
func (u *upload) send(ctx context.Context, c *call) error {
	sum, known := u.sumAt(c.offset)
	if c.offset < u.blob.Size {
		source, err := u.source.Open(ctx, u.blob.Descriptor, c.offset)
		if err != nil {
			return err
		}
		defer source.Close()
		if err := u.copy(ctx, c, source, sum, known); err != nil {
			return err
		}
	}
	// If another process wrote the beginning, only the commit can check the digest.
	if got := oci.FromHash(sum.Sum(nil)); known && got != u.blob.Digest {
		return fmt.Errorf("the source has the digest %s: %w", got, oci.ErrMismatch)
	}
	return u.message(ctx, c, &contentapi.WriteContentRequest{Action: contentapi.WriteAction_COMMIT,
		Offset: u.blob.Size,
		Total:  u.blob.Size, Expected: string(u.blob.Digest), Labels: u.blob.labels})
}

// copy sends the rest of the source, which must end at the blob's size, and adds it to the hash.
func (u *upload) copy(ctx context.Context, c *call, source io.Reader, sum hash.Hash, known bool) error {
	limit := u.store.config.Rate
	buf := make([]byte, min(chunk(limit), u.blob.Size-c.offset))
	for at := c.offset; at < u.blob.Size; {
		data := buf[:min(int64(len(buf)), u.blob.Size-at)]
		if n, err := io.ReadFull(source, data); err == io.EOF || err == io.ErrUnexpectedEOF {
			return fmt.Errorf("the source ends after %d of %d bytes: %w", at+int64(n), u.blob.Size, oci.ErrMismatch)
		} else if err != nil {
			return err
		}
		sum.Write(data)
		if limit != nil {
			if err := limit.WaitN(ctx, len(data)); err != nil {
				return errBroken
			}
		}
		// gRPC has encoded the message when Send returns, so the buffer can be used again.
		if err := u.message(ctx, c, &contentapi.WriteContentRequest{Action: contentapi.WriteAction_WRITE, Offset: at,
			Data: data}); err != nil {
			return err
		}
		at += int64(len(data))
		if known {
			u.mark(at, sum)
		}
	}
	if n, err := io.ReadFull(source, buf[:1]); n > 0 {
		return fmt.Errorf("the source has more than %d bytes: %w", u.blob.Size, oci.ErrMismatch)
	} else if err != io.EOF {
		return err
	}
	return nil
}

// message sends one message when the window has room for it.
func (u *upload) message(ctx context.Context, c *call, m *contentapi.WriteContentRequest) error {
	select {
	case c.waiting <- struct{}{}:
	case <-ctx.Done():
		return errBroken
	}
	c.watch.Reset(ackTime)
	if c.Send(m) != nil {
		return errBroken
	}
	return nil
}

// sumAt returns the hash of the blob's first offset bytes. known is false if this upload has not seen them.
func (u *upload) sumAt(offset int64) (sum hash.Hash, known bool) {
	for _, m := range u.marks {
		if m.offset == offset {
			return clone(m.sum), true
		}
	}
	return sha256.New(), offset == 0
}

func (u *upload) mark(offset int64, sum hash.Hash) {
	if len(u.marks) > window {
		u.marks = append(u.marks[:0], u.marks[1:]...)
	}
	u.marks = append(u.marks, mark{offset, clone(sum.(hash.Cloner))})
}

// clone copies the state of a SHA-256 hash, which cannot fail.
func clone(sum hash.Cloner) hash.Cloner {
	c, err := sum.Clone()
	if err != nil {
		panic(err)
	}
	return c
}
