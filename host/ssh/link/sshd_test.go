package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestSSHD(t *testing.T) {
	m := newMachine(t)
	echo(t, "unix", m.path("echo.sock"))
	tcp := echo(t, "tcp", "127.0.0.1:0").Addr().String()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	l := run(t, m.url, endpoint.Options{
		Credentials: endpoint.Credentials{KeyFile: m.path("key")},
		HostKeys:    []string{m.hostKey(t, "rsa")},
	})

	t.Run("dial", func(t *testing.T) {
		for _, dial := range []func(context.Context, string, string) (net.Conn, error){l.Dial, l.DialBulk} {
			for _, a := range [][2]string{{"unix", m.path("echo.sock")}, {"tcp", tcp}} {
				c, err := dial(ctx, a[0], a[1])
				testutil.Must(t, err)
				says(t, c, strings.Repeat("knots ", 50000))
				if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
					t.Error(err)
				}
				if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
					t.Errorf("%v: after the half-close: %d, %v", a, n, err)
				}
				c.Close()
			}
		}
	})
	t.Run("start", func(t *testing.T) {
		p, err := l.Start(ctx, "cat; echo bad >&2; exit 7")
		testutil.Must(t, err)
		defer p.Close()
		io.WriteString(p.Stdin(), "good")
		p.Stdin().Close()
		out, err1 := io.ReadAll(p.Stdout())
		errs, err2 := io.ReadAll(p.Stderr())
		code, err3 := p.Wait()
		if string(out) != "good" || string(errs) != "bad\n" || code != 7 || err1 != nil || err2 != nil || err3 != nil {
			t.Errorf("got %q, %q, %d, %v, %v, %v", out, errs, code, err1, err2, err3)
		}
		if p, err = l.Start(ctx, "kill -TERM $$"); err != nil {
			t.Fatal(err)
		}
		if code, err := p.Wait(); code != 143 || err != nil {
			t.Errorf("a program that SIGTERM ended: %d, %v", code, err)
		}
	})
	t.Run("close", func(t *testing.T) {
		p, err := l.Start(ctx, "trap '' HUP PIPE; exec sleep 2")
		testutil.Must(t, err)
		p.Close()
		if _, err := p.Wait(); err != net.ErrClosed {
			t.Errorf("Wait after Close: %v", err)
		}
		if _, err := p.Stdout().Read(make([]byte, 1)); err != net.ErrClosed {
			t.Errorf("Read after Close: %v", err)
		}
	})
	t.Run("sftp", func(t *testing.T) {
		p, err := l.Subsystem(ctx, "sftp")
		testutil.Must(t, err)
		defer p.Close()
		// The answer to SSH_FXP_INIT of version 3 is SSH_FXP_VERSION, type 2.
		p.Stdin().Write([]byte{0, 0, 0, 5, 1, 0, 0, 0, 3})
		got := make([]byte, 9)
		if _, err := io.ReadFull(p.Stdout(), got); err != nil || got[4] != 2 || got[8] != 3 {
			t.Errorf("got %v, %v", got, err)
		}
		if _, err := l.Subsystem(ctx, "gopher"); err == nil || strings.Contains(err.Error(), "no answer") {
			t.Errorf("an unknown subsystem: %v", err)
		}
	})
	t.Run("listen", func(t *testing.T) {
		for _, a := range [][2]string{{"tcp", "127.0.0.1:0"}, {"unix", m.path("reverse.sock")}} {
			ln, err := l.Listen(ctx, a[0], a[1])
			testutil.Must(t, err)
			c, err := net.Dial(a[0], ln.Addr().String())
			testutil.Must(t, err)
			far, err := ln.Accept()
			testutil.Must(t, err)
			go io.Copy(far, far)
			says(t, c, "hello")
			c.Close()
			far.Close()
			if err := ln.Close(); err != nil {
				t.Error(err)
			}
			if _, err := ln.Accept(); err != net.ErrClosed {
				t.Errorf("Accept after Close: %v", err)
			}
			if _, err := net.Dial(a[0], ln.Addr().String()); err == nil {
				t.Errorf("%v is still listened on", a)
			}
		}
	})
	t.Run("refused", func(t *testing.T) {
		for _, a := range [][2]string{{"unix", m.path("no.sock")}, {"tcp", "127.0.0.1:1"}} {
			_, err := l.Dial(ctx, a[0], a[1])
			t.Log(err)
			if err == nil {
				t.Errorf("%v answered", a)
			}
		}
		_, err := l.Listen(ctx, "tcp", tcp)
		t.Log(err)
		if err == nil {
			t.Error("a port that is taken was listened on")
		}
	})
	if s := l.State(); !s.Up || s.Err != nil {
		t.Errorf("the state is %+v", s)
	}
}

