package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/google/nftables"

	"github.com/bowline-k8s/bowline/internal/netnstest"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/helper/rules"
	"github.com/bowline-k8s/bowline/lifeline/mux"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

// TestParse: what is wrong is one sentence, which names the flag.
func TestParse(t *testing.T) {
	for args, want := range map[string]string{
		"--socket /run/x/lifeline.sock":               "",
		"--socket /s --listen 127.0.0.1 --resume 30s": "",
		"":                                "--socket",
		"--socket lifeline.sock":          "--socket",
		"--socket /s --resume 0s":         "--resume",
		"--socket /s --resume 11m":        "--resume",
		"--socket /s --max-flows 0":       "--max-flows",
		"--socket /s --listen 10.0.0.300": "--listen",
		"--socket /s -v 11":               "-v",
		"--socket /s more":                "more",
		"--socket /s --unknown":           "unknown",
		"--socket relative --resume 1h --listen x --max-flows -1": "--max-flows",
	} {
		var stderr bytes.Buffer
		_, err := parse(strings.Fields(args), &stderr)
		if (err == nil) != (want == "") {
			t.Errorf("%s: %v", args, err)
		}
		if err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %q does not name %s in one line", args, err, want)
		}
	}
	if _, err := parse([]string{"--help"}, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
	var stderr bytes.Buffer
	if got := mainStatus(t.Context(), nil, &stderr); got != statusUsage || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("without flags: status %d, %q", got, stderr.String())
	}
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := listen(path)
	testutil.Must(t, err)
	info, err := os.Stat(path)
	testutil.Must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %o", info.Mode().Perm())
	}
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	testutil.Must(t, first.Close())
	second, err := listen(path)
	testutil.Must(t, err)
	testutil.Must(t, second.Close())
	testutil.Must(t, os.WriteFile(path, nil, 0o600))
	if _, err := listen(path); err == nil {
		t.Error("a file was replaced")
	}
}

// TestLean: the program is copied to hosts over the link, so it has no client of the API server.
func TestLean(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	testutil.Must(t, err)
	for path := range strings.FieldsSeq(string(out)) {
		for _, heavy := range []string{
			"k8s.io/client-go", "k8s.io/api", "k8s.io/apimachinery", "google.golang.org/grpc", "net/http",
		} {
			if path == heavy || strings.HasPrefix(path, heavy+"/") {
				t.Errorf("the program has %s", path)
			}
		}
	}
}

const isHelper = "BOWLINE_TEST_IS_HELPER"

// TestMain is the program itself in the process that a test starts for it.
func TestMain(m *testing.M) {
	if os.Getenv(isHelper) != "" {
		main()
	}
	os.Exit(m.Run())
}

// TestWhole: pods reach what the exit serves, through the program as it runs on a host; it leaves nothing
// behind, neither after SIGTERM nor after SIGKILL.
func TestWhole(t *testing.T) {
	if !netnstest.Apart(t) {
		return
	}
	pod, _ := netnstest.Host(t)
	socket := filepath.Join(t.TempDir(), "lifeline.sock")
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		cmd := exec.Command(os.Args[0], "--socket", socket)
		cmd.Env = append(os.Environ(), isHelper+"=yes")
		var log bytes.Buffer
		cmd.Stderr = &log
		testutil.Must(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		exit := dialed(t, socket)
		testutil.Must(t, exit.SetTable(wire.Table{
			Cluster:  []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/112")},
			Services: []wire.Service{{Protocol: wire.UDP, Address: netip.MustParseAddrPort("10.96.0.5:514")}},
		}))
		ready(t, exit)
		go echo(t.Context(), exit)
		for name, dial := range map[string]func(string, string) (net.Conn, error){"pod": pod.Dial, "host": net.Dial} {
			for _, to := range []string{"tcp 10.96.0.1:443", "tcp [fd00:96::1]:443", "udp 10.96.0.5:514"} {
				network, address, _ := strings.Cut(to, " ")
				c, err := dial(network, address)
				testutil.Must(t, err)
				testutil.Must(t, c.SetDeadline(time.Now().Add(30*time.Second)))
				_, err = io.WriteString(c, "hello")
				testutil.Must(t, err)
				b := make([]byte, 64)
				if n, err := c.Read(b); !strings.HasSuffix(string(b[:n]), "hello to "+address) {
					t.Errorf("%s to %s: %q, %v", name, to, b[:n], err)
				}
				c.Close()
			}
		}
		refused, err := pod.Dial("tcp", "10.96.0.1:81")
		testutil.Must(t, err)
		testutil.Must(t, refused.SetDeadline(time.Now().Add(30*time.Second)))
		if _, err := refused.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("a refused connection: %v", err)
		}
		open, err := pod.Dial("tcp", "10.96.0.1:443")
		testutil.Must(t, err)
		testutil.Must(t, open.SetDeadline(time.Now().Add(30*time.Second)))
		_, err = io.WriteString(open, "x")
		testutil.Must(t, err)
		_, err = open.Read(make([]byte, 64))
		testutil.Must(t, err)

		testutil.Must(t, cmd.Process.Signal(signal))
		err = cmd.Wait()
		if (err == nil) != (signal == unix.SIGTERM) {
			t.Errorf("after %s: %v\n%s", signal, err, log.String())
		}
		if signal == unix.SIGTERM {
			if _, err := open.Read(make([]byte, 64)); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("a connection at the end: %v", err)
			}
		}
		left := tables(t)
		if out, err := exec.Command("ip", "route", "show", "proto", "98").Output(); signal == unix.SIGTERM {
			testutil.Must(t, err)
			left = append(left, strings.Fields(string(out))...)
			if _, err := os.Lstat(socket); err == nil {
				left = append(left, socket)
			}
		}
		if len(left) > 0 {
			t.Errorf("%s leaves %v", signal, left)
		}
	}
}

func tables(t *testing.T) (found []string) {
	t.Helper()
	c, err := nftables.New()
	testutil.Must(t, err)
	all, err := c.ListTables()
	testutil.Must(t, err)
	for _, table := range all {
		if table.Name == rules.Table {
			found = append(found, table.Name)
		}
	}
	return slices.Clip(found)
}

// dialed returns the exit's end of a session with the program.
func dialed(t *testing.T, socket string) *mux.Session {
	t.Helper()
	s, err := mux.Client(mux.Config{Pipes: 2}, func(ctx context.Context, _ int) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	})
	testutil.Must(t, err)
	stop := testutil.Go(t.Context(), s.Run)
	t.Cleanup(func() { _ = stop() })
	return s
}

func ready(t *testing.T, exit wire.Session) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		status, err := exit.Status(ctx)
		testutil.Must(t, err)
		if status.Ready {
			return
		}
	}
}

// echo answers each flow and datagram with what it says, and to whom. It refuses port 81.
func echo(ctx context.Context, exit wire.Session) {
	go func() {
		for {
			d, err := exit.Receive(ctx)
			if err != nil {
				return
			}
			d.Payload = append(d.Payload, " to "+d.Flow.Dst.String()...)
			_ = exit.Send(d)
		}
	}()
	for {
		s, err := exit.Accept(ctx)
		if err != nil {
			return
		}
		if s.Flow().Dst.Port() == 81 {
			s.Reset(wire.Refused)
			continue
		}
		go func() {
			b := make([]byte, 64)
			n, _ := s.Read(b)
			_, _ = io.WriteString(s, string(b[:n])+" to "+s.Flow().Dst.String())
		}()
	}
}
