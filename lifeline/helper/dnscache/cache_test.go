package dnscache

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

var (
	pod    = netip.MustParseAddrPort("10.1.0.9:4000")
	server = netip.MustParseAddrPort("10.96.0.10:53")
	byUDP  = wire.Flow{Protocol: wire.UDP, Src: pod, Dst: server}
	byTCP  = wire.Flow{Protocol: wire.TCP, Src: pod, Dst: server}
)

// upstream answers with as many addresses as it is set to, or does not answer at all.
type upstream struct {
	mu    sync.Mutex
	asked int
	behavior
}

type behavior struct {
	ttl     uint32
	records int
	text    int // strings of 255 bytes in one more record
	rcode   dnsmessage.RCode
	soa     bool
	takes   time.Duration
	err     error
	silent  bool
}

func (u *upstream) ask(ctx context.Context, _ wire.Flow, msg []byte) ([]byte, error) {
	u.mu.Lock()
	u.asked++
	now := u.behavior
	u.mu.Unlock()
	if now.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(now.takes)
	if now.err != nil {
		return nil, now.err
	}
	return now.answer(msg)
}

func (u behavior) answer(msg []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(msg); err != nil {
		return nil, err
	}
	q := m.Questions[0]
	m.Response, m.RCode = true, u.rcode
	m.Additionals = []dnsmessage.Resource{opt(4096, false)}
	for i := range u.records {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: u.ttl},
			Body:   &dnsmessage.AResource{A: [4]byte{10, 244, byte(i >> 8), byte(i)}},
		})
	}
	if u.text > 0 {
		long := strings.Repeat("x", 255)
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: u.ttl},
			Body:   &dnsmessage.TXTResource{TXT: slices.Repeat([]string{long}, u.text)},
		})
	}
	if u.soa {
		zone := dnsmessage.MustNewName("cluster.local.")
		m.Authorities = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: zone, Class: q.Class, TTL: u.ttl},
			Body:   &dnsmessage.SOAResource{NS: zone, MBox: zone, MinTTL: u.ttl},
		}}
	}
	return m.Pack()
}

func (u *upstream) set(change func(u *behavior)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change(&u.behavior)
}

func (u *upstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked
}

// running returns a cache that asks u. It ends with the test.
func running(t *testing.T, u *upstream, stale time.Duration) *Cache {
	c := New(Config{Ask: u.ask, Stale: stale})
	stop := testutil.Go(t.Context(), c.Run)
	t.Cleanup(func() { _ = stop() })
	return c
}

func question(t *testing.T, name string, change ...func(*dnsmessage.Message)) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{
			Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
		}},
	}
	for _, f := range change {
		f(&m)
	}
	msg, err := m.Pack()
	testutil.Must(t, err)
	return msg
}

func withEDNS(size int, dnssecOK bool) func(*dnsmessage.Message) {
	return func(m *dnsmessage.Message) { m.Additionals = append(m.Additionals, opt(size, dnssecOK)) }
}

func ask(t *testing.T, c *Cache, f wire.Flow, msg []byte) dnsmessage.Message {
	t.Helper()
	got, err := c.Answer(t.Context(), f, msg, MaxMessage)
	testutil.Must(t, err)
	var m dnsmessage.Message
	testutil.Must(t, m.Unpack(got))
	return m
}

const noName = dnsmessage.RCodeNameError

// TestKept: how long each kind of answer is kept, and what of the question it depends on.
func TestKept(t *testing.T) {
	for name, test := range map[string]struct {
		up    behavior
		again []byte
		after time.Duration
		asked int
		ttl   uint32
	}{
		"fresh":               {up: behavior{records: 2, ttl: 30}, after: 29 * time.Second, asked: 1, ttl: 1},
		"expired":             {up: behavior{records: 2, ttl: 30}, after: 30 * time.Second, asked: 2, ttl: 30},
		"no longer than 30 s": {up: behavior{records: 1, ttl: 3600}, after: 30 * time.Second, asked: 2, ttl: 30},
		"its own TTL":         {up: behavior{records: 1, ttl: 5}, after: 5 * time.Second, asked: 2, ttl: 5},
		"TTL 0":               {up: behavior{records: 1}, asked: 2},
		"NXDOMAIN":            {up: behavior{rcode: noName, soa: true, ttl: 30}, after: 4 * time.Second, asked: 1},
		"NXDOMAIN, expired":   {up: behavior{rcode: noName, soa: true, ttl: 30}, after: 5 * time.Second, asked: 2},
		"no records":          {up: behavior{soa: true, ttl: 30}, after: 4 * time.Second, asked: 1},
		"no records, no SOA":  {up: behavior{}, asked: 2},
		"SERVFAIL":            {up: behavior{rcode: dnsmessage.RCodeServerFailure}, asked: 2},
		"spelled otherwise": {up: behavior{records: 1, ttl: 30}, asked: 1, ttl: 30,
			again: question(t, "WEB.shop.svc.")},
		"EDNS makes no change": {up: behavior{records: 1, ttl: 30}, asked: 1, ttl: 30,
			again: question(t, "web.shop.svc.", withEDNS(4096, false))},
		"DO makes one": {up: behavior{records: 1, ttl: 30}, asked: 2, ttl: 30,
			again: question(t, "web.shop.svc.", withEDNS(4096, true))},
		"another name": {up: behavior{records: 1, ttl: 30}, asked: 2, ttl: 30,
			again: question(t, "db.shop.svc.")},
		"another type": {up: behavior{records: 1, ttl: 30}, asked: 2, ttl: 30,
			again: question(t, "web.shop.svc.", func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeTXT })},
		"another class": {up: behavior{records: 1, ttl: 30}, asked: 2, ttl: 30,
			again: question(t, "web.shop.svc.", func(m *dnsmessage.Message) {
				m.Questions[0].Class = dnsmessage.ClassCHAOS
			})},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := &upstream{behavior: test.up}
				c := running(t, u, 0)
				first := question(t, "web.shop.svc.")
				ask(t, c, byUDP, first)
				time.Sleep(test.after)
				again := test.again
				if again == nil {
					again = first
				}
				m := ask(t, c, byUDP, again)
				if u.count() != test.asked {
					t.Errorf("the upstream was asked %d times, want %d", u.count(), test.asked)
				}
				if test.ttl != 0 && m.Answers[0].Header.TTL != test.ttl {
					t.Errorf("the TTL is %d, want %d", m.Answers[0].Header.TTL, test.ttl)
				}
				if m.ID != 7 || !m.Response || m.RCode != test.up.rcode || len(m.Answers) != test.up.records {
					t.Errorf("the answer is %+v", m)
				}
			})
		})
	}
}

