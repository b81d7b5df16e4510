package rules

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/internal/netnstest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

var (
	services  = netip.MustParsePrefix("10.96.0.0/12")
	services6 = netip.MustParsePrefix("fd00:96::/112")
	pods      = netip.MustParsePrefix("10.1.0.0/16")
	dns       = netip.MustParseAddrPort("10.96.0.10:53")
	dns6      = netip.MustParseAddrPort("[fd00:96::a]:53")
)

// opened opens the rules of the host, and closes them with the test.
func opened(t *testing.T) *Rules {
	t.Helper()
	r, err := Open()
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, r.Close()) })
	return r
}

// listening starts a listener for each family and protocol, which answer with their own names, and returns what
// redirects to them.
func listening(t *testing.T) Wanted {
	t.Helper()
	tcp := func(network string) uint16 {
		l, err := net.Listen(network, ":0")
		testutil.Must(t, err)
		testutil.Serve(t, l, func(c net.Conn) { _, _ = io.WriteString(c, network) })
		return netip.MustParseAddrPort(l.Addr().String()).Port()
	}
	udp := func(network, address string) uint16 {
		c, err := net.ListenPacket(network, address)
		testutil.Must(t, err)
		t.Cleanup(func() { c.Close() })
		go func() {
			for {
				_, from, err := c.ReadFrom(make([]byte, 64))
				if err != nil {
					return
				}
				_, _ = c.WriteTo([]byte(network), from)
			}
		}()
		return netip.MustParseAddrPort(c.LocalAddr().String()).Port()
	}
	return Wanted{
		Cluster: []netip.Prefix{services, services6, netip.MustParsePrefix("10.0.0.0/8")}, Local: []netip.Prefix{pods},
		TCP4: tcp("tcp4"), TCP6: tcp("tcp6"),
		UDP: map[netip.AddrPort]uint16{
			// A datagram that is redirected goes to the address of the bridge.
			dns: udp("udp4", netnstest.HostOnBridge+":0"), dns6: udp("udp6", "["+netnstest.HostOnBridge6+"]:0"),
		},
	}
}

// answer returns what the one says that is reached at address, or "" if no one is.
func answer(c net.Conn, err error) string {
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := io.WriteString(c, "hello"); err != nil {
		return ""
	}
	b := make([]byte, 64)
	n, _ := c.Read(b)
	return string(b[:n])
}

// TestRedirect: what the pod sends to the cluster comes to the listeners, and nothing else does.
func TestRedirect(t *testing.T) {
	if !netnstest.Apart(t) {
		return
	}
	pod, lan := netnstest.Host(t)
	r := opened(t)
	w := listening(t)
	testutil.Must(t, r.Apply(w))
	local, err := net.Listen("tcp4", netnstest.HostOnBridge+":80")
	testutil.Must(t, err)
	testutil.Serve(t, local, func(c net.Conn) { _, _ = io.WriteString(c, "local") })
	own := net.Dialer{Timeout: 3 * time.Second}
	hosts := map[string]func(string, string) (net.Conn, error){"pod": pod.Dial, "host": own.Dial, "lan": lan.Dial}
	direct := func(address string, port uint16) string {
		return netip.AddrPortFrom(netip.MustParseAddr(address), port).String()
	}
	var all sync.WaitGroup
	defer all.Wait()
	for _, test := range []struct{ from, network, to, want string }{
		{"pod", "tcp", "10.96.0.1:443", "tcp4"},
		{"pod", "tcp", "[fd00:96::1]:443", "tcp6"},
		{"pod", "tcp", "10.200.3.4:8080", "tcp4"},
		{"host", "tcp", "10.96.0.1:443", "tcp4"},
		{"host", "tcp", "[fd00:96::1]:443", "tcp6"},
		{"pod", "udp", dns.String(), "udp4"},
		{"pod", "udp", dns6.String(), "udp6"},
		{"pod", "tcp", netnstest.HostOnBridge + ":80", "local"},    // in Local
		{"pod", "udp", "10.96.0.10:54", ""},                        // not in the map
		{"pod", "tcp", direct(netnstest.HostOnBridge, w.TCP4), ""}, // not redirected
		{"pod", "tcp", direct(netnstest.HostOnBridge6, w.TCP6), ""},
		{"lan", "tcp", direct(netnstest.HostOnLAN, w.TCP4), ""},
		{"lan", "tcp", direct(netnstest.HostOnLAN6, w.TCP6), ""},
		{"host", "tcp", direct("127.0.0.1", w.TCP4), ""},
		{"lan", "udp", direct(netnstest.HostOnBridge, w.UDP[dns]), ""},
		{"pod", "udp", direct(netnstest.HostOnBridge6, w.UDP[dns6]), ""},
	} {
		all.Go(func() { // what is dropped takes its whole time
			if got := answer(hosts[test.from](test.network, test.to)); got != test.want {
				t.Errorf("%s to %s %s: %q, want %q", test.from, test.network, test.to, got, test.want)
			}
		})
	}
}

