package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// Open reads through SFTP. The SFTP server handles one request at a time, so Open opens only
// regular files with it, and checks the name before and after. If there is no SFTP, or it would
// run as another user than the commands, each read is a command that finds the file by its inode
// in the same directory.
func (h *Host) Open(ctx context.Context, p string) (host.File, error) {
	return call(h, ctx, "Open", shortDeadline, func(ctx context.Context) (host.File, error) {
		if err := machine.Absolute("open", p); err != nil {
			return nil, err
		}
		p = path.Clean(p)
		before, err := h.openable(ctx, p)
		if err != nil {
			return nil, err
		}
		client, err := h.sftp(ctx)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", p, err)
		}
		if client == nil {
			return &rangeFile{h: h, info: before, path: p}, nil
		}
		for range 3 {
			f, err := client.open(ctx, p)
			if err != nil {
				return nil, fmt.Errorf("open %s: %w", p, err)
			}
			after, err := h.openable(ctx, p)
			if err == nil && after.Inode == before.Inode && after.Device == before.Device {
				return &sftpFile{h: h, client: client, f: f, info: after}, nil
			}
			if err := errors.Join(err, client.closeFile(ctx, f)); err != nil {
				return nil, err
			}
			before = after // rotated between the checks
		}
		return nil, fmt.Errorf("open %s: it was replaced at each attempt", p)
	})
}

// openable returns the state of p, which must be a regular file.
func (h *Host) openable(ctx context.Context, p string) (host.FileInfo, error) {
	info, err := h.stat(ctx, p)
	if err == nil && !info.Mode.IsRegular() {
		err = fmt.Errorf("open %s: not a regular file (%s)", p, info.Mode.Type())
	}
	return info, err
}

// noSFTP is the pause before the next request to a host that refused the SFTP subsystem.
const noSFTP = time.Minute

// packet is the most that one request of SFTP reads; every server supports it. Of what pkg/sftp does
// with answers, only the loop that takes packets from the session runs in a goroutine of its own: it
// reads a length of at most 256 KiB, a type and an id. With a larger read, or with concurrent reads,
// it would start others, which no Recover of ours covers.
const packet = 32 << 10

// sftpClient is the one SFTP session of the host. It opens the session on demand, and opens another
// one after that broke.
type sftpClient struct {
	mu      sync.Mutex
	now     *sftpSession
	refused time.Time
	closed  bool
}

type sftpSession struct {
	budget  *budget.Account
	c       *sftp.Client
	session link.Session
	ended   chan struct{}
}

func (s *sftpSession) close() {
	s.session.Close()
	s.c.Close()
}

// errSuccess: pkg/sftp returns neither a result nor an error if the server answers a request for
// something with a status of success.
var errSuccess = errors.New("the SFTP server reports success without a result")

func (s *sftpSession) open(ctx context.Context, p string) (*sftp.File, error) {
	f, err := bounded(ctx, s, func() (*sftp.File, error) { return s.c.Open(p) })
	if err == nil && f == nil {
		err = errSuccess
	}
	return f, err
}

func (s *sftpSession) closeFile(ctx context.Context, f *sftp.File) error {
	if _, err := bounded(ctx, s, func() (struct{}, error) { return struct{}{}, f.Close() }); err != nil {
		return fmt.Errorf("close %s: %w", f.Name(), err)
	}
	return nil
}

func (c *sftpClient) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.now != nil {
		c.now.close()
		c.now = nil
	}
	return nil
}

// sftp returns nil without an error if commands must be used instead.
func (h *Host) sftp(ctx context.Context) (*sftpSession, error) {
	c := &h.files
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("the host is closed: %w", host.ErrUnreachable)
	}
	if c.now != nil {
		select {
		case <-c.now.ended:
			c.now = nil
		default:
			return c.now, nil
		}
	}
	if h.sudo || time.Since(c.refused) < noSFTP {
		return nil, nil
	}
	session, err := h.transport.Subsystem(ctx, "sftp")
	if err != nil {
		if errors.Is(err, host.ErrUnreachable) || ctx.Err() != nil {
			return nil, err
		}
		c.refused = time.Now()
		return nil, nil
	}
	drain(session, h.budget, "the SFTP server")
	type made struct {
		c   *sftp.Client
		err error
	}
	done := make(chan made, 1)
	h.budget.Go("the SFTP server", func() {
		m := made{err: budget.ErrPanicked}
		defer func() { done <- m }()
		m.c, m.err = sftp.NewClientPipe(session.Stdout(), session.Stdin(), sftp.MaxPacket(packet), sftp.UseConcurrentReads(false))
	})
	select {
	case m := <-done:
		if m.err != nil {
			// The program of the subsystem is missing, or is not an SFTP server.
			session.Close()
			c.refused = time.Now()
			return nil, nil
		}
		c.now = &sftpSession{c: m.c, session: session, budget: h.budget, ended: make(chan struct{})}
		s := c.now
		h.budget.Go("the SFTP server", func() {
			defer close(s.ended)
			_ = s.c.Wait()
			// Wait also returns when an answer breaks the protocol. The server may be running then,
			// and the channel would stay open beside that of the next session.
			s.session.Close()
		})
		return c.now, nil
	case <-ctx.Done():
		session.Close()
		return nil, ctx.Err()
	}
}

