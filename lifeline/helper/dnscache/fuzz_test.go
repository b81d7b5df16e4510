package dnscache

import (
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// FuzzParseQuery: a query that can be answered keeps its question on the way to the upstream, and a failure
// is an answer to it.
func FuzzParseQuery(f *testing.F) {
	f.Add([]byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x03WEB\x03svc\x00\x00\x01\x00\x01" +
		"\x00\x00\x29\x10\x00\x00\x00\x80\x00\x00\x00"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, msg []byte) {
		q, rcode, err := parseQuery(msg)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		failed, err := q.failure(dnsmessage.RCodeServerFailure)
		testutil.Must(t, err)
		testutil.Must(t, m.Unpack(failed))
		if m.ID != q.id || !m.Response {
			t.Errorf("the failure is %+v", m)
		}
		if rcode != dnsmessage.RCodeSuccess {
			return
		}
		up, err := q.key.message(q.name)
		testutil.Must(t, err)
		again, rcode, err := parseQuery(up)
		if err != nil || rcode != dnsmessage.RCodeSuccess || again.key != q.key {
			t.Errorf("the upstream is asked %+v for %+v: %v %v", again.key, q.key, rcode, err)
		}
	})
}

// FuzzParseAnswer: an answer fits the limit, keeps its question, and has no TTL above the limit.
func FuzzParseAnswer(f *testing.F) {
	f.Add([]byte("\x00\x00\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00\x03web\x03svc\x00\x00\x01\x00\x01"+
		"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x1e\x00\x04\x0a\x01\x02\x03"), 512, int64(time.Second), false)
	f.Add([]byte("\x00\x00\x81\x83\x00\x01\x00\x00\x00\x01\x00\x00\x03web\x03svc\x00\x00\x01\x00\x01"+
		"\x03svc\x00\x00\x06\x00\x01\x00\x00\x00\x1e\x00\x1a\x01a\x00\x01b\x00"+
		"\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00\x05"),
		1232, int64(time.Minute), true)
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, msg []byte, limit int, age int64, stale bool) {
		name := dnsmessage.MustNewName("wEb.svc.")
		k := key{name: "web.svc.", kind: dnsmessage.TypeA, class: dnsmessage.ClassINET}
		q := query{key: k, id: 9, name: name, edns: stale}
		a, err := parseAnswer(q.key, msg)
		if err != nil {
			return
		}
		if a.ttl > longest || a.ttl < 0 || a.ttl > 0 && !a.keep {
			t.Errorf("a TTL of %s", a.ttl)
		}
		limit = max(limit, plainUDP)
		got, err := a.reply(q, time.Duration(age), stale, limit)
		if err != nil {
			t.Fatalf("%x: %v", msg, err)
		}
		var m dnsmessage.Message
		testutil.Must(t, m.Unpack(got))
		if len(got) > limit || m.ID != 9 || len(m.Questions) != 1 || m.Questions[0].Name != name {
			t.Errorf("%d bytes: %+v", len(got), m)
		}
		for _, r := range m.Answers {
			if r.Header.TTL > 30 && age >= 0 {
				t.Errorf("a TTL of %d", r.Header.TTL)
			}
		}
	})
}
