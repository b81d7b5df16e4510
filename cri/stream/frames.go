package stream

import (
	"encoding/binary"
	"fmt"
)

// Limits on SPDY frames from a runtime's streaming server, if we decode them: spdystream allocates
// the length that a frame announces, queues 250 frames, and decompresses headers to up to a
// thousand times their size.
const (
	maxDataFrame    = 128 << 10 // bytes; containerd and CRI-O write at most 32 KiB
	maxControlFrame = 1 << 10   // bytes
	maxHeaderFrame  = 256       // bytes, compressed: a stream is accepted without a header
	maxHeaderFrames = 16        // per connection, which has at most five streams
)

// frameHeader is the length of a frame's header, in bytes.
const frameHeader = 8

// Types of SPDY/3 control frames that carry headers.
const (
	synStream = 1
	synReply  = 2
	headers   = 8
)

// frames tracks the frame boundaries in a SPDY/3 stream.
type frames struct {
	header  [frameHeader]byte
	have    int    // bytes of header so far
	payload uint32 // bytes left of the frame
	packed  int    // header frames so far
}

// look scans b, and fails at a frame that exceeds a limit, so that its payload is not passed on.
func (f *frames) look(b []byte) error {
	for len(b) > 0 {
		if f.payload > 0 {
			n := min(uint32(len(b)), f.payload)
			f.payload -= n
			b = b[n:]
			continue
		}
		n := copy(f.header[f.have:], b)
		f.have += n
		b = b[n:]
		if f.have < frameHeader {
			return nil
		}
		f.have = 0
		if err := f.begin(); err != nil {
			return err
		}
	}
	return nil
}

func (f *frames) begin() error {
	length := binary.BigEndian.Uint32(f.header[4:]) & 0xffffff // the low 24 bits; flags are above them
	f.payload = length
	what, most := "data", uint32(maxDataFrame)
	if f.header[0]&0x80 != 0 {
		what, most = "control", maxControlFrame
		switch binary.BigEndian.Uint16(f.header[2:]) {
		case synStream, synReply, headers:
			what, most = "header", maxHeaderFrame
			if f.packed++; f.packed > maxHeaderFrames {
				return fmt.Errorf("the runtime's streaming server has sent more than %d header frames", maxHeaderFrames)
			}
		}
	}
	if length > most {
		return fmt.Errorf("a %s frame of the runtime's streaming server has %d bytes, more than %d", what, length, most)
	}
	return nil
}