// bounded runs f in its own goroutine. A call that outlives ctx blocks the server, and so every
// other file: then bounded closes the session.
func bounded[T any](ctx context.Context, s *sftpSession, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	s.budget.Go("the SFTP server", func() {
		r := result{err: budget.ErrPanicked}
		defer func() { done <- r }()
		r.v, r.err = f()
	})
	select {
	case r := <-done:
		if errors.Is(r.err, sftp.ErrSSHFxConnectionLost) || errors.Is(r.err, io.ErrUnexpectedEOF) || errors.Is(r.err, io.ErrClosedPipe) {
			r.err = fmt.Errorf("%w: %w", host.ErrUnreachable, r.err)
		}
		return r.v, r.err
	case <-ctx.Done():
		s.session.Close()
		var zero T
		return zero, ctx.Err()
	}
}

// sftpFile reads under the hook, with a deadline for each read.
type sftpFile struct {
	h      *Host
	client *sftpSession
	f      *sftp.File
	info   host.FileInfo
}

// readAt is the result of one read.
type readAt struct {
	data []byte
	eof  bool
}

func (f *sftpFile) ReadAt(p []byte, off int64) (int, error) {
	r, err := call(f.h, context.Background(), "ReadAt", shortDeadline, func(ctx context.Context) (readAt, error) {
		// The read has its own buffer: after its deadline it must not write into p.
		return bounded(ctx, f.client, func() (readAt, error) { return f.read(make([]byte, len(p)), off) })
	})
	return r.copyTo(p, err)
}

// read asks for all packets at once, as pkg/sftp would, but in goroutines that recover: a panic in
// one of pkg/sftp's own would end the process.
func (f *sftpFile) read(buf []byte, off int64) (readAt, error) {
	parts := slices.Collect(slices.Chunk(buf, packet))
	sizes, errs := make([]int, len(parts)), make([]error, len(parts))
	var all sync.WaitGroup
	all.Add(len(parts))
	for i, part := range parts {
		errs[i] = budget.ErrPanicked
		f.client.budget.Go("the SFTP server", func() {
			defer all.Done()
			sizes[i], errs[i] = f.f.ReadAt(part, off+int64(i)*packet)
		})
	}
	all.Wait()
	n := 0
	for i, part := range parts {
		n += sizes[i]
		switch {
		case errors.Is(errs[i], io.EOF):
			return readAt{buf[:n], true}, nil
		case errs[i] != nil:
			return readAt{}, errs[i]
		case sizes[i] < len(part):
			return readAt{}, errSuccess
		}
	}
	return readAt{buf, false}, nil
}

func (r readAt) copyTo(p []byte, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n := copy(p, r.data)
	if r.eof {
		return n, io.EOF
	}
	return n, nil
}

func (f *sftpFile) Stat() (host.FileInfo, error) {
	return call(f.h, context.Background(), "StatOpen", shortDeadline, func(ctx context.Context) (host.FileInfo, error) {
		st, err := bounded(ctx, f.client, f.f.Stat)
		if err != nil {
			return host.FileInfo{}, err
		}
		if attrs, _ := st.Sys().(*sftp.FileStat); attrs == nil { // its methods would panic
			return host.FileInfo{}, fmt.Errorf("stat %s: %w", f.f.Name(), errSuccess)
		}
		if st.Size() < 0 { // it is unsigned on the wire
			return host.FileInfo{}, fmt.Errorf("stat %s: %d bytes", f.f.Name(), uint64(st.Size()))
		}
		i := f.info // an open file never changes its inode
		i.Mode, i.Size, i.Time = st.Mode(), st.Size(), st.ModTime()
		return i, nil
	})
}

func (f *sftpFile) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shortDeadline)
	defer cancel()
	if err := f.client.closeFile(ctx, f.f); err != nil {
		return fmt.Errorf("%s: %w", f.h.name, err)
	}
	return nil
}

// rangeFile reads with commands.
type rangeFile struct {
	h    *Host
	info host.FileInfo
	path string

	mu     sync.Mutex
	closed bool
}

func (f *rangeFile) args(more ...string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, &fs.PathError{Op: "read", Path: f.path, Err: fs.ErrClosed}
	}
	return append([]string{f.path, fmt.Sprint(f.info.Device), fmt.Sprint(f.info.Inode)}, more...), nil
}

func (f *rangeFile) ReadAt(p []byte, off int64) (int, error) {
	r, err := call(f.h, context.Background(), "ReadAt", shortDeadline, func(ctx context.Context) (readAt, error) {
		args, err := f.args(itoa(off), itoa(int64(len(p))))
		if err != nil || len(p) == 0 {
			return readAt{}, err
		}
		res, err := f.h.request(ctx, "read", f.path, shell.Request{Script: scriptReadRange, Args: args, MaxStdout: len(p)})
		return readAt{res.Stdout, len(res.Stdout) < len(p)}, err
	})
	return r.copyTo(p, err)
}

func (f *rangeFile) Stat() (host.FileInfo, error) {
	return call(f.h, context.Background(), "StatOpen", shortDeadline, func(ctx context.Context) (host.FileInfo, error) {
		args, err := f.args()
		if err != nil {
			return host.FileInfo{}, err
		}
		res, err := f.h.script(ctx, "stat", f.path, scriptStatOpen, args, nil)
		if err != nil {
			return host.FileInfo{}, err
		}
		i, err := parseState(strings.TrimSuffix(string(res.Stdout), "\n"))
		i.Name = f.info.Name
		return i, err
	})
}

func (f *rangeFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}
