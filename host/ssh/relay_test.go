package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/link/linktest"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

const relayPatience = time.Minute

// haveRelays are the relays that this host has in DefaultPath.
func haveRelays(t *testing.T) []relay {
	t.Helper()
	have := installedRelays(t)
	if len(have) == 0 {
		t.Skip("this machine has no relay")
	}
	return have
}

func installedRelays(t *testing.T) (have []relay) {
	t.Helper()
	for _, r := range relays {
		if err := exec.Command("/bin/sh", "-c", "PATH="+shell.DefaultPath+`; command -v "$1"`, "sh", r.name).Run(); err == nil {
			have = append(have, r)
		} else {
			t.Logf("not with %s: %v", r.name, err)
		}
	}
	return have
}

// listenUnix serves each connection with f.
func listenUnix(t *testing.T, f func(*net.UnixConn)) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "relay")
	testutil.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "it's a.sock")
	l, err := net.Listen("unix", socket)
	testutil.Must(t, err)
	testutil.Serve(t, l, func(c net.Conn) { f(c.(*net.UnixConn)) })
	return socket
}

func overSSHD(t *testing.T) Transport {
	t.Helper()
	return linktest.Run(t, sshtest.Run(t), link.Config{})
}

// TestRelays: data passes in both directions, with half-close, over a real sshd and over a local
// shell.
func TestRelays(t *testing.T) {
	have := haveRelays(t)
	body := bytes.Repeat([]byte("knots\x00\n"), 100_000)
	socket := listenUnix(t, func(c *net.UnixConn) { io.Copy(c, c) })
	for name, tr := range map[string]Transport{"sshd": overSSHD(t), "sh": &shtest.Transport{}} {
		for _, r := range have {
			if strings.Contains(socket, "'") && r.name != "python3" && r.name != "perl" {
				continue // these have their own address syntax
			}
			t.Run(name+"/"+r.name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), relayPatience)
				defer cancel()
				c, err := relayed(ctx, tr, r, false, socket, nil)
				testutil.Must(t, err)
				defer c.Close()
				testutil.Must(t, c.SetDeadline(time.Now().Add(relayPatience)))
				wrote := make(chan error, 1)
				go func() {
					_, err := c.Write(body)
					wrote <- errors.Join(err, c.(*relayConn).CloseWrite())
				}()
				got, err := io.ReadAll(c)
				if err != nil || !bytes.Equal(got, body) {
					t.Errorf("%d bytes came back as %d, %v", len(body), len(got), err)
				}
				if err := <-wrote; err != nil {
					t.Error(err)
				}
				testutil.Must(t, c.SetReadDeadline(time.Now().Add(-time.Second)))
				c2, err := relayed(ctx, tr, r, false, socket, nil)
				testutil.Must(t, err)
				defer c2.Close()
				testutil.Must(t, c2.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
				if _, err := c2.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("a read past its deadline: %v", err)
				}
				_, err = relayed(ctx, tr, r, false, socket+".not", nil)
				if !errors.Is(err, os.ErrNotExist) || errors.Is(err, host.ErrUnreachable) {
					t.Errorf("a socket that is not there: %v", err)
				}
			})
		}
	}
}

// TestBusyShellsLeaveSessions: while every shell of a host is busy, there are sessions for its lock and for
// the connections to its runtime. sshd allows ten by default.
func TestBusyShellsLeaveSessions(t *testing.T) {
	socket := listenUnix(t, func(c *net.UnixConn) { io.Copy(io.Discard, c) })
	shells := map[string]int{"": shell.MaxShells}
	if have := installedRelays(t); len(have) > 0 {
		shells[have[0].name] = relayShells
	}
	for name, want := range shells {
		t.Run("relay "+name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), relayPatience)
			h, err := New(ctx, Config{Name: "busy.example", Transport: overSSHD(t), Relay: name})
			testutil.Must(t, err)
			dir := t.TempDir()
			var all sync.WaitGroup
			defer func() {
				cancel()
				all.Wait()
				testutil.Must(t, h.Close())
			}()
			for range shell.MaxShells + 2 {
				all.Go(func() {
					// It ends when the request is given up.
					_, _ = h.Run(ctx, host.Command{Args: []string{"/bin/sh", "-c", `: >"$0/$$"; exec sleep 60`, dir}, Timeout: relayPatience})
				})
			}
			busy := func() int {
				list, err := os.ReadDir(dir)
				testutil.Must(t, err)
				return len(list)
			}
			testutil.Eventually(t, "all shells are busy", func() bool { return busy() == want })
			lock, err := h.Lock(ctx, filepath.Join(t.TempDir(), "lock"), nil)
			testutil.Must(t, err)
			defer lock.Close()
			for range 4 {
				c, err := h.Dial(ctx, "unix", socket)
				testutil.Must(t, err)
				defer c.Close()
			}
			if n := busy(); n != want {
				t.Errorf("%d shells, want %d", n, want)
			}
		})
	}
}

