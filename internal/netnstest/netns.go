// Package netnstest gives a test a host of its own: a network namespace with a bridge, a pod on it, and a
// machine on the host's LAN.
package netnstest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

const (
	inside  = "BOWLINE_TEST_NETNS"
	atMost  = 5 * time.Minute  // that a test in a namespace takes on a loaded machine
	holding = 10 * time.Minute // that a namespace is held, if the test ends without removing it
)

// Apart runs the test that calls it in a second process, in a network namespace of its own. It reports whether
// this is that process; in the first one, the test has been run then. It skips the test without root.
func Apart(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		return true
	}
	_, err := exec.LookPath("ip")
	if err != nil || os.Getuid() != 0 || exec.Command("unshare", "-n", "true").Run() != nil {
		t.Skip("no network namespace without root, unshare and ip(8)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), atMost)
	defer cancel()
	cmd := exec.CommandContext(ctx,
		"unshare", "-n", os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.count", "1", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=yes")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// Addresses of the host and of what is connected to it.
const (
	HostOnBridge, HostOnBridge6 = "10.1.0.1", "fd00:1::1"
	PodAddress, PodAddress6     = "10.1.0.9", "fd00:1::9"
	HostOnLAN, HostOnLAN6       = "192.168.9.1", "fd00:9::1"
	LANAddress, LANAddress6     = "192.168.9.2", "fd00:9::2"
)

// Peer is a network namespace that a veth pair connects to the host's.
type Peer struct{ namespace *os.File }

// Host sets the namespace of the process up as a host, and returns a pod on its bridge and a machine on its
// LAN. Both have the host as their default route; the host has none.
func Host(t *testing.T) (pod, lan *Peer) {
	t.Helper()
	ip(t, "link set lo up", "link add bridge0 type bridge", "link set bridge0 up",
		"address add "+HostOnBridge+"/24 dev bridge0", "address add "+HostOnBridge6+"/64 dev bridge0 nodad")
	pod = peer(t, "pod", PodAddress, PodAddress6, HostOnBridge, HostOnBridge6)
	ip(t, "link set pod master bridge0")
	lan = peer(t, "eth0", LANAddress, LANAddress6, HostOnLAN, HostOnLAN6)
	ip(t, "address add "+HostOnLAN+"/24 dev eth0", "address add "+HostOnLAN6+"/64 dev eth0 nodad")
	return pod, lan
}

// peer makes a namespace, and a veth pair to it that is called device on this side.
func peer(t *testing.T, device, address, address6, gateway, gateway6 string) *Peer {
	t.Helper()
	holder := exec.Command("unshare", "-n", "sh", "-c", fmt.Sprintf("echo; exec sleep %d", int(holding.Seconds())))
	out, err := holder.StdoutPipe()
	testutil.Must(t, err)
	testutil.Must(t, holder.Start())
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	_, err = out.Read(make([]byte, 1)) // now it is in its namespace
	testutil.Must(t, err)
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid))
	testutil.Must(t, err)
	t.Cleanup(func() { namespace.Close() })
	p := &Peer{namespace}
	ip(t, fmt.Sprintf("link add %s type veth peer name eth1 netns %d", device, holder.Process.Pid),
		"link set "+device+" up")
	testutil.Must(t, p.Do(func() error {
		ip(t, "link set lo up", "address add "+address+"/24 dev eth1", "address add "+address6+"/64 dev eth1 nodad",
			"link set eth1 up", "route add default via "+gateway, "route add ::/0 via "+gateway6+" dev eth1")
		return nil
	}))
	return p
}

// ip runs commands of ip(8), in one process.
func ip(t *testing.T, commands ...string) {
	t.Helper()
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ip %q: %v %s", commands, err, out)
	}
}

// Do calls f on a thread in the namespace. Sockets that f makes stay there; f starts no goroutine.
func (p *Peer) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine unless it is back in its own namespace
		own, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		if err != nil {
			done <- err
			return
		}
		defer own.Close()
		if err := unix.Setns(int(p.namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		err = f()
		back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, back)
	}()
	return <-done
}

// Dial is net.Dialer.Dial in the namespace, with an address and not a name.
func (p *Peer) Dial(network, address string) (c net.Conn, err error) {
	err = p.Do(func() error {
		c, err = (&net.Dialer{Timeout: 3 * time.Second, FallbackDelay: -1}).Dial(network, address)
		return err
	})
	return c, err
}

// Listen listens in the namespace.
func (p *Peer) Listen(t *testing.T, network, address string) (l net.Listener) {
	t.Helper()
	testutil.Must(t, p.Do(func() (err error) {
		l, err = net.Listen(network, address)
		return err
	}))
	t.Cleanup(func() { l.Close() })
	return l
}

// ListenPacket listens for datagrams in the namespace.
func (p *Peer) ListenPacket(t *testing.T, network, address string) (c net.PacketConn) {
	t.Helper()
	testutil.Must(t, p.Do(func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return c
}
