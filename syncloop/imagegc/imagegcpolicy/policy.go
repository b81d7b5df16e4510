// Package imagegcpolicy decides which images may be removed, and in which order. The package is pure:
// it decides only on the observed images and pods that it gets as arguments.
package imagegcpolicy

import (
	"cmp"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Record has the observations of one image.
type Record struct {
	FirstSeen time.Time
	LastUsed  time.Time // zero: never since FirstSeen
	Size      int64
	Pinned    bool
	Used      bool // by a container, at the last look
	Wanted    bool // named by a pod of ours, which may be about to use it
}

// Records by image ID.
type Records map[string]Record

// Look returns the records after a look at the runtime: from every image, every container, ours or
// not, and the images that our pods name.
func Look(old Records, now time.Time, images []*runtimeapi.Image, containers []*runtimeapi.Container, wanted func(*runtimeapi.Image) bool) Records {
	now = now.Round(0) // so that ages include the time that the machine sleeps
	used := map[string]bool{}
	for _, c := range containers {
		for _, name := range []string{c.GetImageId(), c.GetImageRef(), c.GetImage().GetImage()} {
			if name != "" {
				used[name] = true
			}
		}
	}
	out := make(Records, len(images))
	for _, i := range images {
		r, known := old[i.GetId()]
		if !known {
			r.FirstSeen = now
		}
		r.Size, r.Pinned, r.Wanted = int64(i.GetSize()), i.GetPinned(), wanted(i)
		r.Used = slices.ContainsFunc(slices.Concat([]string{i.GetId()}, i.GetRepoTags(), i.GetRepoDigests()), func(n string) bool { return used[n] })
		if r.Used {
			r.LastUsed = now
		}
		out[i.GetId()] = r
	}
	return out
}

// Unused returns the IDs of images that are neither used, pinned nor wanted, the least recently
// used first. Among images that were never used, the oldest comes first.
func Unused(records Records) []string {
	var ids []string
	for id, r := range records {
		if !r.Used && !r.Pinned && !r.Wanted {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		x, y := records[a], records[b]
		return cmp.Or(x.LastUsed.Compare(y.LastUsed), x.FirstSeen.Compare(y.FirstSeen), cmp.Compare(a, b))
	})
	return ids
}

// Settled returns the Unused images that are old enough; a younger one may have been pulled for a
// container that is about to be created.
func Settled(records Records, now time.Time, minAge time.Duration) []string {
	return slices.DeleteFunc(Unused(records), func(id string) bool { return now.Sub(records[id].FirstSeen) < minAge })
}

// Old returns the Unused images that were not used for maxAge; none if that is 0.
func Old(records Records, now time.Time, maxAge time.Duration) []string {
	if maxAge == 0 {
		return nil
	}
	return slices.DeleteFunc(Unused(records), func(id string) bool {
		last := records[id].LastUsed
		if last.IsZero() {
			last = records[id].FirstSeen
		}
		return now.Sub(last) <= maxAge
	})
}

// Percent is the used percentage of a file system.
func Percent(bytes, free int64) int {
	if bytes <= 0 {
		return 0
	}
	return 100 - int(min(free, bytes)*100/bytes)
}

// Excess is how many bytes to free so that no more than low percent are used, if high percent or
// more are; else 0.
func Excess(bytes, free int64, high, low int) int64 {
	if bytes <= 0 || Percent(bytes, free) < high {
		return 0
	}
	return max(bytes*int64(100-low)/100-free, 0)
}