// TestSSHDGoes: an sshd process is killed, and another one is stopped: the kernel accepts data
// for that, but nothing answers.
func TestSSHDGoes(t *testing.T) {
	m := newMachine(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	target, err := endpoint.Resolve(m.url, endpoint.Options{Credentials: endpoint.Credentials{KeyFile: m.path("key")}, HostKeys: []string{m.hostKey(t, "ed25519")}})
	testutil.Must(t, err)
	l, err := New(Config{Target: target})
	testutil.Must(t, err)
	l.limits.interval, l.limits.silence = 200*time.Millisecond, time.Second
	start(t, l)
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		up(t, l)
		p, err := l.Start(ctx, "echo $PPID; exec cat")
		testutil.Must(t, err)
		defer p.Close()
		var sshd int
		if _, err := fmt.Fscan(p.Stdout(), &sshd); err != nil || sshd < 2 {
			t.Fatalf("the process of the connection is %d, %v", sshd, err)
		}
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", sshd)); err != nil || !strings.HasPrefix(string(comm), "sshd") {
			t.Fatalf("process %d is %q, %v", sshd, comm, err)
		}
		began := time.Now()
		testutil.Must(t, syscall.Kill(sshd, signal))
		code, err := p.Wait()
		if code != -1 || !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("%s: the program ended with %d, %v", signal, code, err)
		}
		if _, err := p.Stdout().Read(make([]byte, 1)); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("%s: a read gave %v", signal, err)
		}
		if p, err = l.Start(ctx, "exit 5"); err != nil {
			t.Fatal(err)
		}
		if code, err := p.Wait(); code != 5 || err != nil {
			t.Errorf("%s: the next program ended with %d, %v", signal, code, err)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("%s: it took %s", signal, took)
		}
		if signal == syscall.SIGSTOP {
			syscall.Kill(sshd, syscall.SIGKILL)
		}
	}
}

// TestSSHDIsFull: sshd refuses a session while the program of another one runs, even if that one was
// closed. The refusal lasts no longer than the program.
func TestSSHDIsFull(t *testing.T) {
	s := sshtest.Run(t, "MaxSessions 1")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l := run(t, s.URL("/run/cri.sock"), endpoint.Options{Credentials: endpoint.Credentials{KeyFile: s.KeyFile}, HostKeys: []string{s.HostKey}})
	givenUp, err := l.Start(ctx, "trap '' HUP PIPE; echo; exec sleep 1")
	testutil.Must(t, err)
	if _, err := givenUp.Stdout().Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	givenUp.Close()
	p, err := l.Start(ctx, "exit 5")
	testutil.Must(t, err)
	if code, err := p.Wait(); code != 5 || err != nil {
		t.Errorf("the program ended with %d, %v", code, err)
	}
}

