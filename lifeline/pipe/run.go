package pipe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/bowline-k8s/bowline/host/budget"
)

const (
	// helloTimeout is the limit for making a transport and for the HELLO of both sides.
	helloTimeout = 10 * time.Second
	// firstPause and longestPause are between two dials that fail at once.
	firstPause, longestPause = 50 * time.Millisecond, 2 * time.Second
	// healthy is how long a transport lasts if the next one is dialled without a pause.
	healthy = time.Second
	// lastWords is how long Run tries to deliver CLOSE after its context has ended.
	lastWords = time.Second
)

// Run uses one transport after the other until the pipe ends. It returns nil after the Close of either end,
// and else the error that Read and Write return then. The end of ctx closes the pipe as Close does, but Run
// does not wait for the next transport, and only a moment for the other end.
func (p *Pipe) Run(ctx context.Context) (err error) {
	err = budget.ErrPanicked
	defer func() { p.end(err) }()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() {
		p.Close()
		if !p.Stats().Attached {
			end()
		}
		time.AfterFunc(lastWords, end)
	})()
	switch err = p.transports(life); {
	case errors.Is(err, errOver), p.isClosing() && errors.Is(err, ErrForgotten):
		err = nil // the other end may forget a pipe as soon as it knows that it is closed
	case ctx.Err() != nil:
		err = ctx.Err()
	}
	return err
}

// transports uses transports until the pipe ends.
func (p *Pipe) transports(ctx context.Context) error {
	for {
		until := time.Now().Add(p.cfg.Resume)
		next := p.accept
		if p.cfg.Dial != nil {
			next = p.dial
		}
		conn, err := next(ctx, until)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := p.serve(ctx, conn); !failure(err) {
			return err
		}
		if time.Since(began) >= healthy {
			p.pause = 0
		}
	}
}

// end makes err the result of all calls, and returns memory.
func (p *Pipe) end(err error) {
	p.mu.Lock()
	p.err = err
	p.state.out.Discard(p.state.out.End())
	waiting := p.waiting
	p.waiting = nil
	close(p.done)
	p.mu.Unlock()
	if waiting != nil {
		waiting.Forget()
	}
}

func (p *Pipe) isClosing() bool { return done(p.closing) }

// dial makes transports until one is answered.
func (p *Pipe) dial(ctx context.Context, until time.Time) (net.Conn, error) {
	limit, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	var last error
	for {
		if err := sleep(limit, p.pause); err != nil {
			return nil, p.expired(ctx, last)
		}
		p.pause = min(max(firstPause, 2*p.pause), longestPause)
		conn, err := p.dialOnce(limit)
		if err == nil || final(err) {
			return conn, err
		}
		last = err
	}
}

// expired is the error for a pipe without a transport, or that of the context.
func (p *Pipe) expired(ctx context.Context, last error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case last == nil:
		return ErrExpired
	}
	return fmt.Errorf("%w: %w", ErrExpired, last)
}

// dialOnce makes a transport, and learns from the other end whether it knows the pipe.
func (p *Pipe) dialOnce(ctx context.Context) (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	if conn, err = p.cfg.Dial(ctx); err != nil {
		return nil, err
	}
	defer closeIf(ctx, conn, &err)()
	says := fresh
	if p.established {
		says = resuming
	}
	p.begin(p.attempt + 1)
	if _, err := conn.Write(p.hello(says).append(nil)); err != nil {
		return nil, err
	}
	h, err := readHello(conn)
	switch {
	case err != nil:
		return nil, err
	case h.ID != p.cfg.ID:
		return nil, violation("the HELLO of another pipe")
	case h.Status == forgotten:
		return nil, ErrForgotten
	case h.Status != known:
		return nil, violation("an answer with the status %d", h.Status)
	}
	if err := p.attach(h, p.established); err != nil {
		return nil, err
	}
	p.established = true
	return conn, nil
}

// begin makes a transport the newest one. Only Run's goroutine calls it.
func (p *Pipe) begin(attempt uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attempt = attempt
}

