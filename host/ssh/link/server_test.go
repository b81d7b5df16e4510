package link

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// queue is one direction of a wire: it never blocks a writer.
type queue struct {
	mu    sync.Mutex
	cond  *sync.Cond
	data  []byte
	err   error // of readers, once data is read
	lossy bool  // written data is lost
}

func newQueue() *queue {
	q := &queue{}
	q.cond = sync.NewCond(&q.mu)
	return q
}

func (q *queue) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
		q.cond.Broadcast()
	}
}

// wire is a TCP connection in memory that can be cut or lose all data. It works in synctest,
// where net.Pipe does not: both ends of SSH write first.
type wire struct {
	in, out *queue
	started time.Time
}

func newWire() (near, far *wire) {
	a, b := newQueue(), newQueue()
	return &wire{a, b, time.Now()}, &wire{b, a, time.Now()}
}

// cut ends both directions, as a reset does.
func (w *wire) cut() {
	w.in.end(syscall.ECONNRESET)
	w.out.end(syscall.ECONNRESET)
}

// swallow makes the other end silent; neither end gets an error.
func (w *wire) swallow() {
	for _, q := range []*queue{w.in, w.out} {
		q.mu.Lock()
		q.lossy = true
		q.mu.Unlock()
	}
}

func (w *wire) Read(p []byte) (int, error) {
	q := w.in
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.data) == 0 {
		if q.err != nil {
			return 0, q.err
		}
		q.cond.Wait()
	}
	n := copy(p, q.data)
	q.data = q.data[n:]
	return n, nil
}

func (w *wire) Write(p []byte) (int, error) {
	q := w.out
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return 0, syscall.EPIPE
	}
	if !q.lossy {
		q.data = append(q.data, p...)
		q.cond.Broadcast()
	}
	return len(p), nil
}

func (w *wire) Close() error {
	w.in.end(net.ErrClosed)
	w.out.mu.Lock()
	lossy := w.out.lossy
	w.out.mu.Unlock()
	if !lossy {
		w.out.end(io.EOF)
	}
	return nil
}

func (w *wire) LocalAddr() net.Addr              { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1} }
func (w *wire) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 22} }
func (w *wire) SetDeadline(time.Time) error      { return nil }
func (w *wire) SetReadDeadline(time.Time) error  { return nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// lab is a host in memory at 10.0.0.7:22, and the network to it.
type lab struct {
	hostKey, userKey ed25519.PrivateKey
	server           *ssh.ServerConfig
	target           *endpoint.Target
	targetMu         sync.Mutex // held by an attempt

	another atomic.Pointer[ssh.ServerConfig] // of a host that answers in its place; nil: it answers itself
	down    atomic.Bool                      // the port refuses connections
	brief   atomic.Bool                      // connections end right after the login
	full    atomic.Bool                      // no further session is opened
	flight  atomic.Int32
	release chan struct{} // lets /slow be opened
	opened  chan ssh.Channel
	pipes   chan net.Conn // the remote ends of /pipe
	behind  *lab          // the host that this one is a jump host to
	conns   chan *ssh.ServerConn

	mu    sync.Mutex
	wires []*wire     // local ends, in the order they were made
	tries []time.Time // when a connection was requested
	most  int32       // the most attempts at the same time
}

func newLab(t *testing.T) *lab {
	t.Helper()
	b := &lab{hostKey: newKey(t), userKey: newKey(t), release: make(chan struct{}), opened: make(chan ssh.Channel, 10), pipes: make(chan net.Conn, 10), conns: make(chan *ssh.ServerConn, 100)}
	b.server = &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
		if string(k.Marshal()) == string(signer(t, b.userKey).PublicKey().Marshal()) {
			return nil, nil
		}
		return nil, errors.New("unknown key")
	}}
	b.server.AddHostKey(signer(t, b.hostKey))
	t.Cleanup(func() { // the remote end of a wire that loses data does not see its end
		for i := range b.wires {
			b.wire(i).cut()
		}
	})
	b.pin(t, b.hostKey)
	return b
}

