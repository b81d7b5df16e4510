package host

import "strings"

// TemporaryMark is in the name of a file or a link that is being written, and
// which its renaming will make whole: "." NAME TemporaryMark and what makes it
// unique.
const TemporaryMark = ".bowline-"

// IsTemporary reports whether a base name is that of a write under way, or of
// one that was cut off.
func IsTemporary(name string) bool {
	return strings.HasPrefix(name, ".") && strings.Contains(name, TemporaryMark)
}
