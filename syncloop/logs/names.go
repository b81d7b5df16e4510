package logs

import (
	"slices"
	"strings"
	"time"
)

const (
	stampFormat = "20060102-150405"
	compressed  = ".gz"
	temporary   = ".tmp"
)

// choose says what becomes of the files beside a log called base before it is rotated:
// those that an earlier rotation left unfinished are removed, then the oldest, so that
// with the two that the rotation makes there are maxFiles; what stays is compressed.
// Each list is in the order in which it is to be worked on, oldest first.
func choose(names []string, base string, maxFiles int) (remove, compress []string) {
	var rotated []string
	for _, n := range names {
		switch {
		case !strings.HasPrefix(n, base+"."):
		case strings.HasSuffix(n, temporary),
			!strings.HasSuffix(n, compressed) && slices.Contains(names, n+compressed):
			remove = append(remove, n)
		default:
			rotated = append(rotated, n)
		}
	}
	slices.Sort(rotated)
	excess := max(len(rotated)-max(maxFiles-2, 0), 0)
	remove = append(remove, rotated[:excess]...)
	for _, n := range rotated[excess:] {
		if !strings.HasSuffix(n, compressed) {
			compress = append(compress, n)
		}
	}
	return remove, compress
}

// rotatedName is what base is renamed to at now. Names are in the order of time also
// where a clock was set back, or two rotations come in one second.
func rotatedName(names []string, base string, now time.Time) string {
	now = now.UTC().Truncate(time.Second)
	for _, n := range names {
		stamp, ok := strings.CutPrefix(n, base+".")
		if !ok {
			continue
		}
		stamp, _, _ = strings.Cut(stamp, ".")
		if at, err := time.Parse(stampFormat, stamp); err == nil && !now.After(at) {
			now = at.Add(time.Second)
		}
	}
	return base + "." + now.Format(stampFormat)
}
