package docs

import (
	"fmt"
	"strings"
	"unicode"
)

// Matches compares the output that a document shows with the real one: each of its lines must
// occur, in this order. A word with a digit and a letter or a dot in it, such as an age, an address
// or a generated name, matches any word. "..." matches any word too, and at the end of a line the
// rest of the line. A plain number must match exactly, and so must a name that names replaces.
func Matches(want, got string, names *strings.Replacer) error {
	lines := strings.Split(got, "\n")
	for text := range strings.Lines(want) {
		words := strings.Fields(text)
		if len(words) == 0 || len(words) == 1 && words[0] == "..." {
			continue
		}
		at := 0
		for at < len(lines) && !sameWords(words, strings.Fields(lines[at]), names) {
			at++
		}
		if at == len(lines) {
			return fmt.Errorf("no line (after those before it) is %q", strings.TrimSpace(text))
		}
		lines = lines[at+1:]
	}
	return nil
}

func sameWords(want, got []string, names *strings.Replacer) bool {
	if last := len(want) - 1; want[last] == "..." && len(got) >= last {
		want, got = want[:last], got[:last]
	}
	if len(want) != len(got) {
		return false
	}
	for i, w := range want {
		if here := names.Replace(w); here != got[i] && (here != w || !anyWord(w)) {
			return false
		}
	}
	return true
}

func anyWord(w string) bool {
	if strings.Contains(w, "...") {
		return true
	}
	digit := strings.ContainsFunc(w, unicode.IsDigit)
	return digit && strings.ContainsFunc(w, func(r rune) bool { return r == '.' || unicode.IsLetter(r) })
}
