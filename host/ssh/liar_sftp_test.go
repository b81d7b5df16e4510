package ssh

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// fileLiars are liars whose SFTP server has the content at each path, and lies when it is asked to.
type fileLiars struct {
	liars
	content []byte

	mu       sync.Mutex
	lies     map[byte]sshtest.SFTPLie           // by type of request
	answers  func(request byte) sshtest.SFTPLie // if set, instead of lies
	sessions []*liar                            // of SFTP
}

func (t *fileLiars) lie(request byte) sshtest.SFTPLie {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.answers != nil {
		return t.answers(request)
	}
	return t.lies[request]
}

// tell makes the server lie in these requests only.
func (t *fileLiars) tell(lies map[byte]sshtest.SFTPLie) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lies = lies
}

func (t *fileLiars) Subsystem(context.Context, string) (link.Session, error) {
	s := newLiar(func(in io.ReadCloser, out, _ io.Writer) error {
		w := newWindow(out)
		defer w.end()
		defer in.Close()
		return sshtest.LieSFTP(in, w, t.content, t.lie)
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sessions = append(t.sessions, s)
	return s, nil
}

// window takes what is written without waiting for its reader, as the window of an SSH channel does.
type window struct {
	data    chan []byte
	written chan struct{}
}

func newWindow(w io.Writer) *window {
	b := &window{data: make(chan []byte, 1000), written: make(chan struct{})}
	go func() {
		defer close(b.written)
		for data := range b.data {
			_, _ = w.Write(data)
		}
	}()
	return b
}

func (w *window) Write(p []byte) (int, error) { w.data <- bytes.Clone(p); return len(p), nil }
func (w *window) end()                        { close(w.data); <-w.written }

// open returns how many SFTP sessions are not closed.
func (t *fileLiars) open() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.sessions {
		select {
		case <-s.ended:
		default:
			n++
		}
	}
	return n
}

// fileState is the state of the file in the answers of the shells.
const fileState = "f 644 70000 1 1 0 0\x00name\x00\x00"

// liesAbout is a host that has one file and whose SFTP server lies. All of it must have ended when
// the test does.
func liesAbout(t *testing.T, answer func(io.Writer) error) (*Host, *fileLiars) {
	tr := &fileLiars{content: bytes.Repeat([]byte("0123456789"), 7000), liars: liars{answer: answer}}
	h := hostileHost(tr, budget.New(budget.Limits{}))
	h.found.Store(&found{findPrintf: true})
	t.Cleanup(func() { _ = h.Close() })
	return h, tr
}

func state(w io.Writer) error { _, err := io.WriteString(w, fileState); return err }

// readAll reads the file from the host, as a reader of logs does.
func readAll(ctx context.Context, h *Host) (err error) {
	f, err := h.Open(ctx, "/log")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	buf := make([]byte, 64<<10) // two packets
	n, err := f.ReadAt(buf, 0)
	if err == nil && (n != len(buf) || info.Size != 70000) {
		err = errShort
	}
	return err
}

var errShort = errors.New("a read without an error that is not complete")

// TestReadsOfSFTPRecover: while a read waits for an answer, the one goroutine of pkg/sftp itself is the
// one that takes packets from the session. What an answer says is read in goroutines of ours, which
// recover.
func TestReadsOfSFTPRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, tr := liesAbout(t, state)
		asked := make(chan struct{})
		var waits sync.WaitGroup
		tr.tell(map[byte]sshtest.SFTPLie{sshtest.SFTPRead: func(io.Writer, uint32) error { asked <- struct{}{}; return nil }})
		waits.Go(func() { _ = readAll(t.Context(), h) })
		<-asked
		<-asked // 64 KiB are two packets, and both are asked for at once
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		var own []string
		for _, line := range regexp.MustCompile(`created by (github\.com/pkg/sftp\S+)`).FindAllSubmatch(stacks, -1) {
			own = append(own, string(line[1]))
		}
		if want := []string{"github.com/pkg/sftp.newClientPipe"}; !slices.Equal(own, want) {
			t.Errorf("pkg/sftp has goroutines of %q, want %q", own, want)
		}
		waits.Wait()
	})
}

