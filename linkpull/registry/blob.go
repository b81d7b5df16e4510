package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/linkpull/oci"
)

// errStalled means that no byte came for stallTime.
var errStalled = errors.New("the registry stopped sending")

// Open returns a layer from offset on. Errors, also those of Read, are *Error. One that is Temporary may be
// followed by another Open at the offset that was reached. Read fails if there are fewer or more bytes than
// the descriptor says; their digest is for the caller to check.
func (r *Remote) Open(ctx context.Context, d oci.Descriptor, offset int64) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	b := &body{ctx: ctx, cancel: cancel, what: "layer " + string(d.Digest) + " of " + r.name, left: d.Size - offset}
	b.stall = time.AfterFunc(stallTime, func() { cancel(errStalled) })
	header := http.Header{}
	if offset > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
	}
	resp, err := r.session.get(ctx, b.what, "/blobs/"+string(d.Digest), header)
	if err != nil {
		b.end()
		return nil, err
	}
	b.from = resp.Body
	if err := b.begin(resp, offset, d.Size); err != nil {
		_ = b.Close()
		return nil, err
	}
	b.stall.Stop()
	return b, nil
}

// body is the rest of a layer.
type body struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	stall  *time.Timer // runs while Read waits
	what   string
	from   io.ReadCloser
	left   int64 // bytes that must still come
}

// begin brings the response to the offset: a registry may ignore the range.
func (b *body) begin(resp *http.Response, offset, size int64) error {
	malformed := func(err error) error {
		return &Error{Kind: Malformed, What: b.what, Status: resp.StatusCode, Err: err}
	}
	if resp.StatusCode == http.StatusPartialContent {
		if first, total, ok := parseRange(resp.Header.Get("Content-Range")); !ok || first != offset || total >= 0 &&
			total != size {
			return malformed(errRange)
		}
		return nil
	}
	if resp.ContentLength >= 0 && resp.ContentLength != size {
		return malformed(fmt.Errorf("%d bytes instead of %d: %w", resp.ContentLength, size, oci.ErrMismatch))
	}
	if offset == 0 {
		return nil
	}
	b.left = size
	n, err := io.CopyN(io.Discard, b, offset)
	if err == io.EOF || err == nil && n < offset {
		err = b.broken(io.ErrUnexpectedEOF)
	}
	return err
}

var errRange = errors.New("the registry sent another part than it was asked for")

func (b *body) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.stall.Reset(stallTime)
	defer b.stall.Stop()
	if b.left == 0 {
		return 0, b.over()
	}
	n, err := b.from.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	switch {
	case err == nil || err == io.EOF && n > 0:
		return n, nil // the next call sees the end
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	}
	return n, b.broken(err)
}

// over looks for the end after the last byte.
func (b *body) over() error {
	var more [1]byte
	switch n, err := io.ReadFull(b.from, more[:]); {
	case n > 0:
		return &Error{Kind: Malformed, What: b.what, Err: fmt.Errorf("more bytes than its size: %w", oci.ErrMismatch)}
	case err == io.EOF:
		return io.EOF
	default:
		return b.broken(err)
	}
}

func (b *body) broken(err error) error { return failed(b.what, cause(b.ctx, err)) }

func (b *body) end() {
	b.stall.Stop()
	b.cancel(nil)
}

// Close ends the request.
func (b *body) Close() error {
	b.end()
	return b.from.Close()
}

// parseRange reads a Content-Range: the first byte, and the size of the whole or -1 if it is not known.
func parseRange(s string) (first, total int64, ok bool) {
	rest, ok := strings.CutPrefix(s, "bytes ")
	if !ok {
		return 0, 0, false
	}
	span, size, ok := strings.Cut(rest, "/")
	if !ok {
		return 0, 0, false
	}
	begin, _, ok := strings.Cut(span, "-")
	if !ok {
		return 0, 0, false
	}
	first, err := strconv.ParseInt(begin, 10, 64)
	if err != nil || first < 0 {
		return 0, 0, false
	}
	if size == "*" {
		return first, -1, true
	}
	total, err = strconv.ParseInt(size, 10, 64)
	return first, total, err == nil && total >= 0
}
