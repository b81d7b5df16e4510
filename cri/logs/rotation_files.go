package logs

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/bowline-k8s/bowline/host"
)

// nothing stands for a file that was removed.
type nothing struct{}

func (nothing) ReadAt([]byte, int64) (int, error) { return 0, io.EOF }
func (nothing) Stat() (host.FileInfo, error)      { return host.FileInfo{}, fs.ErrNotExist }
func (nothing) Close() error                      { return nil }

// unpacked is a compressed file that can only be read forwards.
type unpacked struct {
	host.File
	z   *gzip.Reader
	pos int64
}

func unpack(f host.File, size int64) (*unpacked, error) {
	z, err := gzip.NewReader(&blocks{f: f, size: size})
	if err != nil {
		return nil, err
	}
	return &unpacked{File: f, z: z}, nil
}

func (u *unpacked) ReadAt(p []byte, off int64) (int, error) {
	if off < u.pos {
		return 0, fmt.Errorf("a compressed log is read forwards: %d after %d", off, u.pos)
	}
	n, err := io.CopyN(io.Discard, u.z, off-u.pos)
	u.pos += n
	if err != nil {
		return 0, err
	}
	m, err := io.ReadFull(u.z, p)
	u.pos += int64(m)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return m, err
}

// blocks reads a file in blocks of readBlock, one round trip each.
type blocks struct {
	f         host.File
	pos, size int64
	buf       []byte
}

func (b *blocks) Read(p []byte) (int, error) {
	if len(b.buf) == 0 {
		if b.pos >= b.size {
			return 0, io.EOF
		}
		buf := make([]byte, min(readBlock, b.size-b.pos))
		if err := readFull(b.f, buf, b.pos); err != nil {
			return 0, err
		}
		b.buf, b.pos = buf, b.pos+int64(len(buf))
	}
	n := copy(p, b.buf)
	b.buf = b.buf[n:]
	return n, nil
}
