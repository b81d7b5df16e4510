package sshtest

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Types of SFTP packets, of version 3 of the protocol.
const (
	SFTPInit    = 1
	SFTPVersion = 2
	SFTPOpen    = 3
	SFTPClose   = 4
	SFTPRead    = 5
	SFTPFstat   = 8
	SFTPStatus  = 101
	SFTPHandle  = 102
	SFTPData    = 103
	SFTPName    = 104
	SFTPAttrs   = 105
)

// SFTPLie writes what an SFTP server answers to the request id; an error ends the server. If it
// writes nothing, the request is never answered.
type SFTPLie func(w io.Writer, id uint32) error

// LieSFTP is an SFTP server with one file, which has every name. lies replaces its answer to a
// request of a type; it is asked before each answer and returns nil for a true one. LieSFTP returns
// when in ends, or on the first error.
func LieSFTP(in io.Reader, out io.Writer, content []byte, lies func(request byte) SFTPLie) error {
	for {
		head := make([]byte, 9) // length, type, and id or version
		if _, err := io.ReadFull(in, head); err != nil {
			return err
		}
		length := binary.BigEndian.Uint32(head)
		if length < 5 || length > 1<<20 {
			return fmt.Errorf("a request of %d bytes", length)
		}
		rest := make([]byte, length-5)
		if _, err := io.ReadFull(in, rest); err != nil {
			return err
		}
		answer := lies(head[4])
		if answer == nil {
			answer = truth(head[4], rest, content)
		}
		if err := answer(out, binary.BigEndian.Uint32(head[5:])); err != nil {
			return err
		}
	}
}

// truth is the answer of a server that does not lie.
func truth(request byte, rest, content []byte) SFTPLie {
	const endOfFile, unsupported = 1, 8
	switch request {
	case SFTPInit:
		return func(w io.Writer, _ uint32) error { return write(w, SFTPPacket(SFTPVersion, uint32(3))) }
	case SFTPOpen:
		return SFTPReply(SFTPHandle, "the handle")
	case SFTPClose:
		return sftpStatus(0)
	case SFTPFstat:
		const sizeAndMode = 1 | 4
		return SFTPReply(SFTPAttrs, uint32(sizeAndMode), uint64(len(content)), uint32(0o100644))
	case SFTPRead:
		if len(rest) < 12 {
			break
		}
		from, n := binary.BigEndian.Uint64(rest[len(rest)-12:]), uint64(binary.BigEndian.Uint32(rest[len(rest)-4:]))
		size := uint64(len(content))
		if from >= size {
			return sftpStatus(endOfFile)
		}
		return SFTPReply(SFTPData, string(content[from:min(from+n, size)]))
	}
	return sftpStatus(unsupported)
}

// SFTPPacket is a packet on the wire: its length, its type and the fields. A string has its length
// before it; bytes are written as they are.
func SFTPPacket(kind byte, fields ...any) []byte {
	b := []byte{0, 0, 0, 0, kind}
	for _, field := range fields {
		switch f := field.(type) {
		case uint32:
			b = binary.BigEndian.AppendUint32(b, f)
		case uint64:
			b = binary.BigEndian.AppendUint64(b, f)
		case string:
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(f))), f...)
		case []byte:
			b = append(b, f...)
		default:
			panic(fmt.Sprintf("a field of type %T", field))
		}
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// SFTPReply answers with a packet that has the request's id before the fields.
func SFTPReply(kind byte, fields ...any) SFTPLie {
	return func(w io.Writer, id uint32) error {
		return write(w, SFTPPacket(kind, append([]any{id}, fields...)...))
	}
}

func sftpStatus(code uint32) SFTPLie { return SFTPReply(SFTPStatus, code, "", "") }

func write(w io.Writer, b []byte) error {
	_, err := w.Write(b)
	return err
}

// raw answers with bytes, whatever the request is.
func raw(b ...byte) SFTPLie { return func(w io.Writer, _ uint32) error { return write(w, b) } }

// each gives several answers to one request.
func each(answers ...SFTPLie) SFTPLie {
	return func(w io.Writer, id uint32) error {
		for _, a := range answers {
			if err := a(w, id); err != nil {
				return err
			}
		}
		return nil
	}
}

// never is a size that no packet has.
const never = uint32(0xffffffff)

// SFTPLies are answers that are wrong for each request but INIT, by what is wrong with them. Each is
// only refused: the request fails, and no budget of the host is exceeded.
var SFTPLies = map[string]SFTPLie{
	"data that claims to have 4 GiB":       SFTPReply(SFTPData, never, []byte("abc")),
	"data that claims to have more":        SFTPReply(SFTPData, uint32(100), []byte("abc")),
	"data without a length":                SFTPReply(SFTPData),
	"data with half a length":              SFTPReply(SFTPData, []byte{0, 0}),
	"a status of success":                  sftpStatus(0),
	"a status without a text":              SFTPReply(SFTPStatus, uint32(4)),
	"a status without a code":              SFTPReply(SFTPStatus),
	"a status that claims to have 4 GiB":   SFTPReply(SFTPStatus, uint32(4), never),
	"a status of an unknown code":          SFTPReply(SFTPStatus, never, "?", "?"),
	"a handle without a length":            SFTPReply(SFTPHandle),
	"a handle that claims to have 4 GiB":   SFTPReply(SFTPHandle, never, []byte("abc")),
	"attributes without flags":             SFTPReply(SFTPAttrs),
	"attributes that are missing":          SFTPReply(SFTPAttrs, uint32(0xf)),
	"attributes, four billion more":        SFTPReply(SFTPAttrs, uint32(0x80000000), never),
	"ten million names":                    SFTPReply(SFTPName, uint32(10_000_000), []byte("abc")),
	"a packet of an unknown type":          SFTPReply(250, "abc"),
	"a second handshake":                   each(raw(SFTPPacket(SFTPVersion, uint32(3))...), sftpStatus(4)),
	"an answer to no request":              func(w io.Writer, id uint32) error { return sftpStatus(4)(w, id+1_000_000) },
	"two answers to one request":           each(sftpStatus(4), sftpStatus(4)),
	"a packet of no bytes":                 raw(0, 0, 0, 0),
	"a packet of one byte":                 raw(0, 0, 0, 1, SFTPData),
	"a packet with a part of an id":        raw(0, 0, 0, 4, SFTPData, 0, 0, 0),
	"a packet of 4 GiB":                    raw(0xff, 0xff, 0xff, 0xff, SFTPData),
	"a packet of 256 KiB that never comes": raw(0, 4, 0, 0, SFTPData),
	"a greeting":                           raw([]byte("Welcome to this machine!\n")...),
	"half a length":                        each(raw(0, 0), func(io.Writer, uint32) error { return io.ErrUnexpectedEOF }),
	"the end of the session":               func(io.Writer, uint32) error { return io.EOF },
	"nothing":                              func(io.Writer, uint32) error { return nil },
}
