// Package choose decides which images may go, and in which order. It is pure.
package choose

import (
	"cmp"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Record is what is remembered of one image, by its ID.
type Record struct {
	FirstSeen time.Time
	LastUsed  time.Time // zero: never since FirstSeen
	Size      int64
	Pinned    bool
	Used      bool // by a container at the last look
	Wanted    bool // by a pod of ours, which may be about to use it
}

// Records by image ID.
type Records map[string]Record

// Look is the records after a look at the runtime: every image, every container of
// anyone, and which images the pods of ours name.
func Look(old Records, now time.Time, images []*runtimeapi.Image, containers []*runtimeapi.Container, wanted func(*runtimeapi.Image) bool) Records {
	now = now.Round(0) // ages count the time that the machine sleeps
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

// Unused are the IDs of images that nobody uses or is about to use, the one that was
// used longest ago first. Of those never used the one that came first.
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

// Settled are those of Unused that are old enough: what has just been pulled may be for
// a container that is about to be made.
func Settled(records Records, now time.Time, minAge time.Duration) []string {
	return slices.DeleteFunc(Unused(records), func(id string) bool { return now.Sub(records[id].FirstSeen) < minAge })
}

// Old are those of Unused that nobody has used for maxAge; none where that is 0.
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

// Percent that is used of a file system, by what is left of it.
func Percent(bytes, free int64) int {
	if bytes <= 0 {
		return 0
	}
	return 100 - int(min(free, bytes)*100/bytes)
}

// Excess is how many bytes are to be freed of a file system so that low percent are
// used, where high or more are; 0 where they are not.
func Excess(bytes, free int64, high, low int) int64 {
	if bytes <= 0 || Percent(bytes, free) < high {
		return 0
	}
	return max(bytes*int64(100-low)/100-free, 0)
}
