package pipe

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/host/budget"
)

const (
	// readAhead is the buffer of an idle transport: frames are parsed in it, and larger data goes around it.
	readAhead = 2 << 10
	batchSize = 64 << 10
)

// batch is what one Write of a transport carries. An idle transport has none.
type batch [batchSize]byte

var batches = sync.Pool{New: func() any { return new(batch) }}

// serve uses a transport, both of whose sides have said HELLO, until it fails, a newer one arrives, or the
// pipe ends. It closes the transport, and waits for its goroutines: the next one finds no trace of it.
func (p *Pipe) serve(ctx context.Context, conn net.Conn) error {
	p.mu.Lock()
	p.attached, p.heard = true, time.Now()
	p.mu.Unlock()
	ended, stop := make(chan error, 2), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		defer p.cfg.Budget.Recover("the transport of a pipe")
		err := budget.ErrPanicked
		defer func() { ended <- err }()
		err = readFrames(bufio.NewReaderSize(conn, readAhead), receiver{p})
	})
	all.Go(func() {
		defer p.cfg.Budget.Recover("the writer of a pipe")
		err := budget.ErrPanicked
		defer func() { ended <- err }()
		err = p.send(conn, stop)
	})
	err := p.watch(ctx, ended)
	close(stop)
	conn.Close()
	all.Wait()
	p.mu.Lock()
	p.attached = false
	p.mu.Unlock()
	return err
}

// watch returns why a transport ends. It asks for an answer if the transport is silent.
func (p *Pipe) watch(ctx context.Context, ended <-chan error) error {
	var asked time.Time // when a PING was due that nothing has followed
	timer := time.NewTimer(p.cfg.KeepAlive)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return err
		case <-p.newer:
			if p.hasNewer() {
				return errReplaced
			}
			continue // it is this one
		case <-timer.C:
		}
		now, heard := time.Now(), p.lastHeard()
		switch idle := now.Sub(heard); {
		case heard.Before(asked):
			return errSilent
		case idle < p.cfg.KeepAlive:
			asked = time.Time{}
			timer.Reset(p.cfg.KeepAlive - idle)
		default:
			asked = now
			p.askForAnswer(now)
			timer.Reset(p.cfg.Patience)
		}
	}
}

func (p *Pipe) hasNewer() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting != nil
}

func (p *Pipe) lastHeard() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard
}

func (p *Pipe) askForAnswer(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.pingDue = true
	p.wake(now)
}

// send writes frames. It alone decides that the pipe is over, since it knows what it has written.
func (p *Pipe) send(conn net.Conn, stop <-chan struct{}) error {
	timer := time.NewTimer(ackDelay)
	defer timer.Stop()
	for {
		wait, err := p.sendDue(conn)
		if err != nil {
			return err
		}
		timer.Reset(wait)
		select {
		case <-p.work:
		case <-timer.C:
		case <-stop:
			return net.ErrClosed
		}
	}
}

// sendDue writes all that is due, and returns when more is.
func (p *Pipe) sendDue(conn net.Conn) (wait time.Duration, err error) {
	const never = time.Hour // a longer time would do
	var buf *batch
	defer func() {
		if buf != nil {
			batches.Put(buf)
		}
	}()
	for {
		p.mu.Lock()
		now := time.Now()
		if p.state.over() {
			p.mu.Unlock()
			return 0, errOver
		}
		if !p.state.due(now) {
			wait, owed := p.state.ackIn(now)
			p.armed = owed
			p.mu.Unlock()
			if !owed {
				wait = never
			}
			return wait, nil
		}
		if buf == nil {
			buf = batches.Get().(*batch)
		}
		frames := p.state.frames(buf[:0], now)
		p.wake(now) // what is sent makes room for writers
		p.mu.Unlock()
		if _, err := conn.Write(frames); err != nil {
			return 0, err
		}
	}
}

// receiver applies the frames of a transport to the state.
type receiver struct{ *Pipe }

func (r receiver) change(f func(now time.Time) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = time.Now()
	err := f(r.heard)
	r.wake(r.heard)
	return err
}

func (r receiver) data(b []byte) error {
	return r.change(func(now time.Time) error { return r.state.data(b, now) })
}

func (r receiver) ack(at position) error {
	return r.change(func(time.Time) error { return r.state.ack(at, r.peer) })
}

func (r receiver) ping() error {
	return r.change(func(time.Time) error { r.state.pongDue = true; return nil })
}

func (r receiver) pong() error {
	return r.change(func(time.Time) error { return nil })
}

func (r receiver) close() error {
	return r.change(func(now time.Time) error { return r.state.close(now) })
}

// failure reports whether a transport failed because of err, so that a next one can help.
func failure(err error) bool {
	return !final(err) && !errors.Is(err, errOver) && !errors.Is(err, budget.ErrPanicked)
}