// TestRelayConn: a relay behaves as a net.Conn must.
func TestRelayConn(t *testing.T) {
	tr := overSSHD(t)
	for _, r := range haveRelays(t) {
		if r.name != "python3" && r.name != "perl" {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				far := make(chan *net.UnixConn, 1)
				ended := make(chan struct{})
				socket := listenUnix(t, func(c *net.UnixConn) { far <- c; <-ended })
				ctx, cancel := context.WithTimeout(t.Context(), relayPatience)
				defer cancel()
				if c1, err = relayed(ctx, tr, r, false, socket, nil); err != nil {
					return nil, nil, nil, err
				}
				c2 = <-far
				return c1, c2, func() { c1.Close(); c2.Close(); close(ended) }, nil
			})
		})
	}
}

// TestRelayIsTried: a relay is accepted only if the socket greets like gRPC and the relay ends.
func TestRelayIsTried(t *testing.T) {
	r := haveRelays(t)[0]
	tr := &shtest.Transport{}
	settings := []byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	good := func(c *net.UnixConn) { c.Write(settings); io.Copy(io.Discard, c) }
	for name, tc := range map[string]struct {
		serve func(*net.UnixConn)
		relay relay
		fails string
	}{
		"gRPC":                {good, r, ""},
		"another server":      {func(c *net.UnixConn) { io.WriteString(c, "220 smtp.example ESMTP\r\n"); io.Copy(io.Discard, c) }, r, "no HTTP/2"},
		"closed at once":      {func(c *net.UnixConn) {}, r, r.name},
		"no such program":     {good, relay{"gone", greet + "exec /no/such/program"}, "gone"},
		"a program that ends": {good, relay{"true", greet + "exec true"}, "true"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tryRelay(t.Context(), tr, tc.relay, false, listenUnix(t, tc.serve))
			if (err != nil) != (tc.fails != "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestRightsByRelay: a login user with sudo who may not open the socket, on a stand-in for a
// host.
func TestRightsByRelay(t *testing.T) {
	r := haveRelays(t)[0]
	socket := listenUnix(t, func(c *net.UnixConn) {
		c.Write([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		io.Copy(io.Discard, c)
	})
	tr := &standIn{says: "uid 1000\nsudo\nhidden\nthere\ngroup root\n"}
	a, err := Rights(t.Context(), tr, "pi", socket)
	if err != nil || !a.Sudo || a.Relay != r.name {
		t.Errorf("got %+v, %v", a, err)
	}
	tr.none = true
	a, err = Rights(t.Context(), tr, "pi", socket)
	if err == nil || errors.Is(err, host.ErrUnreachable) || !strings.Contains(hint.Of(err), "install python3, perl or socat") || !strings.Contains(hint.Of(err), `"gid" under [grpc]`) || a != (Access{}) {
		t.Errorf("without a relay: %+v, %v", a, err)
	}
	tr.says, tr.none = "uid 1000\nsudo\nhidden\nthere\nopens\ngroup pi\n", false
	if a, err = Rights(t.Context(), tr, "pi", socket); err != nil || a != (Access{Sudo: true}) {
		t.Errorf("who may open it: %+v, %v", a, err)
	}
}

// standIn answers the script of Rights itself, and runs commands without sudo.
type standIn struct {
	shtest.Transport
	says string
	none bool // there is no relay
}

func (s *standIn) Start(ctx context.Context, command string) (link.Session, error) {
	if strings.Contains(command, "id -u") {
		return s.Transport.Start(ctx, fmt.Sprintf("printf '%s'", strings.ReplaceAll(s.says, "\n", `\n`)))
	}
	if s.none {
		return s.Transport.Start(ctx, "echo it is not here >&2; exit 127")
	}
	return s.Transport.Start(ctx, strings.Replace(command, "exec sudo -n ", "exec ", 1))
}
