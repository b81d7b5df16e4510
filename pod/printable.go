package pod

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
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

// PrintableJSON escapes the unprintable characters of valid JSON as \uXXXX, except for line breaks,
// which JSON has only between its tokens. encoding/json escapes neither DEL, C1 controls nor the
// characters that change the direction of text. The value stays the same.
func PrintableJSON(text []byte) []byte {
	var out []byte
	for _, r := range string(text) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// PrintableLines is Printable for each line of text.
func PrintableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = Printable(l)
	}
	return strings.Join(lines, "\n")
}
