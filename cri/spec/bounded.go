package spec

import (
	"cmp"
	"maps"
	"slices"
)

// entryCost is what an entry of a map costs in a decoded reply of the runtime, in addition to its
// bytes. Package cri counts it in the same way.
const entryCost = 192

func entry(k, v string) int { return entryCost + len(k) + len(v) }

// cost is the sum of the entries of m.
func cost(m map[string]string) (n int) {
	for k, v := range m {
		n += entry(k, v)
	}
	return n
}

// bounded returns a copy of m, without its largest entries if all together cost more than max.
func bounded(m map[string]string, max int) map[string]string {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]string{}
	}
	total := cost(out)
	if total <= max {
		return out
	}
	keys := slices.SortedFunc(maps.Keys(out), func(a, b string) int {
		return cmp.Or(cmp.Compare(entry(b, out[b]), entry(a, out[a])), cmp.Compare(a, b))
	})
	for _, k := range keys {
		if total <= max {
			break
		}
		total -= entry(k, out[k])
		delete(out, k)
	}
	return out
}