func (b *lab) pin(t *testing.T, key ed25519.PrivateKey) {
	t.Helper()
	var err error
	b.target, err = endpoint.Resolve("ssh://root@10.0.0.7/run/cri.sock", endpoint.Options{
		Credentials: endpoint.Credentials{Key: privateKey(t, b.userKey)},
		HostKeys:    []string{string(ssh.MarshalAuthorizedKey(signer(t, key).PublicKey()))},
	})
	testutil.Must(t, err)
}

func (b *lab) dial(context.Context, string, string) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tries = append(b.tries, time.Now())
	if b.down.Load() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	near, far := newWire()
	b.wires = append(b.wires, near)
	go b.serve(far)
	return near, nil
}

// wire is the i-th connection.
func (b *lab) wire(i int) *wire {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wires[i]
}

func (b *lab) attempts() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]time.Time(nil), b.tries...)
}

// hook counts the attempts in progress.
func (b *lab) hook(ctx context.Context, label string, call func(context.Context) error) error {
	if label == "ssh/Connect" {
		b.mu.Lock()
		b.most = max(b.most, b.flight.Add(1))
		b.mu.Unlock()
		defer b.flight.Add(-1)
		b.targetMu.Lock()
		defer b.targetMu.Unlock()
	}
	return call(ctx)
}

func (b *lab) link(t *testing.T) *Link {
	t.Helper()
	l, err := New(Config{Target: b.target, Dial: b.dial, Hook: b.hook})
	testutil.Must(t, err)
	return l
}

// serve plays sshd.
func (b *lab) serve(raw net.Conn) {
	defer raw.Close()
	server := b.server
	if another := b.another.Load(); another != nil {
		server = another
	}
	conn, channels, requests, err := ssh.NewServerConn(raw, server)
	if err != nil || b.brief.Load() {
		return
	}
	select {
	case b.conns <- conn:
	default:
	}
	go func() {
		for r := range requests {
			r.Reply(r.Type == "tcpip-forward" || r.Type == "cancel-tcpip-forward", ssh.Marshal(struct{ Port uint32 }{7777}))
		}
	}()
	for c := range channels {
		go b.open(c)
	}
}

func (b *lab) open(c ssh.NewChannel) {
	var to struct {
		Path string
		Rest []byte `ssh:"rest"`
	}
	if c.ChannelType() == "direct-streamlocal@openssh.com" {
		ssh.Unmarshal(c.ExtraData(), &to)
	}
	if c.ChannelType() == "session" && b.full.Load() {
		c.Reject(ssh.ConnectionFailed, "open failed") // as sshd does
		return
	}
	switch to.Path {
	case "/slow":
		<-b.release
	case "/refused":
		c.Reject(ssh.ConnectionFailed, "Connection refused")
		return
	case "/failed":
		c.Reject(ssh.ConnectionFailed, "open failed")
		return
	case "/forbidden":
		c.Reject(ssh.Prohibited, "open failed")
		return
	}
	var next net.Conn
	if c.ChannelType() == "direct-tcpip" {
		var err error
		if b.behind == nil {
			c.Reject(ssh.Prohibited, "open failed")
			return
		} else if next, err = b.behind.dial(context.Background(), "tcp", ""); err != nil {
			c.Reject(ssh.ConnectionFailed, "Connection refused")
			return
		}
	}
	channel, requests, err := c.Accept()
	if err != nil {
		return
	}
	if next != nil {
		go ssh.DiscardRequests(requests)
		go func() { io.Copy(next, channel); next.Close() }()
		io.Copy(channel, next)
		channel.Close()
		return
	}
	switch to.Path {
	case "/slow":
		b.opened <- channel
	case "/pipe":
		go ssh.DiscardRequests(requests)
		same := func(err error) error { return err }
		b.pipes <- newConn(&channelConn{channel, &net.UnixAddr{}, &net.UnixAddr{}}, same, same)
		return
	case "/brief":
		channel.Close()
	case "/sink": // reads nothing
	default:
		go func() {
			io.Copy(channel, channel)
			channel.Close()
		}()
	}
	for r := range requests {
		r.Reply(r.Type == "exec", nil)
	}
}
