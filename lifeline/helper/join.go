package helper

import (
	"errors"
	"io"
	"net"
	"sync"

	"github.com/bowline-k8s/bowline/lifeline/wire"
)

const (
	small = 4 << 10  // bytes that an idle direction of a flow holds
	large = 64 << 10 // bytes while it is busy
)

var buffers = sync.Pool{New: func() any { return new([large]byte) }}

// end is one end of a flow.
type end interface {
	io.ReadWriteCloser
	CloseWrite() error
	// reset ends the flow at once, and lets the one at the other side know.
	reset()
}

// tcpEnd is a connection on this host.
type tcpEnd struct{ *net.TCPConn }

// reset closes the connection with RST instead of FIN.
func (e tcpEnd) reset() {
	_ = e.SetLinger(0)
	_ = e.Close()
}

// streamEnd is a flow to the exit.
type streamEnd struct{ wire.Stream }

func (e streamEnd) reset() { e.Reset(wire.Broken) }

// join copies between both ends until both directions have ended, and closes them. An end of one direction is
// passed on as such; a failure resets both ends, and is returned.
func join(a, b end) error {
	failed := make(chan error, 2)
	copyFrom := func(src, dst end) {
		err := pump(dst, src)
		if err == nil {
			err = dst.CloseWrite()
			if errors.Is(err, net.ErrClosed) || isNotConnected(err) {
				err = nil // the other direction has ended both
			}
		}
		if err != nil {
			a.reset()
			b.reset()
		}
		failed <- err
	}
	go copyFrom(a, b)
	copyFrom(b, a)
	err := errors.Join(<-failed, <-failed)
	return errors.Join(err, closeEnd(a), closeEnd(b))
}

func closeEnd(e end) error {
	if err := e.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// pump copies until the end of src. Between two connections of this host the kernel does it. Otherwise a
// direction holds a large buffer only while it fills it.
func pump(dst, src end) error {
	if from, ok := src.(tcpEnd); ok {
		if to, ok := dst.(tcpEnd); ok {
			_, err := io.Copy(to.TCPConn, from.TCPConn)
			return err
		}
	}
	idle := make([]byte, small)
	for {
		n, err := src.Read(idle)
		if n > 0 {
			if _, err := dst.Write(idle[:n]); err != nil {
				return err
			}
		}
		if n == small && err == nil {
			err = pumpBusy(dst, src)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// pumpBusy copies as long as much arrives at once.
func pumpBusy(dst, src end) error {
	buffer := buffers.Get().(*[large]byte)
	defer buffers.Put(buffer)
	for {
		n, err := src.Read(buffer[:])
		if n > 0 {
			if _, err := dst.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if err != nil || n < small {
			return err
		}
	}
}
