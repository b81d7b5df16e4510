package ssh

import (
	"bytes"
	"context"
	"io"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// answers are what a fuzzed SFTP server answers, in the order of the requests. Each begins with a
// byte: 0 for a packet with the request's id, of which the type, the number of bytes and the bytes
// follow; 1 for so many bytes that are no packet; any other for a true answer. Then the session ends.
type answers []byte

func (a *answers) take(n int) []byte {
	taken, rest := (*a)[:min(n, len(*a))], (*a)[min(n, len(*a)):]
	*a = rest
	return taken
}

// byte is zero at the end.
func (a *answers) byte() byte {
	if b := a.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (a *answers) next(byte) sshtest.SFTPLie {
	if len(*a) == 0 {
		return func(io.Writer, uint32) error { return io.EOF }
	}
	switch a.byte() {
	case 0:
		kind, size := a.byte(), a.byte()
		return sshtest.SFTPReply(kind, []byte(a.take(int(size))))
	case 1:
		data := a.take(int(a.byte()))
		return func(w io.Writer, _ uint32) error { _, err := w.Write(data); return err }
	}
	return nil
}

// FuzzSFTP reads a file with github.com/pkg/sftp, in all its goroutines: one that panics ends the
// target, as it would end the process. A panic that was recovered is a failure too, and so is a
// session or a goroutine that stays.
func FuzzSFTP(f *testing.F) {
	honest := []byte{2, 2, 2, 2, 2, 2, 2, 2}
	f.Add(honest)
	// Each request in turn is answered with each lie.
	for _, name := range slices.Sorted(maps.Keys(sshtest.SFTPLies)) {
		var wire bytes.Buffer
		_ = sshtest.SFTPLies[name](&wire, 0) // the error ends the session
		lie := []byte{1, byte(wire.Len())}
		if b := wire.Bytes(); len(b) >= 9 && bytes.Equal(b[5:9], make([]byte, 4)) {
			lie = []byte{0, b[4], byte(len(b) - 9)}
			wire.Next(9)
		}
		lie = append(lie, wire.Bytes()...)
		for before := range 6 {
			f.Add(slices.Concat(honest[:before], lie, honest))
		}
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			h, tr := liesAbout(t, state)
			left := answers(slices.Clone(data))
			tr.answers = left.next
			defer func() {
				if err := h.Close(); err != nil {
					t.Error(err)
				}
				if n := tr.open(); n != 0 || h.budget.Err() != nil {
					t.Errorf("%d sessions are open, and the account says %v", n, h.budget.Err())
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), shortDeadline)
			defer cancel()
			s, err := h.sftp(ctx)
			if err != nil || s == nil {
				return
			}
			opened, err := s.open(ctx, "/log")
			if err != nil {
				return
			}
			file := &sftpFile{h: h, client: s, f: opened, info: host.FileInfo{Name: "log"}}
			if info, err := file.Stat(); err == nil && info.Size < 0 {
				t.Errorf("%d bytes", info.Size)
			}
			buf := make([]byte, 64<<10)
			if n, err := file.ReadAt(buf, 0); n < 0 || n > len(buf) || err == nil && n < len(buf) {
				t.Errorf("%d bytes of %d, and %v", n, len(buf), err)
			}
			_ = file.Close() // it may say anything
		})
	})
}
