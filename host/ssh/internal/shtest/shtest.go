// Package shtest is a transport to the local host for the tests of host/ssh: sessions are
// processes of a local sh, and no sshd is needed.
package shtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"github.com/pkg/sftp"

	"github.com/bowline-k8s/bowline/host/ssh/link"
)

// SFTPServer is OpenSSH's. If it is missing, pkg/sftp serves in this process.
const SFTPServer = "/usr/lib/openssh/sftp-server"

// Transport starts local processes. It has the methods of ssh.Transport.
type Transport struct {
	// Shell is the login shell; /bin/sh by default.
	Shell []string
	// NoSFTP refuses the subsystem, like an sshd without one.
	NoSFTP bool
	// DieWithUs kills everything in the sessions when this process is killed, for a test of
	// killed scripts. (Over SSH a request that was sent continues.) It needs root; without root
	// nothing is killed.
	DieWithUs bool

	mu       sync.Mutex
	sessions []*Session
}

// Start runs the command line in a shell.
func (t *Transport) Start(ctx context.Context, command string) (link.Session, error) {
	argv := append([]string(nil), t.Shell...)
	if argv == nil {
		argv = []string{"/bin/sh"}
	}
	return t.start(ctx, append(argv, "-c", command)...)
}

// StartBulk is Start: there is no connection.
func (t *Transport) StartBulk(ctx context.Context, command string) (link.Session, error) {
	return t.Start(ctx, command)
}

// Subsystem supports "sftp".
func (t *Transport) Subsystem(ctx context.Context, name string) (link.Session, error) {
	if name != "sftp" || t.NoSFTP {
		return nil, fmt.Errorf("subsystem %s: request failed", name)
	}
	if _, err := os.Stat(SFTPServer); err != nil {
		return serveSFTP()
	}
	return t.start(ctx, SFTPServer)
}

func (t *Transport) start(ctx context.Context, argv ...string) (*Session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	var ours, theirs [3]*os.File
	for i := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		ours[i], theirs[i] = r, w
		if i == 0 {
			ours[i], theirs[i] = w, r
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	var err error
	if t.DieWithUs && os.Geteuid() == 0 {
		// The init of a PID namespace: when it ends, everything in the namespace does.
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL, Setsid: true}
		err = startForever(cmd)
	} else {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // as sshd does
		err = cmd.Start()
	}
	for _, f := range theirs {
		f.Close()
	}
	if err != nil {
		for _, f := range ours {
			f.Close()
		}
		return nil, err
	}
	s := &Session{in: ours[0], out: ours[1], err: ours[2], Process: cmd.Process, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		_ = cmd.Wait()
		s.code = cmd.ProcessState.ExitCode()
		if s.code < 0 {
			s.waitErr = errors.New(cmd.ProcessState.String())
		}
	}()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sessions = append(t.sessions, s)
	return s, nil
}

// startForever starts cmd from a thread that ends with this process, because the signal of
// Pdeathsig is sent when the thread ends.
func startForever(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		started <- cmd.Start()
		select {}
	}()
	return <-started
}

// Sessions returns all sessions that were started, including those that have ended.
func (t *Transport) Sessions() []*Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]*Session(nil), t.sessions...)
}

func (t *Transport) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

func (t *Transport) DialBulk(ctx context.Context, network, address string) (net.Conn, error) {
	return t.Dial(ctx, network, address)
}

func (t *Transport) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, network, address)
}

// Close closes every session.
func (t *Transport) Close() error {
	for _, s := range t.Sessions() {
		s.Close()
	}
	return nil
}

// Session is a local process.
type Session struct {
	Process *os.Process

	in, out, err *os.File
	done         chan struct{}
	code         int
	waitErr      error
	stop         func()
}

func (s *Session) Stdin() io.WriteCloser { return s.in }
func (s *Session) Stdout() io.Reader     { return s.out }
func (s *Session) Stderr() io.Reader     { return s.err }

// Done is closed when the process has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

func (s *Session) Wait() (int, error) {
	<-s.done
	return s.code, s.waitErr
}

// Close closes our ends of the pipes, as the end of a channel does.
func (s *Session) Close() error {
	s.in.Close()
	s.out.Close()
	s.err.Close()
	if s.stop != nil {
		s.stop()
	}
	return nil
}

// serveSFTP serves SFTP in this process.
func serveSFTP() (*Session, error) {
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	server, err := sftp.NewServer(struct {
		io.Reader
		io.WriteCloser
	}{inR, outW})
	if err != nil {
		return nil, err
	}
	s := &Session{in: inW, out: outR, err: errR, done: make(chan struct{}), stop: func() { server.Close() }}
	go func() {
		defer close(s.done)
		_ = server.Serve()
		inR.Close()
		errW.Close()
	}()
	return s, nil
}
