package helper

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/helper/rules"
	"github.com/bowline-k8s/bowline/lifeline/wire"
	"github.com/bowline-k8s/bowline/lifeline/wire/wiretest"
)

var syslog = netip.MustParseAddrPort("10.96.0.5:514")

func receiveAt(t *testing.T, exit wire.Session) wire.Datagram {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	d, err := exit.Receive(ctx)
	testutil.Must(t, err)
	return d
}

// TestDatagrams: an exchange with the exit, and one with a backend on this host, of the largest datagrams too.
func TestDatagrams(t *testing.T) {
	r := start(t)
	exit := r.attach(clusterTable(wire.Service{Protocol: wire.UDP, Address: syslog}))
	c := r.dialUDP(syslog)
	for _, size := range []int{0, 1, 65507} {
		sent := make([]byte, size)
		_, err := c.Write(sent)
		testutil.Must(t, err)
		d := receiveAt(t, exit)
		want := wire.Flow{Protocol: wire.UDP, Src: plain(c.LocalAddr()), Dst: syslog}
		if d.Flow != want || len(d.Payload) != size {
			t.Errorf("the exit receives %d bytes of %v, want %d of %v", len(d.Payload), d.Flow, size, want)
		}
		d.Payload = append(d.Payload, 'x')[:size]
		testutil.Must(t, exit.Send(d))
		if n, err := c.Read(make([]byte, 70000)); n != size || err != nil {
			t.Errorf("%d bytes come back of %d: %v", n, size, err)
		}
	}

	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	testutil.Must(t, err)
	t.Cleanup(func() { server.Close() })
	go func() {
		for {
			b := make([]byte, 64)
			n, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(append([]byte("local "), b[:n]...), from)
		}
	}()
	r.set(exit, clusterTable(servedAt(wire.UDP, syslog, plain(server.LocalAddr()))))
	exit.Close()
	local := r.dialUDP(syslog)
	for range 2 {
		_, err := local.Write([]byte("hello"))
		testutil.Must(t, err)
		says(t, local, "local hello")
	}
}

// TestExchangesEnd: when they are idle, and when the table changes; and there is a bound.
func TestExchangesEnd(t *testing.T) {
	var x exchanges
	now := time.Now()
	l := &udpListener{dst: syslog}
	for i := range MaxExchanges + 1 {
		flow := wire.Flow{Protocol: wire.UDP, Src: netip.AddrPortFrom(podAddress.Addr(), uint16(i+1)), Dst: syslog}
		if added := x.add(&exchange{flow: flow, via: l, used: now}); added != (i < MaxExchanges) {
			t.Fatalf("exchange %d: added %v", i, added)
		}
	}
	one := wire.Flow{Protocol: wire.UDP, Src: netip.AddrPortFrom(podAddress.Addr(), 1), Dst: syslog}
	x.get(one, now.Add(exchangeIdle))
	x.endWhere(func(e *exchange) bool { return now.Add(exchangeIdle).Sub(e.used) >= exchangeIdle })
	if x.count() != 1 || x.get(one, now) == nil {
		t.Errorf("%d exchanges are left", x.count())
	}

	b1, b2 := netip.MustParseAddrPort("10.1.0.1:514"), netip.MustParseAddrPort("10.1.0.2:514")
	table := func(backends ...netip.AddrPort) *routing {
		return newRouting(clusterTable(servedAt(wire.UDP, syslog, backends...)))
	}
	conn, none := &net.UDPConn{}, newRouting(clusterTable())
	with, without := map[netip.AddrPort]*udpListener{syslog: l}, map[netip.AddrPort]*udpListener{}
	for name, test := range map[string]struct {
		e         exchange
		r         *routing
		listeners map[netip.AddrPort]*udpListener
		want      bool
	}{
		"to the exit":         {exchange{flow: one, via: l}, table(), with, false},
		"a backend comes":     {exchange{flow: one, via: l}, table(b1), with, false},
		"same backend":        {exchange{flow: one, via: l, backend: conn, at: b1}, table(b1, b2), with, false},
		"backend is gone":     {exchange{flow: one, via: l, backend: conn, at: b1}, table(b2), with, true},
		"Service is gone":     {exchange{flow: one, via: l, backend: conn, at: b1}, none, with, true},
		"listener is gone":    {exchange{flow: one, via: l}, table(), without, true},
		"listener is another": {exchange{flow: one, via: &udpListener{}}, table(), with, true},
	} {
		if got := test.e.outdated(test.r, test.listeners); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func dnsQuestion(t *testing.T, name string) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{
			Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
		}},
	}
	msg, err := m.Pack()
	testutil.Must(t, err)
	return msg
}

// dnsAnswer answers a question with one address, for a second.
func dnsAnswer(t *testing.T, question []byte) []byte {
	t.Helper()
	var m dnsmessage.Message
	testutil.Must(t, m.Unpack(question))
	m.Response = true
	m.Answers = []dnsmessage.Resource{{
		Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 1},
		Body:   &dnsmessage.AResource{A: [4]byte{10, 96, 0, 7}},
	}}
	msg, err := m.Pack()
	testutil.Must(t, err)
	return msg
}

func checkAnswer(t *testing.T, msg []byte, rcode dnsmessage.RCode) {
	t.Helper()
	var m dnsmessage.Message
	testutil.Must(t, m.Unpack(msg))
	if m.ID != 7 || m.RCode != rcode || rcode == dnsmessage.RCodeSuccess && len(m.Answers) != 1 {
		t.Errorf("the answer is %+v", m)
	}
}

