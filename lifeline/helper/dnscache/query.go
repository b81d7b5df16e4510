package dnscache

import (
	"errors"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	plainUDP = 512  // bytes of an answer by UDP for a client that does not speak EDNS (RFC 1035)
	ownUDP   = 1232 // bytes that the upstream may send by UDP, as agreed on the DNS flag day 2020
)

// errNoQuery: the message deserves no answer.
var errNoQuery = errors.New("the message is no DNS query")

// key is all that an answer depends on. Who asks does not matter.
type key struct {
	name     string // in lower case
	kind     dnsmessage.Type
	class    dnsmessage.Class
	dnssecOK bool
	checkOff bool // CD: the client validates itself
	recurse  bool // RD
}

// query is a client's question.
type query struct {
	key
	id   uint16
	name dnsmessage.Name // as the client spells it
	edns bool
	size int // bytes of an answer by UDP
}

// parseQuery reads a client's question. For a query that cannot be answered the rcode is not Success; its id
// is set then, and its name where it could be read.
func parseQuery(msg []byte) (q query, rcode dnsmessage.RCode, err error) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response {
		return q, 0, errNoQuery
	}
	q = query{id: h.ID, size: plainUDP}
	q.recurse, q.checkOff = h.RecursionDesired, h.CheckingDisabled
	if h.OpCode != 0 {
		return q, dnsmessage.RCodeNotImplemented, nil
	}
	questions, err := p.AllQuestions()
	if err != nil || len(questions) != 1 {
		return q, dnsmessage.RCodeFormatError, nil
	}
	q.name, q.kind, q.class = questions[0].Name, questions[0].Type, questions[0].Class
	q.key.name = lower(q.name)
	if q.kind == dnsmessage.TypeAXFR || q.kind == typeIXFR {
		return q, dnsmessage.RCodeNotImplemented, nil // an answer of many messages
	}
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, dnsmessage.RCodeFormatError, nil
	}
	for {
		r, err := p.AdditionalHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return q, dnsmessage.RCodeSuccess, nil
		}
		if err != nil || p.SkipAdditional() != nil {
			return q, dnsmessage.RCodeFormatError, nil
		}
		if r.Type == dnsmessage.TypeOPT {
			q.edns, q.dnssecOK = true, r.DNSSECAllowed()
			q.size = max(plainUDP, int(r.Class))
		}
	}
}

const typeIXFR dnsmessage.Type = 251

// lower returns a name in lower case: that of ASCII alone, as other bytes of a name have none (RFC 4343).
func lower(name dnsmessage.Name) string {
	text := []byte(name.String())
	for i, b := range text {
		if 'A' <= b && b <= 'Z' {
			text[i] = b - 'A' + 'a'
		}
	}
	return string(text)
}

// message makes the query for the upstream. Its ID is 0: the one who sends it sets another.
func (k key) message(name dnsmessage.Name) ([]byte, error) {
	plain, err := dnsmessage.NewName(lower(name))
	if err != nil {
		return nil, err
	}
	msg := dnsmessage.Message{
		Header:      dnsmessage.Header{RecursionDesired: k.recurse, CheckingDisabled: k.checkOff},
		Questions:   []dnsmessage.Question{{Name: plain, Type: k.kind, Class: k.class}},
		Additionals: []dnsmessage.Resource{opt(ownUDP, k.dnssecOK)},
	}
	return msg.Pack()
}

// opt is the OPT record of a message of one who takes size bytes by UDP.
func opt(size int, dnssecOK bool) dnsmessage.Resource {
	r := dnsmessage.Resource{Body: &dnsmessage.OPTResource{}}
	// It only fails for sizes and codes beyond their fields.
	_ = r.Header.SetEDNS0(size, dnsmessage.RCodeSuccess, dnssecOK)
	return r
}

// failure answers a query with an rcode alone.
func (q query) failure(rcode dnsmessage.RCode) ([]byte, error) {
	msg := dnsmessage.Message{Header: dnsmessage.Header{
		ID: q.id, Response: true, RCode: rcode, RecursionDesired: q.recurse, CheckingDisabled: q.checkOff,
	}}
	if q.name.Length > 0 {
		msg.Questions = []dnsmessage.Question{{Name: q.name, Type: q.kind, Class: q.class}}
	}
	if q.edns {
		msg.Additionals = []dnsmessage.Resource{opt(ownUDP, q.dnssecOK)}
	}
	return msg.Pack()
}
