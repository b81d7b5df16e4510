package link

import (
	"io"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/host/budget"
)

// Bounds of what a connection may have received that was not read. The SSH library keeps
// each packet of a channel by itself until it is read, and tells nothing of them. A packet
// with one byte takes 48 bytes of memory (16 for it, 32 to link it), and at least 36 on
// the wire: the 2 MiB that a machine may send ahead on one channel cost up to 100 MiB. So
// bytes on the wire are what is counted: maxUnread of them take at most 16 MiB.
const (
	maxUnread = 12 << 20
	// perPacket is the least that a packet takes on the wire beside its data.
	perPacket = 34
	// window is what the library lets a machine send ahead on one channel, in bytes of data.
	window = 2 << 20
	// unreadStep is how much is received between two looks at what is unread.
	unreadStep = 256 << 10
	// resting is how long a read must have waited to show that there was nothing to read.
	resting = time.Second
)

// unread estimates what a connection has received that was not read: all that came on
// the wire since the time when some stream that is not being read now was last seen to be
// empty, without what the streams' readers have got since then. What it errs by is what
// small packets need beside their data where one read gets several.
type unread struct {
	// hangs says that nothing can be written: a read waits for that, too, as it opens
	// the channel's window.
	hangs func() bool
	// over ends the connection, with the error of the budget.
	over   func()
	budget *budget.Account

	mu       sync.Mutex
	received int64 // on the wire
	read     int64 // by the streams' readers, with perPacket for each read
	next     int64 // of received: when to look again
	streams  map[*stream]bool
	closing  int
}

// stream is one direction's data of a channel, or its standard error.
type stream struct {
	of    *unread
	src   io.Reader
	close func() // the channel
	// turn is of the one reader at a time: the library wakes one where a stream ends.
	turn chan struct{}

	// Of unread's mutex:
	mark    int64     // received without read when it was last seen to be empty, or less
	reading time.Time // since when; zero: it is not read now
	closed  bool      // the channel, for what is unread of it
	// A stream whose reader is always behind is never seen to be empty. But what it held
	// at some time was read when a window more has been read. So its mark may move to that
	// time, less what was read since then: it may have been what was held.
	then  int64 // received without read at that time
	since int64 // data of it that was read since then
	less  int64 // the same, with perPacket
}

// stream begins to count one; forget ends that.
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
		s.mark = u.received - u.read // the library gives all that it has
	}
	return n, err
}

// receive counts what came on the wire. What is too much of it closes the stream that was
// not read for longest: a client of ours who does not read may be the reason, so that the
// host is not blamed. Where no stream waits for its reader, it ends the connection.
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
	case u.closing > 0 && held <= maxUnread+maxUnread/2: // those are being emptied
	case slowest == nil:
		u.budget.Go("an SSH connection", u.over)
	default:
		slowest.closed = true
		u.closing++
		u.budget.Go("a channel that was closed", slowest.close)
	}
}
