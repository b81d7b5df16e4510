package mux

// A reader gives its stream credit for window bytes ahead of it. The window grows with use, and is small while
// the readers of the session are far behind.
const pressed = 16 << 10

// charge counts the memory of the streams' readers. Session.mu is held.
func (s *Session) charge(delta int64) {
	s.held += int(delta)
	if s.cfg.Charge != nil {
		s.cfg.Charge(delta)
	}
}

// grow doubles the window of a stream whose reader has taken a whole one.
func (st *Stream) grow() {
	s := st.channel.session
	if st.in.Start()-st.grown < uint64(st.window) {
		return
	}
	st.grown = st.in.Start()
	if s.held < s.cfg.Memory/8 {
		st.window = min(2*st.window, s.cfg.MaxCredit)
	}
}

// grant is how many bytes of credit the stream is to give now: none, or enough to be worth a frame.
func (st *Stream) grant() int {
	if st.err != nil || st.fin {
		return 0
	}
	s := st.channel.session
	window := st.window
	switch limit := s.cfg.Memory / 2; {
	case s.held > limit*3/4:
		window = min(window, pressed)
	case s.held > limit/2:
		window = min(window, initialCredit/4)
	}
	end := st.in.Start() + uint64(window)
	if end < st.allowed+uint64(window)/4 {
		return 0
	}
	return int(end - st.allowed)
}

// largest is the stream whose reader is furthest behind.
func (s *Session) largest() *Stream {
	var largest *Stream
	for _, c := range s.channels {
		for _, st := range c.streams {
			if largest == nil || st.in.Held() > largest.in.Held() {
				largest = st
			}
		}
	}
	return largest
}