// hello is what this end says at the beginning of a transport.
func (p *Pipe) hello(says status) hello {
	p.mu.Lock()
	defer p.mu.Unlock()
	return hello{version, says, p.cfg.ID, p.attempt, p.state.hello(), uint32(p.cfg.Window)}
}

// attach takes the other side's HELLO.
func (p *Pipe) attach(h hello, again bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.state.attach(h.Position, h.Window); err != nil {
		return err
	}
	p.peer = h.Window
	if again {
		p.resumed++
	}
	p.wake(time.Now())
	return nil
}

// Incoming is a transport whose HELLO has been read. The caller passes it to Attach of its pipe, or calls
// Forget.
type Incoming struct {
	ID ID
	// Fresh: the dialling side begins with this pipe, so that it may be new here as well.
	Fresh bool

	hello hello
	conn  net.Conn
}

// Hello reads the HELLO of the dialling side, within ten seconds. On an error it closes conn.
func Hello(ctx context.Context, conn net.Conn) (in *Incoming, err error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	defer closeIf(ctx, conn, &err)()
	h, err := readHello(conn)
	switch {
	case errors.Is(err, ErrVersion):
		conn.Write(hello{Version: version, Status: forgotten, ID: ID{Channels: 1}}.append(nil)) // so that it knows
		return nil, err
	case err != nil:
		return nil, err
	case h.Status != fresh && h.Status != resuming:
		return nil, violation("a HELLO with the status %d", h.Status)
	}
	return &Incoming{ID: h.ID, Fresh: h.Status == fresh, hello: h, conn: conn}, nil
}

// Forget answers that the pipe is not known, so that the dialling side ends its own, and closes the transport.
func (in *Incoming) Forget() {
	defer in.conn.Close()
	defer time.AfterFunc(helloTimeout, func() { in.conn.Close() }).Stop()
	h := hello{Version: version, Status: forgotten, ID: in.ID, Attempt: in.hello.Attempt}
	in.conn.Write(h.append(nil)) // the dialling side asks again if it is lost
}

// Attach gives the accepting side a transport. The newest one that was dialled wins. After the end of the pipe
// it is Forget.
func (p *Pipe) Attach(in *Incoming) {
	p.mu.Lock()
	ended, late := done(p.done), in
	if !ended && in.hello.Attempt > p.attempt && (p.waiting == nil || in.hello.Attempt > p.waiting.hello.Attempt) {
		late, p.waiting = p.waiting, in
	}
	p.mu.Unlock()
	p.newer.Send()
	switch {
	case ended:
		in.Forget()
	case late != nil:
		late.conn.Close()
	}
}

// accept waits for a transport that Attach got, and answers it.
func (p *Pipe) accept(ctx context.Context, until time.Time) (net.Conn, error) {
	limit, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	var last error
	for {
		p.mu.Lock()
		in := p.waiting
		p.waiting = nil
		p.mu.Unlock()
		if in == nil {
			select {
			case <-p.newer:
				continue
			case <-limit.Done():
				return nil, p.expired(ctx, last)
			}
		}
		conn, err := p.answer(limit, in)
		if err == nil || final(err) {
			return conn, err
		}
		last = err
	}
}

// answer tells the dialling side where this end stands.
func (p *Pipe) answer(ctx context.Context, in *Incoming) (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	defer closeIf(ctx, in.conn, &err)()
	again := p.attempt > 0
	p.begin(in.hello.Attempt)
	if err := p.attach(in.hello, again); err != nil {
		return nil, err
	}
	if _, err := in.conn.Write(p.hello(known).append(nil)); err != nil {
		return nil, err
	}
	return in.conn, nil
}

func readHello(conn net.Conn) (hello, error) {
	var b [helloSize]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return hello{}, fmt.Errorf("read the HELLO of a pipe: %w", err)
	}
	return parseHello(b[:])
}

// closeIf closes conn when ctx ends, and when the function that defers the result returns an error.
func closeIf(ctx context.Context, conn net.Conn, err *error) func() {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	return func() {
		if !stop() && *err == nil {
			*err = ctx.Err()
		}
		if *err != nil {
			conn.Close()
		}
	}
}

// sleep waits, or returns the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
