package hostcheck

import (
	"encoding/json"
	"errors"
	"path"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// propagation is the mount propagation of a directory.
type propagation struct {
	mount  string // the mount point that holds the directory
	shared bool
}

// parsePropagation finds the mount of dir, a clean path, in /proc/PID/mountinfo. Of mounts over
// each other, the last one counts.
func parsePropagation(data, dir string) (propagation, error) {
	var p propagation
	mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(data), nil)
	if err != nil {
		return p, err
	}
	for _, m := range mounts {
		at := path.Clean(m.Mountpoint)
		if len(at) >= len(p.mount) && (at == "/" || at == dir || strings.HasPrefix(dir, at+"/")) {
			p = propagation{at, strings.Contains(" "+m.Optional, " shared:")}
		}
	}
	if p.mount == "" {
		return p, errors.New("no mount of " + dir + " is in /proc/self/mountinfo")
	}
	return p, nil
}

// parseSELinux is enable_selinux in the configuration that containerd shows; nil if it is missing.
func parseSELinux(config string) *bool {
	var c struct {
		Enable *bool `json:"enableSelinux"`
	}
	_ = json.Unmarshal([]byte(config), &c) // unknown shape: nil
	return c.Enable
}

// checkPropagation accepts a private root directory, because a node makes it shared. The line tells
// the owner of the machine of the additional mount.
func checkPropagation(root string, p propagation) Line {
	if p.shared {
		return ok(Propagation, "%s is on a shared mount (%s): mount propagation works", root, p.mount)
	}
	return ok(Propagation, "%s is on a private mount (%s): the node bind-mounts it as shared, as a kubelet does, and bowline host release undoes that", root, p.mount)
}

// checkSELinux: runtime is the SELinux setting of the runtime's configuration, or nil if unknown.
func checkSELinux(on, enforcing bool, runtime *bool) Line {
	switch {
	case !on:
		return ok(SELinux, "off")
	case enforcing && runtime != nil && !*runtime:
		return Line{Warning, SELinux, "enforcing, but disabled in the runtime's configuration: containers run without their own labels",
			"set enable_selinux = true for the CRI plugin in " + containerdConfig + "\nsystemctl restart containerd"}
	case enforcing:
		return ok(SELinux, "enforcing: the runtime relabels the volumes of each pod")
	}
	return ok(SELinux, "permissive: SELinux logs what it would deny")
}
