package gcpolicy

import (
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// linkUID is the UID of the pod whose log directory the link points into; empty if it points
// elsewhere.
func (in *Input) linkUID(l Link) types.UID {
	root := strings.TrimRight(in.LogsRoot, "/") + "/"
	rest, ok := strings.CutPrefix(path.Clean(l.Target), root)
	if !ok {
		return ""
	}
	dir, _, _ := strings.Cut(rest, "/")
	return LogDirUID(dir)
}

// LogDirUID is the pod UID in the name of its log directory; empty if the name does not have that
// form.
func LogDirUID(name string) types.UID {
	parts := strings.Split(name, "_")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return ""
	}
	return types.UID(parts[2])
}

// LinkContainerID is the container ID in the name of a link in /var/log/containers; empty if the
// name does not have that form.
func LinkContainerID(name string) string {
	base, ok := strings.CutSuffix(name, ".log")
	if !ok {
		return ""
	}
	i := strings.LastIndexByte(base, '-')
	if i < 0 || strings.Count(base, "_") != 2 {
		return ""
	}
	return base[i+1:]
}

// CgroupUID is the pod UID in the name of its cgroup: pod<uid> under cgroupfs,
// kubepods-<class>-pod<uid, underscores for dashes>.slice under systemd; empty if the name has
// neither form.
func CgroupUID(name string) types.UID {
	if base, ok := strings.CutSuffix(name, ".slice"); ok {
		i := strings.LastIndex(base, "-pod")
		if i < 0 || !strings.HasPrefix(base, "kubepods") {
			return ""
		}
		return types.UID(strings.ReplaceAll(base[i+len("-pod"):], "_", "-"))
	}
	uid, ok := strings.CutPrefix(name, "pod")
	if !ok {
		return ""
	}
	return types.UID(uid)
}