// TestReplace: new rules replace the old ones, in a moment: of what is in both, no connection fails. Those that
// exist continue.
func TestReplace(t *testing.T) {
	if !netnstest.Apart(t) {
		return
	}
	pod, _ := netnstest.Host(t)
	r := opened(t)
	w := listening(t)
	echo, err := net.Listen("tcp4", ":0")
	testutil.Must(t, err)
	testutil.Serve(t, echo, func(c net.Conn) { _, _ = io.Copy(c, c) })
	w.TCP4 = netip.MustParseAddrPort(echo.Addr().String()).Port()
	testutil.Must(t, r.Apply(w))
	old, err := pod.Dial("tcp", "10.96.0.1:443")
	testutil.Must(t, err)

	ctx, failed := t.Context(), make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		for {
			c, err := pod.Dial("tcp", "10.96.0.2:443")
			if err != nil {
				failed <- err
				return
			}
			c.Close()
			select {
			case <-stop:
				failed <- nil
				return
			case <-ctx.Done():
				return
			default:
			}
		}
	}()
	narrow := w
	narrow.Cluster = []netip.Prefix{services}
	narrow.UDP = map[netip.AddrPort]uint16{netip.MustParseAddrPort("10.96.0.11:53"): w.UDP[dns]}
	for range 20 {
		testutil.Must(t, r.Apply(w))
		testutil.Must(t, r.Apply(narrow))
	}
	if got := answer(old, nil); got != "hello" {
		t.Errorf("the connection from before answers %q", got)
	}
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("a connection failed while rules were replaced: %v", err)
	}
	for _, test := range []struct{ network, to, want string }{
		{"tcp", "10.200.0.1:80", ""}, {"udp", dns.String(), ""},
		{"udp", "10.96.0.11:53", "udp4"}, {"tcp", "10.96.0.3:80", "hello"},
	} {
		if got := answer(pod.Dial(test.network, test.to)); got != test.want {
			t.Errorf("afterwards, %s %s answers %q, want %q", test.network, test.to, got, test.want)
		}
	}
}

// left returns the tables of this package that exist, and its routes.
func left(t *testing.T) (found []string) {
	t.Helper()
	c, err := nftables.New()
	testutil.Must(t, err)
	all, err := c.ListTables()
	testutil.Must(t, err)
	for _, table := range all {
		if table.Name == Table {
			found = append(found, "table")
		}
	}
	for _, family := range []string{"-4", "-6"} {
		out, err := exec.Command("ip", family, "route", "show", "proto", "98").Output()
		testutil.Must(t, err)
		for line := range strings.Lines(string(out)) {
			found = append(found, strings.Fields(line)[0])
		}
	}
	slices.Sort(found)
	return found
}

