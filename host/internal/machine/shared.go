package machine

import (
	pathpkg "path"
	"slices"
	"strings"
)

// Shared says whether a file system of this type is another machine's: who looks at it
// waits for that machine, which may be away. NFS is what pods have of these.
func Shared(fsType string) bool { return fsType == "nfs" || fsType == "nfs4" }

// SameType: what mountinfo calls a file system, and what it was mounted as.
func SameType(shown, wanted string) bool {
	return shown == wanted || wanted == "nfs" && shown == "nfs4"
}

// TopMount is what is mounted last at a point, with all links resolved; nil if nothing is.
func TopMount(entries []MountEntry, point string) *MountEntry {
	for i := len(entries) - 1; i >= 0; i-- {
		if entries[i].Point == point {
			return &entries[i]
		}
	}
	return nil
}

// ShareOptions are the options of a file system that another machine shares, as mount(8)
// takes them. One attempt is enough: who asks asks again.
func ShareOptions(options []string) string {
	var out []string
	retry := false
	for _, o := range options {
		name, _, _ := strings.Cut(o, "=")
		retry = retry || name == "retry"
		out = append(out, o)
	}
	if !retry {
		out = append(out, "retry=0")
	}
	return strings.Join(out, ",")
}

// inMemory are the file systems that have nothing on a disk.
var inMemory = []string{"tmpfs", "ramfs", "hugetlbfs"}

// Detachable says whether a mount that is in use may go out of sight before its last
// user ends: nothing written through it could be lost then.
func Detachable(e MountEntry) bool {
	return slices.Contains(inMemory, e.FSType) || slices.Contains(e.Options, "ro") || slices.Contains(e.SuperOptions, "ro")
}

// OnItself is the last mount at path, which has no links, if that is a mount of the
// directory on itself: it shows what would be there without it.
func OnItself(entries []MountEntry, path string) bool {
	below := slices.DeleteFunc(slices.Clone(entries), func(e MountEntry) bool { return e.Point == path })
	top, under := TopMount(entries, path), MountOf(below, path)
	return top != nil && under != nil && top.Device == under.Device &&
		top.Root == pathpkg.Join(under.Root, strings.TrimPrefix(path, under.Point))
}

// MaxBusyUsers is how many processes that hold a mount are named.
const MaxBusyUsers = 3
