package registry

import (
	"strings"
)

// challenge is one demand of a WWW-Authenticate header (RFC 9110, 11.6.1). The scheme and the names of the
// parameters are in lower case.
type challenge struct {
	scheme string
	params map[string]string
}

// maxChallenges bounds what is read of a header; a registry has one or two.
const maxChallenges = 8

// parseChallenges reads the values of WWW-Authenticate headers. It skips what it cannot read.
func parseChallenges(values []string) []challenge {
	var all []challenge
	for _, v := range values {
		p := parser{rest: v}
		for len(all) < maxChallenges {
			p.skip(" \t,")
			scheme := p.token()
			if scheme == "" {
				break
			}
			c := challenge{scheme: strings.ToLower(scheme), params: map[string]string{}}
			p.params(c.params)
			all = append(all, c)
		}
	}
	return all
}

type parser struct{ rest string }

func (p *parser) skip(any string) { p.rest = strings.TrimLeft(p.rest, any) }

// token takes a token of RFC 9110, 5.6.2; it is empty if there is none.
func (p *parser) token() string {
	n := 0
	for n < len(p.rest) && isToken(p.rest[n]) {
		n++
	}
	t := p.rest[:n]
	p.rest = p.rest[n:]
	return t
}

func isToken(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// params takes the parameters of one challenge. What follows is the scheme of the next one, or unreadable.
func (p *parser) params(into map[string]string) {
	for {
		p.skip(" \t,")
		before := p.rest
		name := p.token()
		p.skip(" \t")
		if name == "" || !strings.HasPrefix(p.rest, "=") {
			p.rest = before
			return
		}
		p.rest = p.rest[1:]
		p.skip(" \t")
		value, ok := p.value()
		if !ok {
			p.rest = ""
			return
		}
		name = strings.ToLower(name)
		if _, twice := into[name]; !twice {
			into[name] = value
		}
	}
}

// value takes a token or a quoted string.
func (p *parser) value() (string, bool) {
	if !strings.HasPrefix(p.rest, `"`) {
		v := p.token()
		return v, v != ""
	}
	var b strings.Builder
	for i := 1; i < len(p.rest); i++ {
		switch c := p.rest[i]; c {
		case '"':
			p.rest = p.rest[i+1:]
			return b.String(), true
		case '\\':
			if i++; i == len(p.rest) {
				return "", false
			}
			b.WriteByte(p.rest[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", false
}
