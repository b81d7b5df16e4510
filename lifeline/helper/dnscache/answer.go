package dnscache

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	longest  = 30 * time.Second // TTL of an answer, as in NodeLocal DNSCache
	negative = 5 * time.Second  // TTL of an answer that there is nothing, likewise
	staleTTL = 5 * time.Second  // that a client sees in a stale answer
)

// answer is what the upstream answered, without its OPT record.
type answer struct {
	packed []byte
	ttl    time.Duration // 0: it may only be served stale
	keep   bool          // false: it is for those who wait for it
}

// parseAnswer checks that msg answers the question of k, and says how long it may be kept.
func parseAnswer(k key, msg []byte) (answer, error) {
	var m dnsmessage.Message
	if err := m.Unpack(msg); err != nil {
		return answer{}, fmt.Errorf("parse the answer for %q: %w", k.name, err)
	}
	if !m.Response || len(m.Questions) != 1 || !k.asks(m.Questions[0]) {
		return answer{}, fmt.Errorf("the answer for %q is for another question", k.name)
	}
	extended := m.RCode
	m.Additionals = slices.DeleteFunc(m.Additionals, func(r dnsmessage.Resource) bool {
		if r.Header.Type != dnsmessage.TypeOPT {
			return false
		}
		extended = r.Header.ExtendedRCode(m.RCode)
		return true
	})
	if extended > 15 { // a code that only EDNS has, such as BADVERS
		m.RCode = dnsmessage.RCodeServerFailure
	}
	a := answer{}
	a.ttl, a.keep = lifetime(m)
	var err error
	a.packed, err = m.Pack()
	if err != nil {
		return answer{}, fmt.Errorf("pack the answer for %q: %w", k.name, err)
	}
	return a, nil
}

func (k key) asks(q dnsmessage.Question) bool {
	return lower(q.Name) == k.name && q.Type == k.kind && q.Class == k.class
}

// lifetime returns how long an answer is true, and whether it may be kept at all (RFC 2308 for answers that
// there is nothing).
func lifetime(m dnsmessage.Message) (ttl time.Duration, keep bool) {
	switch {
	case m.Truncated, m.RCode != dnsmessage.RCodeSuccess && m.RCode != dnsmessage.RCodeNameError:
		return 0, false
	case m.RCode == dnsmessage.RCodeSuccess && len(m.Answers) > 0:
		ttl = longest
		for _, r := range slices.Concat(m.Answers, m.Authorities, m.Additionals) {
			ttl = min(ttl, seconds(r.Header.TTL))
		}
		return ttl, true
	}
	for _, r := range m.Authorities {
		if soa, ok := r.Body.(*dnsmessage.SOAResource); ok {
			return min(negative, seconds(r.Header.TTL), seconds(soa.MinTTL)), true
		}
	}
	return 0, false
}

func seconds(ttl uint32) time.Duration { return time.Duration(ttl) * time.Second }

// reply answers q with a. age is how long ago a was given; stale, that it is no longer true for certain. limit
// is the most bytes that the reply may have. If it would have more, records are left out, and TC says so:
// the client asks again by TCP.
func (a answer) reply(q query, age time.Duration, stale bool, limit int) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(a.packed); err != nil {
		return nil, err
	}
	m.ID, m.RecursionDesired, m.CheckingDisabled = q.id, q.recurse, q.checkOff
	m.Questions = []dnsmessage.Question{{Name: q.name, Type: q.kind, Class: q.class}}
	for _, section := range [][]dnsmessage.Resource{m.Answers, m.Authorities, m.Additionals} {
		for i := range section {
			h := &section[i].Header
			left := min(seconds(h.TTL), longest) - age
			if stale {
				left = staleTTL
			}
			h.TTL = uint32(max(0, left) / time.Second)
			if lower(h.Name) == q.key.name {
				h.Name = q.name // some clients compare the spelling
			}
		}
	}
	return fit(m, q, limit)
}

// fit packs m in at most limit bytes.
func fit(m dnsmessage.Message, q query, limit int) ([]byte, error) {
	pack := func(m dnsmessage.Message) ([]byte, error) {
		if q.edns {
			m.Additionals = append(slices.Clip(m.Additionals), opt(ownUDP, q.dnssecOK))
		}
		return m.Pack()
	}
	packed, err := pack(m)
	if err != nil || len(packed) <= limit {
		return packed, err
	}
	m.Additionals = nil // leaving them out needs no TC (RFC 2181, section 9)
	if packed, err = pack(m); err != nil || len(packed) <= limit {
		return packed, err
	}
	// Some clients, such as musl's before 1.2.4, use what a truncated answer has.
	m.Truncated, m.Authorities = true, nil
	all := m.Answers
	var best []byte
	for low, high := 0, len(all); low <= high; {
		middle := (low + high) / 2
		m.Answers = all[:middle]
		packed, err := pack(m)
		if err != nil {
			return nil, err
		}
		if len(packed) <= limit {
			best, low = packed, middle+1
		} else {
			high = middle - 1
		}
	}
	if best == nil {
		return nil, errors.New("the question alone is larger than the answer may be")
	}
	return best, nil
}