// TestSFTPServerWithoutData: data of no bytes, for ever, is no progress.
func TestSFTPServerWithoutData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, tr := liesAbout(t, state)
		tr.tell(map[byte]sshtest.SFTPLie{sshtest.SFTPRead: func(w io.Writer, id uint32) error {
			time.Sleep(time.Millisecond)
			return sshtest.SFTPReply(sshtest.SFTPData, "")(w, id)
		}})
		if err := readAll(t.Context(), h); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(time.Millisecond) // until the server sees the end of the session
	})
}

// TestMoreDataThanAskedFor: a read returns no more than it was asked for.
func TestMoreDataThanAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, tr := liesAbout(t, state)
		tr.tell(map[byte]sshtest.SFTPLie{sshtest.SFTPRead: sshtest.SFTPReply(sshtest.SFTPData, strings.Repeat("x", 200<<10))})
		testutil.Must(t, readAll(t.Context(), h))
	})
}

// TestReplacedFileOfALiar: the file that was replaced is closed within the deadline, too.
func TestReplacedFileOfALiar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inode := byte('0')
		h, tr := liesAbout(t, func(w io.Writer) error {
			inode++
			_, err := io.WriteString(w, "f 644 70000 "+string(inode)+" 1 0 0\x00name\x00\x00")
			return err
		})
		tr.tell(map[byte]sshtest.SFTPLie{sshtest.SFTPClose: sshtest.SFTPLies["nothing"]})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if f, err := h.Open(ctx, "/log"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", f, err)
		}
	})
}

// TestSFTPServerThatLies: whatever the server answers, the call returns an error of the host before
// its deadline, no session stays behind, and the next one is used.
func TestSFTPServerThatLies(t *testing.T) {
	for request, name := range map[byte]string{sshtest.SFTPOpen: "open", sshtest.SFTPFstat: "fstat", sshtest.SFTPRead: "read", sshtest.SFTPClose: "close"} {
		for what, lie := range sshtest.SFTPLies {
			if what == "a status of success" && request == sshtest.SFTPClose {
				continue // the truth
			}
			t.Run(name+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h, tr := liesAbout(t, state)
					tr.tell(map[byte]sshtest.SFTPLie{request: lie})
					began := time.Now()
					err := readAll(t.Context(), h)
					if err == nil || errors.Is(err, errShort) || !strings.Contains(err.Error(), "hostile: ") {
						t.Errorf("error %v does not name the host", err)
					}
					if took := time.Since(began); took > 2*shortDeadline {
						t.Errorf("it took %s", took)
					}
					if errors.Is(err, budget.ErrPanicked) || h.budget.Err() != nil {
						t.Errorf("error %v, and the account says %v", err, h.budget.Err())
					}
					tr.tell(nil)
					synctest.Wait() // a session that broke has ended
					if n := tr.open(); n > 1 {
						t.Errorf("%d sessions are open", n)
					}
					testutil.Must(t, readAll(t.Context(), h))
					if n := tr.open(); n != 1 {
						t.Errorf("%d sessions are open", n)
					}
				})
			})
		}
	}
}

// TestHandshakeOfALiar: without a handshake, commands read the file.
func TestHandshakeOfALiar(t *testing.T) {
	for what, lie := range sshtest.SFTPLies {
		switch what {
		case "a packet of 256 KiB that never comes", "nothing":
			continue // then Open has no time left for commands
		case "a second handshake":
			continue // the first one is true
		}
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, tr := liesAbout(t, state)
				tr.tell(map[byte]sshtest.SFTPLie{sshtest.SFTPInit: lie})
				f, err := h.Open(t.Context(), "/log")
				testutil.Must(t, err)
				if _, commands := f.(*rangeFile); !commands {
					t.Errorf("it is a %T", f)
				}
				if n := tr.open(); n != 0 {
					t.Errorf("%d sessions are open", n)
				}
			})
		})
	}
}
