package mux

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/bowline-k8s/bowline/lifeline/pipe"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

// A frame is its kind (1 byte), the length of its payload (3 bytes), the number of a stream (8 bytes), and the
// payload. Numbers are big-endian.
const (
	kindOpen   = iota + 1 // begins a stream; its flow
	kindData              // bytes of a stream, at least one
	kindCredit            // how many bytes more the other end may send (4 bytes)
	kindFin               // no bytes follow
	kindStop              // further bytes are not read
	kindReset             // ends a stream; a wire.Refusal (1 byte)
	// The frames of the pipe for all but streams:
	kindDatagram // a flow, and the payload
	kindTable    // a piece of a table; the number has the flags firstPiece and lastPiece
	kindStatus   // a piece of a status; likewise
)

const (
	firstPiece = 1 << iota
	lastPiece
)

const (
	headerSize = 1 + 3 + 8
	// quantum is the most that a DATA frame, or a piece of a table, carries: streams take turns after it.
	quantum = 16 << 10
	// largestDatagram is the largest UDP payload, over IPv4.
	largestDatagram = 65507
	flowMost        = 1 + 2*(1+16+2)
)

type header struct {
	kind   byte
	length int
	stream uint64
}

func (h header) append(b []byte) []byte {
	b = append(b, h.kind, byte(h.length>>16), byte(h.length>>8), byte(h.length))
	return binary.BigEndian.AppendUint64(b, h.stream)
}

// parseHeader parses a header of headerSize bytes, and checks that the kind permits the length.
func parseHeader(b []byte) (header, error) {
	h := header{b[0], int(b[1])<<16 | int(b[2])<<8 | int(b[3]), binary.BigEndian.Uint64(b[4:])}
	least, most := 0, 0
	switch h.kind {
	case kindOpen:
		least, most = 1, flowMost
	case kindData, kindTable, kindStatus:
		least, most = 1, quantum
	case kindCredit:
		least, most = 4, 4
	case kindFin, kindStop:
	case kindReset:
		least, most = 1, 1
	case kindDatagram:
		least, most = 1, flowMost+largestDatagram
	default:
		return header{}, violation("a frame of the kind %d", h.kind)
	}
	if h.length < least || h.length > most {
		return header{}, violation("a frame of the kind %d with %d bytes", h.kind, h.length)
	}
	return h, nil
}

func violation(format string, args ...any) error {
	return &pipe.ProtocolError{What: fmt.Sprintf(format, args...)}
}

// appendFlow encodes a flow: its protocol, and both addresses with their lengths. Zones are left out.
func appendFlow(b []byte, f wire.Flow) []byte {
	b = append(b, byte(f.Protocol))
	for _, a := range []netip.AddrPort{f.Src, f.Dst} {
		ip := a.Addr().AsSlice()
		b = append(append(b, byte(len(ip))), ip...)
		b = binary.BigEndian.AppendUint16(b, a.Port())
	}
	return b
}

// parseFlow parses a flow, and returns what follows.
func parseFlow(b []byte) (f wire.Flow, rest []byte, err error) {
	short := violation("a flow that is cut")
	if len(b) < 1 {
		return wire.Flow{}, nil, short
	}
	f.Protocol, rest = wire.Protocol(b[0]), b[1:]
	for _, a := range []*netip.AddrPort{&f.Src, &f.Dst} {
		if len(rest) < 1 || len(rest) < 1+int(rest[0])+2 {
			return wire.Flow{}, nil, short
		}
		n := int(rest[0])
		ip, ok := netip.AddrFromSlice(rest[1 : 1+n])
		if !ok {
			return wire.Flow{}, nil, violation("an address of %d bytes", n)
		}
		*a = netip.AddrPortFrom(ip, binary.BigEndian.Uint16(rest[1+n:]))
		rest = rest[1+n+2:]
	}
	return f, rest, nil
}

// checkFlow refuses a flow that the other end would not understand.
func checkFlow(f wire.Flow) error {
	if !f.Src.IsValid() || !f.Dst.IsValid() {
		return fmt.Errorf("the flow from %s to %s lacks an address", f.Src, f.Dst)
	}
	return nil
}