// TestSpelling: an answer has the name as the client spells it, and an OPT record only for one that has sent one.
func TestSpelling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := running(t, &upstream{behavior: behavior{records: 1, ttl: 30}}, 0)
		ask(t, c, byUDP, question(t, "web.shop.svc.", withEDNS(4096, false)))
		m := ask(t, c, byUDP, question(t, "wEb.SHOP.svc."))
		if q, a := m.Questions[0].Name.String(), m.Answers[0].Header.Name.String(); q != "wEb.SHOP.svc." || a != q {
			t.Errorf("the question is %s, the answer %s", q, a)
		}
		if len(m.Additionals) != 0 {
			t.Errorf("a client without EDNS got %v", m.Additionals)
		}
		if m := ask(t, c, byUDP, question(t, "web.shop.svc.", withEDNS(4096, false))); len(m.Additionals) != 1 {
			t.Errorf("a client with EDNS got %v", m.Additionals)
		}
	})
}

// TestTruncated: an answer fits what the client takes, with as many records as fit, and says so.
func TestTruncated(t *testing.T) {
	for _, test := range []struct {
		flow      wire.Flow
		edns      int // 0: none
		records   int
		truncated bool
		most      int
	}{
		{byUDP, 0, 20, false, 512},
		{byUDP, 0, 100, true, 512},
		{byUDP, 100, 100, true, 512},
		{byUDP, 1232, 60, false, 1232},
		{byUDP, 1232, 1000, true, 1232},
		{byTCP, 0, 1000, false, MaxMessage},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := running(t, &upstream{behavior: behavior{records: test.records, ttl: 30}}, 0)
			msg := question(t, "web.shop.svc.")
			if test.edns > 0 {
				msg = question(t, "web.shop.svc.", withEDNS(test.edns, false))
			}
			got, err := c.Answer(t.Context(), test.flow, msg, MaxMessage)
			testutil.Must(t, err)
			var m dnsmessage.Message
			testutil.Must(t, m.Unpack(got))
			if len(got) > test.most || m.Truncated != test.truncated || !test.truncated && len(m.Answers) != test.records {
				t.Errorf("%+v: %d bytes, truncated %v, %d records", test, len(got), m.Truncated, len(m.Answers))
			}
			if test.truncated && len(got) < test.most-16 {
				t.Errorf("%+v: only %d bytes: one more record fits", test, len(got))
			}
		})
	}
}

// TestSingleFlight: equal questions at the same time are one question to the upstream.
func TestSingleFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{behavior: behavior{records: 1, ttl: 30, takes: time.Second}}
		c := running(t, u, 0)
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				if m := ask(t, c, byUDP, question(t, []string{"a.svc.", "A.svc."}[i%2])); len(m.Answers) != 1 {
					t.Errorf("the answer has %d records", len(m.Answers))
				}
			})
		}
		all.Wait()
		if u.count() != 1 {
			t.Errorf("the upstream was asked %d times", u.count())
		}
	})
}

