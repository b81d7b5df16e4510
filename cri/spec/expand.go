package spec

import "strings"

// Expand replaces $(NAME) by the value that lookup returns. A reference to an undefined name stays
// as it is, $$ becomes $, and a $ before anything else stays. Inserted values are not expanded.
func Expand(s string, lookup func(name string) (string, bool)) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:i])
		s = s[i:]
		switch s[1] {
		case '$':
			b.WriteByte('$')
			s = s[2:]
		case '(':
			end := strings.IndexByte(s, ')')
			if end < 0 { // never closed: no reference, here or later
				b.WriteString("$(")
				s = s[2:]
				continue
			}
			if value, ok := lookup(s[2:end]); ok {
				b.WriteString(value)
			} else {
				b.WriteString(s[:end+1])
			}
			s = s[end+1:]
		default:
			b.WriteString(s[:2])
			s = s[2:]
		}
	}
}

func envLookup(env []EnvVar) func(string) (string, bool) {
	values := make(map[string]string, len(env))
	for _, e := range env {
		values[e.Name] = e.Value
	}
	return func(name string) (string, bool) {
		value, ok := values[name]
		return value, ok
	}
}
