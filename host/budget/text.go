package budget

import (
	"fmt"
	"strings"
)

// MaxText is how much of a text is kept, in bytes, in which a host or its runtime says what
// went wrong. It goes into pods' statuses, events and the logs of decisions, of many pods
// and for long. Sentences of runtimes are shorter, but for those that quote a pod.
const MaxText = 2 << 10

// Text is s, or its beginning and its end. The copy lets the rest go.
func Text(s string) string { return Shorten(s, MaxText) }

// Shorten is s, or its beginning and its end in at most limit bytes, which are 64 or more.
func Shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	mark := fmt.Sprintf(" ... (%d bytes left out) ... ", len(s)-limit)
	half := (limit - len(mark)) / 2
	return strings.ToValidUTF8(s[:half], "") + mark + strings.ToValidUTF8(s[len(s)-half:], "")
}