// TestOnly: a call for one connection uses no other, neither when it has waited nor on an
// earlier session.
func TestOnly(t *testing.T) {
	m := newMachine(t)
	echo(t, "unix", m.path("echo.sock"))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	target, err := endpoint.Resolve(m.url, endpoint.Options{Credentials: endpoint.Credentials{KeyFile: m.path("key")}, HostKeys: []string{m.hostKey(t, "ed25519")}})
	testutil.Must(t, err)
	l, err := New(Config{Target: target, Wait: time.Minute, MaxDelay: 10 * time.Millisecond})
	testutil.Must(t, err)
	start(t, l)
	up(t, l)
	first := l.State().Connection
	calls := func(what string, ctx context.Context, allowed bool) {
		t.Helper()
		for name, call := range map[string]func() (io.Closer, error){
			"dial":     func() (io.Closer, error) { return l.Dial(ctx, "unix", m.path("echo.sock")) },
			"bulk":     func() (io.Closer, error) { return l.DialBulk(ctx, "unix", m.path("echo.sock")) },
			"start":    func() (io.Closer, error) { return l.Start(ctx, "exit 0") },
			"listener": func() (io.Closer, error) { return l.Listen(ctx, "tcp", "127.0.0.1:0") },
		} {
			c, err := call()
			if (err == nil) != allowed || err != nil && !errors.Is(err, host.ErrUnreachable) {
				t.Errorf("%s, %s: %v", what, name, err)
			}
			if err == nil {
				c.Close()
			}
		}
	}
	calls("the connection", Only(ctx, first), true)
	p, err := l.Start(ctx, "echo $PPID; exec cat")
	testutil.Must(t, err)
	defer p.Close()
	if err := errors.Join(Allows(ctx, p), Allows(Only(ctx, first), p)); err != nil {
		t.Error(err)
	}
	if err := Allows(Only(ctx, first+1), p); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("a session of another connection: %v", err)
	}
	var sshd int
	if _, err := fmt.Fscan(p.Stdout(), &sshd); err != nil || sshd < 2 {
		t.Fatalf("the process of the connection is %d, %v", sshd, err)
	}
	testutil.Must(t, syscall.Kill(sshd, syscall.SIGKILL))
	p.Wait()
	calls("when it has gone", Only(ctx, first), false)
	calls("any", ctx, true)
	if now := l.State().Connection; now <= first {
		t.Errorf("the connection after %d is %d", first, now)
	}
	calls("when there is another", Only(ctx, first), false)
	calls("that one", Only(ctx, l.State().Connection), true)
}

// TestSSHDCarries sends gRPC, as the CRI uses it, and HTTP, as probes do, over the link.
func TestSSHDCarries(t *testing.T) {
	m := newMachine(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	listen := func(name string) net.Listener {
		ln, err := net.Listen("unix", m.path(name))
		testutil.Must(t, err)
		return ln
	}
	g := grpc.NewServer()
	healthpb.RegisterHealthServer(g, health.NewServer())
	go g.Serve(listen("grpc.sock"))
	defer g.Stop()
	h := &http.Server{ReadTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Write(body)
	})}
	go h.Serve(listen("http.sock"))
	defer h.Close()

	l := run(t, m.url, endpoint.Options{Credentials: endpoint.Credentials{KeyFile: m.path("key")}, HostKeys: []string{m.hostKey(t, "ed25519")}})
	cc, err := grpc.NewClient("passthrough:///machine", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.Dial(ctx, "unix", m.path("grpc.sock")) }))
	testutil.Must(t, err)
	defer cc.Close()
	for range 100 {
		if r, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
			t.Fatalf("got %v, %v", r, err)
		}
	}
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return l.DialBulk(ctx, "unix", m.path("http.sock"))
	}}}
	defer client.CloseIdleConnections()
	for _, size := range []int{0, 1, 100 << 10, 5 << 20} {
		body := bytes.Repeat([]byte("x"), size)
		r, err := client.Post("http://machine/", "text/plain", bytes.NewReader(body))
		testutil.Must(t, err)
		got, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d bytes came back as %d, %v", size, len(got), err)
		}
	}
}
