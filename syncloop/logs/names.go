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

// choose decides about the files next to a log called base before it is rotated. It removes the
// remains of an interrupted rotation, then the oldest files, so that maxFiles remain after the rotation: the
// rotated log and the new one count. The other files are compressed. Both lists are in the order of
// processing, oldest first.
func choose(names []string, base string, maxFiles int) (remove, compress []string) {
	names = slices.Compact(slices.Sorted(slices.Values(names))) // a host may list one twice
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
	excess := max(len(rotated)-max(maxFiles-2, 0), 0)
	remove = append(remove, rotated[:excess]...)
	for _, n := range rotated[excess:] {
		if !strings.HasSuffix(n, compressed) {
			compress = append(compress, n)
		}
	}
	return remove, compress
}

// rotatedName returns the name that base gets at now. Names sort by time even if the clock was set
// back, or if two rotations happen within one second.
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
