package pod

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable is text of a machine, its runtime or a container as one line for a terminal.
// Such text is not trusted: an escape sequence in it could rewrite what is on the screen, a
// line break or a change of direction forge a line of ours. Line breaks and tabs become
// spaces; whatever else is not printable is written as Go writes it in a string.
func Printable(text string) string {
	clean := func(r rune) bool { return unicode.IsPrint(r) }
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !clean(r) }) < 0 {
		return text
	}
	var b strings.Builder
	text = strings.ReplaceAll(text, "\r\n", "\n")
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x` + strconv.FormatUint(uint64(text[0])|0x100, 16)[1:])
		case r == '\n', r == '\t', r == '\r':
			b.WriteByte(' ')
		case clean(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[size:]
	}
	return b.String()
}

// PrintableLines is Printable for text that has lines of its own.
func PrintableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = Printable(l)
	}
	return strings.Join(lines, "\n")
}
