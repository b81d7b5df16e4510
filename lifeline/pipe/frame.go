package pipe

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"io"
)

// A transport carries a HELLO of each side, the dialling one first, and then frames: a byte for the kind and
// what belongs to it. Numbers are big-endian.
const (
	kindData  = iota + 1 // length (2 bytes, not 0), and the bytes that follow those of the last one
	kindAck              // a position
	kindPing             // asks for a PONG
	kindPong             //
	kindClose            // no more bytes follow, and none is read; it has the offset after the last one
)

const (
	version      = 1
	magic        = "BWLN"
	helloSize    = len(magic) + 2 + endSize + 2 + 8 + positionSize + 4
	positionSize = 8 + 8
	dataHeader   = 1 + 2
	// maxData is the most that a DATA frame carries: with its header, one packet of SSH.
	maxData = 32<<10 - dataHeader
	endSize = 16
)

// ID names a pipe.
type ID struct {
	// End names the dialling end; each one has a new name, which no other end ever had.
	End End
	// Channel is the number of the pipe among the Channels pipes of the end.
	Channel, Channels uint8
}

// End is the random name of a dialling end.
type End [endSize]byte

// NewEnd makes the name of an end.
func NewEnd() End {
	var e End
	rand.Read(e[:]) // never fails
	return e
}

// position is how far a stream has come at the side that receives it, CLOSE counting as one byte.
type position struct {
	Received uint64 // offset of the next byte that it expects
	Read     uint64 // offset of the next byte that its user reads; what lies between occupies its window
}

func (p position) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, p.Received), p.Read)
}

func parsePosition(b []byte) position {
	return position{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}
}

// status is the dialling side's word on its pipe, or the accepting side's answer.
type status byte

const (
	fresh     status = iota + 1 // dialling side: no transport of the pipe has been answered yet
	resuming                    // dialling side: one has been, so the pipe must be known
	known                       // accepting side: it has the pipe
	forgotten                   // accepting side: it does not have it
)

// hello begins a transport.
type hello struct {
	Version byte
	Status  status
	ID      ID
	// Attempt counts the transports that the dialling side has tried: the newest wins, even if a late one
	// arrives after it.
	Attempt  uint64
	Position position
	Window   uint32 // bytes that this side buffers for its user
}

func (h hello) append(b []byte) []byte {
	b = append(b, magic...)
	b = append(b, h.Version, byte(h.Status))
	b = append(b, h.ID.End[:]...)
	b = append(b, h.ID.Channel, h.ID.Channels)
	b = binary.BigEndian.AppendUint64(b, h.Attempt)
	return binary.BigEndian.AppendUint32(h.Position.append(b), h.Window)
}

// parseHello parses a HELLO of helloSize bytes. Of another version it returns only the version.
func parseHello(b []byte) (hello, error) {
	if string(b[:len(magic)]) != magic {
		return hello{}, violation("no HELLO")
	}
	b = b[len(magic):]
	h := hello{Version: b[0], Status: status(b[1])}
	if h.Version != version {
		return hello{Version: h.Version}, ErrVersion
	}
	b = b[2+copy(h.ID.End[:], b[2:]):]
	h.ID.Channel, h.ID.Channels = b[0], b[1]
	h.Attempt = binary.BigEndian.Uint64(b[2:])
	h.Position = parsePosition(b[10:])
	h.Window = binary.BigEndian.Uint32(b[10+positionSize:])
	switch {
	case h.Status < fresh || h.Status > forgotten:
		return hello{}, violation("a HELLO with the status %d", h.Status)
	case h.ID.Channel >= h.ID.Channels:
		return hello{}, violation("a HELLO of channel %d of %d", h.ID.Channel, h.ID.Channels)
	case h.Position.Read > h.Position.Received:
		return hello{}, violation("a HELLO with an impossible position")
	}
	return h, nil
}

// handler gets the frames of a transport; its errors end the transport.
type handler interface {
	data(p []byte) error // a part of a DATA frame
	ack(p position) error
	ping() error
	pong() error
	close() error
}

// readFrames passes frames to h until an error. It reads data through scratch, which it takes only while
// there is some.
func readFrames(r *bufio.Reader, h handler) error {
	for {
		kind, err := r.ReadByte()
		if err != nil {
			return err
		}
		switch kind {
		case kindData:
			err = readData(r, h)
		case kindAck:
			var b [positionSize]byte
			if _, err = io.ReadFull(r, b[:]); err == nil {
				err = h.ack(parsePosition(b[:]))
			}
		case kindPing:
			err = h.ping()
		case kindPong:
			err = h.pong()
		case kindClose:
			err = h.close()
		default:
			err = violation("a frame of the kind %d", kind)
		}
		if err != nil {
			return err
		}
	}
}

func readData(r *bufio.Reader, h handler) error {
	var b [2]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return err
	}
	left := int(binary.BigEndian.Uint16(b[:]))
	if left == 0 || left > maxData {
		return violation("a DATA frame of %d bytes", left)
	}
	buf := batches.Get().(*batch)
	defer batches.Put(buf)
	for left > 0 {
		n, err := r.Read(buf[:left])
		if err != nil {
			return err
		}
		if err := h.data(buf[:n]); err != nil {
			return err
		}
		left -= n
	}
	return nil
}
