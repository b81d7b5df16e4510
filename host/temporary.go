package host

import "strings"

// TemporaryMark is part of the name of a file or a link that is being written and will be
// renamed when complete: "." NAME TemporaryMark and a unique suffix.
const TemporaryMark = ".bowline-"

// IsTemporary reports whether a base name is the temporary name of a write in progress or of an
// interrupted one.
func IsTemporary(name string) bool {
	return strings.HasPrefix(name, ".") && strings.Contains(name, TemporaryMark)
}
