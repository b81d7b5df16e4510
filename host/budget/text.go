package budget

import (
	"fmt"
	"strings"
)

// MaxText is the number of bytes that are kept of an error message of a host or its runtime.
// Such messages are stored for many pods and for long: in statuses, events and decision logs.
// Messages of runtimes are shorter, except those that quote a pod.
const MaxText = 2 << 10

// Text is s, shortened to MaxText. The result does not keep a longer s in memory.
func Text(s string) string { return Shorten(s, MaxText) }

// Shorten is s, or the beginning and the end of s in at most limit bytes. limit must be 64 or
// more.
func Shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	mark := fmt.Sprintf(" ... (%d bytes left out) ... ", len(s)-limit)
	half := (limit - len(mark)) / 2
	return strings.ToValidUTF8(s[:half], "") + mark + strings.ToValidUTF8(s[len(s)-half:], "")
}
