package link

import (
	"io"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/host/budget"
)

// Bounds of the unread data of a connection. The SSH library keeps each packet of a channel
// separately until it is read, and does not report them. A packet with one byte takes 48 bytes
// of memory (16 for the data, 32 for the list) and at least 36 on the wire: the 2 MiB that a
// host may send ahead on one channel cost up to 100 MiB. So this package counts bytes on the
// wire: maxUnread of them take at most 16 MiB.
const (
	maxUnread = 12 << 20
	// perPacket is the least that a packet takes on the wire besides its data.
	perPacket = 34
	// window is how much data the library lets a host send ahead on one channel, in bytes.
	window = 2 << 20
	// unreadStep is the number of bytes that arrive between two checks of the unread data.
	unreadStep = 256 << 10
	// resting is how long a read must have waited to show that there was nothing to read.
	resting = time.Second
)

// unread estimates the unread data of a connection: everything that arrived on the wire since
// the time when the first of the streams that are not being read was last known to be empty,
// minus what the readers of all streams received since then. The error is the overhead of small
// packets when one read returns several.
type unread struct {
	// hangs reports that no data can be written: a read waits for that too, because it opens the
	// channel's window.
	hangs func() bool
	// over ends the connection, with the error of the budget.
	over   func()
	budget *budget.Account

	mu       sync.Mutex
	received int64 // on the wire
	read     int64 // by the readers of the streams, with perPacket for each read
	next     int64 // the value of received at the next check
	streams  map[*stream]bool
	closing  int
}

// stream is the data of one direction of a channel, or its standard error.
type stream struct {
	of    *unread
	src   io.Reader
	close func() // closes the channel
	// turn admits one reader at a time, because the library wakes only one when a stream ends.
	turn chan struct{}

	// Guarded by the mutex of unread:
	mark    int64     // received minus read when it was last known to be empty, or less
	reading time.Time // since when; zero: it is not being read
	closed  bool      // the channel was closed because of its unread data
	// A stream whose reader is always behind is never seen empty. But once a window more has
	// been read, everything that it held at an earlier time (then) has been read. So mark may
	// move to that time, minus what was read since then, which may be the data that was held.
	then  int64 // received minus read at that time
	since int64 // data of the stream that was read since then
	less  int64 // the same, with perPacket
}

// stream begins to count a stream; forget ends that.
func (u *unread) stream(src io.Reader, close func()) *stream {
	s := &stream{of: u, src: src, close: close, turn: make(chan struct{}, 1)}
	if u != nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		s.mark = u.received - u.read
		s.then = s.mark
		u.streams[s] = true
	}
	return s
}

func (s *stream) forget() {
	if u := s.of; u != nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.streams[s] && s.closed {
			u.closing--
		}
		delete(u.streams, s)
	}
}

func (s *stream) Read(p []byte) (int, error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	u := s.of
	if u == nil {
		return s.src.Read(p)
	}
	u.mu.Lock()
	s.reading = time.Now()
	u.mu.Unlock()
	n, err := s.src.Read(p)
	u.mu.Lock()
	defer u.mu.Unlock()
	s.reading = time.Time{}
	if n > 0 {
		u.read += int64(n) + perPacket
		s.less += int64(n) + perPacket
		if s.since += int64(n); s.since >= window {
			s.mark = max(s.mark, s.then-s.less)
			s.then, s.since, s.less = u.received-u.read, 0, 0
		}
	}
	if n < len(p) {
		s.mark = u.received - u.read // the library returns all that it has
	}
	return n, err
}

// receive counts what arrived on the wire. If too much is unread, it closes the stream that was
// not read for longest: the reason may be a client of ours that does not read, so the host is
// not blamed. If no stream waits for its reader, it ends the connection.
func (u *unread) receive(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.received += int64(n); u.received < u.next || u.over == nil {
		return
	}
	u.next = u.received + unreadStep
	now, hangs := u.received-u.read, u.hangs()
	first, slowest := now, (*stream)(nil)
	for s := range u.streams {
		if !s.reading.IsZero() && time.Since(s.reading) > resting && !hangs {
			s.mark = now
		}
		first = min(first, s.mark)
		if s.reading.IsZero() && !s.closed && (slowest == nil || s.mark < slowest.mark) {
			slowest = s
		}
	}
	switch held := now - first; {
	case held <= maxUnread:
	case u.closing > 0 && held <= maxUnread+maxUnread/2: // closed channels are being emptied
	case slowest == nil:
		u.budget.Go("an SSH connection", u.over)
	default:
		slowest.closed = true
		u.closing++
		u.budget.Go("a channel that was closed", slowest.close)
	}
}