// TestClose: nothing is left after Close, and only prefixes without a route get one.
func TestClose(t *testing.T) {
	if !netnstest.Apart(t) {
		return
	}
	netnstest.Host(t)
	r, err := Open()
	testutil.Must(t, err)
	// The second one is for just a prefix that is wanted, and is kept as it is.
	for _, route := range []string{"blackhole 10.96.0.0/11", "unreachable 10.200.0.0/16"} {
		args := append([]string{"route", "add"}, strings.Fields(route)...)
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	w := Wanted{TCP4: 1, TCP6: 1, Cluster: []netip.Prefix{
		services, services6, netip.MustParsePrefix("192.168.9.0/25"), netip.MustParsePrefix("10.200.0.0/16")}}
	testutil.Must(t, r.Apply(w))
	if got, want := left(t), []string{"10.96.0.0/12", "fd00:96::/112", "table", "table"}; !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
	w.Cluster = w.Cluster[:1]
	testutil.Must(t, r.Apply(w))
	if got, want := left(t), []string{"10.96.0.0/12", "table", "table"}; !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
	testutil.Must(t, r.Close())
	if got := left(t); len(got) > 0 {
		t.Errorf("Close leaves %v", got)
	}
}

const holds = "BOWLINE_TEST_HOLDS_RULES"

// TestHold is the process that TestKill kills.
func TestHold(t *testing.T) {
	if os.Getenv(holds) == "" {
		t.Skip("no test by itself")
	}
	r, err := Open()
	testutil.Must(t, err)
	r.owned = os.Getenv(holds) == "owned"
	testutil.Must(t, r.Apply(Wanted{TCP4: 1, TCP6: 1, Cluster: []netip.Prefix{services, services6}}))
	_, _ = os.Stdout.WriteString("ready " + r.Kind() + "\n")
	select {}
}

// TestKill: after SIGKILL, the kernel has removed the tables, or the next Open does; and rules that another
// process owns are left alone.
func TestKill(t *testing.T) {
	if !netnstest.Apart(t) {
		return
	}
	netnstest.Host(t)
	for _, kind := range []string{"owned", "kept"} {
		holder := exec.Command(os.Args[0], "-test.run", "^TestHold$", "-test.count", "1")
		holder.Env = append(os.Environ(), holds+"="+kind)
		out, err := holder.StdoutPipe()
		testutil.Must(t, err)
		testutil.Must(t, holder.Start())
		t.Cleanup(func() { _ = holder.Process.Kill() })
		lines := bufio.NewScanner(out)
		for lines.Scan() && !strings.HasPrefix(lines.Text(), "ready") {
		}
		is := map[string]string{"owned": "ready nftables", "kept": "ready nftables, kept"}[kind]
		if lines.Text() != is {
			t.Fatalf("the process says %q", lines.Text())
		}
		if kind == "owned" {
			_, err := Open()
			var refused *Error
			if !errors.As(err, &refused) || refused.Reason != AnotherHelper {
				t.Errorf("beside another process: %v", err)
			}
		}
		testutil.Must(t, holder.Process.Signal(unix.SIGKILL))
		_ = holder.Wait()
		tables := strings.Count(strings.Join(left(t), " "), "table")
		if want := map[string]int{"owned": 0, "kept": 2}[kind]; tables != want {
			t.Errorf("%s: SIGKILL leaves %d tables, want %d", kind, tables, want)
		}
		r, err := Open()
		testutil.Must(t, err)
		if got := left(t); len(got) > 0 {
			t.Errorf("%s: the next Open leaves %v", kind, got)
		}
		testutil.Must(t, r.Close())
	}
}

// TestForget: an exchange that began before its destination was redirected is redirected from then on.
func TestForget(t *testing.T) {
	if !netnstest.Apart(t) {
		return
	}
	pod, _ := netnstest.Host(t)
	r := opened(t)
	w := listening(t)
	first := w
	first.UDP = nil
	testutil.Must(t, r.Apply(first))
	c, err := pod.Dial("udp", dns.String())
	testutil.Must(t, err)
	defer c.Close()
	said := func() string {
		_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond))
		_, _ = c.Write([]byte("hello"))
		b := make([]byte, 64)
		n, _ := c.Read(b)
		return string(b[:n])
	}
	if got := said(); got != "" {
		t.Fatalf("without rules, %q answers", got)
	}
	testutil.Must(t, r.Apply(w))
	testutil.Within(t, 10*time.Second, "an answer", func() bool { return said() == "udp4" })
}

// TestNotPermitted: without CAP_NET_ADMIN, the error says so.
func TestNotPermitted(t *testing.T) {
	if os.Getuid() != 0 {
		_, err := Open()
		var refused *Error
		if !errors.As(err, &refused) || refused.Reason != NotPermitted {
			t.Errorf("without root: %v", err)
		}
		return
	}
	err := explain("list the tables", unix.EPERM)
	if refused := err.(*Error); refused.Reason != NotPermitted || !errors.Is(err, unix.EPERM) {
		t.Errorf("got %v", err)
	}
}
