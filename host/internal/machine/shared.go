package machine

import (
	pathpkg "path"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Shared reports whether a file system of this type comes from a file server: access to it
// blocks while that server does not answer. Of these types, pods use NFS.
func Shared(fsType string) bool { return fsType == SharedType || fsType == "nfs4" }

// SharedType is in the name of each type that is Shared.
const SharedType = "nfs"

// SameType reports whether mountinfo shows this type for a file system mounted as wanted.
func SameType(shown, wanted string) bool {
	return shown == wanted || wanted == "nfs" && shown == "nfs4"
}

// TopMount returns the last mount at a point, which must have all links resolved; nil if there
// is none.
func TopMount(entries []*mountinfo.Info, point string) *mountinfo.Info {
	for i := len(entries) - 1; i >= 0; i-- {
		if entries[i].Mountpoint == point {
			return entries[i]
		}
	}
	return nil
}

// ShareOptions are the options of a network file system for mount(8). They limit it to one
// attempt, because the caller retries.
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

// inMemory are the file systems that store nothing on a disk.
var inMemory = []string{"tmpfs", "ramfs", "hugetlbfs"}

// Detachable reports whether a mount in use may be detached before its last user ends: nothing
// that is written through it could be lost.
func Detachable(e *mountinfo.Info) bool {
	return slices.Contains(inMemory, e.FSType) || hasOption(e.Options, "ro") || hasOption(e.VFSOptions, "ro")
}

// OnItself reports whether the last mount at path is a bind mount of the directory on itself, so
// that it shows the same as without it. path must not contain links.
func OnItself(entries []*mountinfo.Info, path string) bool {
	below := slices.DeleteFunc(slices.Clone(entries), func(e *mountinfo.Info) bool { return e.Mountpoint == path })
	top, under := TopMount(entries, path), MountOf(below, path)
	return top != nil && under != nil && top.Major == under.Major && top.Minor == under.Minor &&
		top.Root == pathpkg.Join(under.Root, strings.TrimPrefix(path, under.Mountpoint))
}

// MaxBusyUsers is the most processes that are named as users of a mount.
const MaxBusyUsers = 3
