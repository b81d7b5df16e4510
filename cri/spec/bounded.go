package spec

import (
	"cmp"
	"maps"
	"slices"
)

// Limits on a pod's own metadata on its sandbox and on each of its containers, in bytes. The
// runtime repeats all of it in each list, whose size is limited: one pod must not fill it for the
// whole node.
const (
	maxAnnotations = 32 << 10
	maxLabels      = 16 << 10
)

// bounded returns a copy of m, without its largest entries if all together exceed max bytes.
func bounded(m map[string]string, max int) map[string]string {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]string{}
	}
	size := func(k string) int { return len(k) + len(out[k]) }
	total := 0
	for k := range out {
		total += size(k)
	}
	if total <= max {
		return out
	}
	keys := slices.SortedFunc(maps.Keys(out), func(a, b string) int {
		return cmp.Or(cmp.Compare(size(b), size(a)), cmp.Compare(a, b))
	})
	for _, k := range keys {
		if total <= max {
			break
		}
		total -= size(k)
		delete(out, k)
	}
	return out
}
