package hostcheck

import (
	"encoding/json"
	"errors"
	"path"
	"strings"
)

// propagation is the mount propagation of a directory.
type propagation struct {
	mount  string // the mount point that holds the directory
	shared bool
}

// parsePropagation finds the mount of dir, a clean path, in /proc/PID/mountinfo. Of mounts over
// each other, the last one counts.
func parsePropagation(mountinfo, dir string) (propagation, error) {
	var p propagation
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 7 {
			continue
		}
		at := path.Clean(unescape.Replace(fields[4]))
		if len(at) < len(p.mount) || at != "/" && at != dir && !strings.HasPrefix(dir, at+"/") {
			continue
		}
		p = propagation{mount: at}
		for _, f := range fields[6:] { // optional fields, up to a dash
			if f == "-" {
				break
			}
			p.shared = p.shared || strings.HasPrefix(f, "shared:")
		}
	}
	if p.mount == "" {
		return p, errors.New("no mount of " + dir + " is in /proc/self/mountinfo")
	}
	return p, nil
}

// unescape decodes paths in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

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