// TestStale: while the upstream is silent, what has expired is served for the stale time, and no longer. Only
// the first question after it fell silent waits.
func TestStale(t *testing.T) {
	const stale = time.Minute
	for name, down := range map[string]func(*behavior){
		"silent":  func(u *behavior) { u.silent = true },
		"refuses": func(u *behavior) { u.err = errors.New("no session") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := &upstream{behavior: behavior{records: 1, ttl: 30}}
				c := running(t, u, stale)
				msg := question(t, "web.shop.svc.")
				ask(t, c, byUDP, msg)
				time.Sleep(31 * time.Second)
				u.set(down)
				for i := range 3 {
					begin := time.Now()
					m := ask(t, c, byUDP, msg)
					most := time.Duration(0)
					if i == 0 && name == "silent" {
						most = patience
					}
					if took := time.Since(begin); took != most || len(m.Answers) != 1 || m.Answers[0].Header.TTL != 5 {
						t.Errorf("question %d: after %s: %+v", i, took, m)
					}
				}
				time.Sleep(stale)
				if m := ask(t, c, byUDP, msg); m.RCode != dnsmessage.RCodeServerFailure {
					t.Errorf("after the stale time: %+v", m)
				}
				u.set(func(u *behavior) { u.silent, u.err, u.records = false, nil, 2 })
				if m := ask(t, c, byUDP, msg); len(m.Answers) != 2 {
					t.Errorf("after the outage: %+v", m)
				}
			})
		})
	}
}

// TestRefresh: a stale answer is replaced as soon as the upstream answers again.
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{behavior: behavior{records: 1, ttl: 10}}
		c := running(t, u, time.Hour)
		msg := question(t, "web.shop.svc.")
		ask(t, c, byUDP, msg)
		time.Sleep(11 * time.Second)
		u.set(func(u *behavior) { u.silent = true })
		ask(t, c, byUDP, msg)
		time.Sleep(askTimeout)
		u.set(func(u *behavior) { u.silent, u.records = false, 2 })
		ask(t, c, byUDP, msg) // stale, and asks
		synctest.Wait()
		if m := ask(t, c, byUDP, msg); len(m.Answers) != 2 {
			t.Errorf("the answer is still %+v", m)
		}
	})
}

// TestBounds: neither answers nor questions that wait grow without limit.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{behavior: behavior{records: 1, ttl: 30}}
		c := running(t, u, time.Hour)
		for i := range maxAnswers + 10 {
			ask(t, c, byUDP, question(t, fmt.Sprintf("n%d.svc.", i)))
		}
		if n := len(c.answers); n != maxAnswers || c.recent.Len() != n {
			t.Errorf("%d answers are kept, %d in order", n, c.recent.Len())
		}
		before := u.count()
		ask(t, c, byUDP, question(t, fmt.Sprintf("n%d.svc.", maxAnswers)))
		if u.count() != before {
			t.Error("a recent answer was dropped")
		}
		u.set(func(u *behavior) { u.text = 240 })
		for i := range maxBytes/60_000 + 10 {
			ask(t, c, byTCP, question(t, fmt.Sprintf("large%d.svc.", i)))
		}
		sum := 0
		for e := c.recent.Front(); e != nil; e = e.Next() {
			sum += e.Value.(*entry).size()
		}
		if c.bytes > maxBytes || sum != c.bytes {
			t.Errorf("%d bytes are counted, and %d are kept", c.bytes, sum)
		}
		u.set(func(u *behavior) { u.silent = true })
		for i := range maxAsked {
			go func() { _, _ = c.Answer(t.Context(), byUDP, question(t, fmt.Sprintf("w%d.svc.", i)), MaxMessage) }()
		}
		synctest.Wait()
		begin := time.Now()
		m := ask(t, c, byUDP, question(t, "one.more."))
		if m.RCode != dnsmessage.RCodeServerFailure || time.Since(begin) != 0 {
			t.Errorf("one question more: after %s, %+v", time.Since(begin), m)
		}
	})
}

// TestUnanswerable: what is no question of one kind is refused, without the upstream.
func TestUnanswerable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstream{behavior: behavior{records: 1, ttl: 30}}
		c := running(t, u, 0)
		for name, test := range map[string]struct {
			change func(*dnsmessage.Message)
			rcode  dnsmessage.RCode
		}{
			"another opcode": {func(m *dnsmessage.Message) { m.OpCode = 4 }, dnsmessage.RCodeNotImplemented},
			"a transfer": {func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeAXFR },
				dnsmessage.RCodeNotImplemented},
			"no question": {func(m *dnsmessage.Message) { m.Questions = nil }, dnsmessage.RCodeFormatError},
			"two questions": {func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) },
				dnsmessage.RCodeFormatError},
		} {
			if m := ask(t, c, byUDP, question(t, "web.shop.svc.", test.change)); m.RCode != test.rcode || m.ID != 7 {
				t.Errorf("%s: %+v", name, m)
			}
		}
		for name, msg := range map[string][]byte{
			"an answer": question(t, "web.shop.svc.", func(m *dnsmessage.Message) { m.Response = true }),
			"too short": {1, 2, 3},
		} {
			if got, err := c.Answer(t.Context(), byUDP, msg, MaxMessage); !errors.Is(err, errNoQuery) {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if u.count() != 0 {
			t.Errorf("the upstream was asked %d times", u.count())
		}
	})
}
