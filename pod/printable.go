package pod

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable formats text from a machine, its runtime or a container as one line for a terminal.
// Such text is not trusted: an escape sequence could rewrite the screen, and a line break or a
// change of direction could forge a line of ours. Line breaks and tabs become spaces; other
// unprintable characters are escaped as in a Go string.
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

// PrintableLines is Printable for each line of text.
func PrintableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = Printable(l)
	}
	return strings.Join(lines, "\n")
}