// TestDNS: a question goes to the exit once, by UDP and by TCP; without a session the answer is stale.
func TestDNS(t *testing.T) {
	r := start(t)
	exit := r.attach(clusterTable())
	byUDP, byTCP := r.dialUDP(dnsServer), r.dial(dnsServer)
	ask := func(name string) []byte {
		_, err := byUDP.Write(dnsQuestion(t, name))
		testutil.Must(t, err)
		b := make([]byte, 1500)
		n, err := byUDP.Read(b)
		testutil.Must(t, err)
		return b[:n]
	}
	asked := make(chan wire.Datagram, 10)
	answering := make(chan struct{})
	go func() {
		defer close(answering)
		for {
			d, err := exit.Receive(t.Context())
			if err != nil {
				return
			}
			asked <- d
			d.Payload = dnsAnswer(t, d.Payload)
			_ = exit.Send(d)
		}
	}()
	checkAnswer(t, ask("web.shop.svc.cluster.local."), dnsmessage.RCodeSuccess)
	want := wire.Flow{Protocol: wire.UDP, Src: plain(byUDP.LocalAddr()), Dst: dnsServer}
	if d := <-asked; d.Flow != want {
		t.Errorf("the exit is asked with %v, want %v", d.Flow, want)
	}
	_, err := byTCP.Write(withLength(dnsQuestion(t, "db.shop.svc.cluster.local.")))
	testutil.Must(t, err)
	msg, err := readMessage(byTCP)
	testutil.Must(t, err)
	checkAnswer(t, msg, dnsmessage.RCodeSuccess)
	if d := <-asked; d.Flow.Protocol != wire.UDP {
		t.Errorf("the exit is asked with %v", d.Flow)
	}
	exit.Close()
	<-answering
	testutil.Eventually(t, "the answer is stale", func() bool {
		msg := ask("web.shop.svc.cluster.local.")
		checkAnswer(t, msg, dnsmessage.RCodeSuccess)
		var m dnsmessage.Message
		testutil.Must(t, m.Unpack(msg))
		return m.Answers[0].Header.TTL > 1
	})
	checkAnswer(t, ask("new.shop.svc.cluster.local."), dnsmessage.RCodeServerFailure)
}

// TestLocalDNS: where a pod of the cluster's DNS runs on this host, it is asked.
func TestLocalDNS(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	testutil.Must(t, err)
	t.Cleanup(func() { server.Close() })
	go func() {
		b := make([]byte, 1500)
		n, from, err := server.ReadFrom(b)
		if err == nil {
			_, _ = server.WriteTo(dnsAnswer(t, b[:n]), from)
		}
	}()
	r := start(t)
	r.attach(clusterTable(servedAt(wire.UDP, dnsServer, plain(server.LocalAddr()))))
	c := r.dialUDP(dnsServer)
	_, err = c.Write(dnsQuestion(t, "web.shop.svc.cluster.local."))
	testutil.Must(t, err)
	b := make([]byte, 1500)
	n, err := c.Read(b)
	testutil.Must(t, err)
	checkAnswer(t, b[:n], dnsmessage.RCodeSuccess)
}

// TestTableChanges: listeners of destinations that stay are kept, others come and go.
func TestTableChanges(t *testing.T) {
	r := start(t)
	other := netip.MustParseAddrPort("10.96.0.6:514")
	exit := r.attach(clusterTable(servedAt(wire.UDP, syslog)))
	before := r.rules.now()
	r.set(exit, clusterTable(servedAt(wire.UDP, syslog), servedAt(wire.UDP, other)))
	after := r.rules.now()
	for _, stays := range []netip.AddrPort{syslog, dnsServer} {
		if after.UDP[stays] != before.UDP[stays] || after.UDP[stays] == 0 {
			t.Errorf("the port for %s was %d, and is %d", stays, before.UDP[stays], after.UDP[stays])
		}
	}
	if after.UDP[other] == 0 || after.TCP4 != before.TCP4 {
		t.Errorf("the ports were %v, and are %v", before, after)
	}
	r.set(exit, clusterTable())
	testutil.Eventually(t, "the listener is closed", func() bool {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(after.UDP[other])})
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// TestStatus: the exit learns whether the rules are in force, and why not.
func TestStatus(t *testing.T) {
	r := start(t)
	r.rules.fails = &rules.Error{Reason: rules.NATInUse, Err: errors.New("iptables has NAT rules")}
	helper, exit := wiretest.Pair()
	r.next <- helper
	wait := func(what string, is func(wire.Status) bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for {
			s, err := exit.Status(ctx)
			if err != nil {
				t.Fatalf("no status says that %s: %v", what, err)
			}
			if is(s) {
				return
			}
		}
	}
	wait("no table has arrived", func(s wire.Status) bool { return !s.Ready && s.Reason == "NoTable" })
	testutil.Must(t, exit.SetTable(clusterTable()))
	wait("NAT is in use", func(s wire.Status) bool { return !s.Ready && s.Reason == "NATInUse" && s.Message != "" })
	r.rules.mu.Lock()
	r.rules.fails = nil
	r.rules.mu.Unlock()
	wait("the rules are in force", func(s wire.Status) bool {
		return s.Ready && s.Reason == "" && s.Rules == "nftables"
	})
}
