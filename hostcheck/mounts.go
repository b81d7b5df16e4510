package hostcheck

import (
	"encoding/json"
	"errors"
	"path"
	"strings"
)

// propagation is how mounts below a directory reach other mount namespaces.
type propagation struct {
	mount  string // the mount point that holds the directory
	shared bool
}

// parsePropagation reads /proc/PID/mountinfo for the mount that holds dir, a clean path.
// Of mounts over each other the last one counts.
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

// unescape undoes what the kernel does to paths in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// parseSELinux is enable_selinux of containerd's configuration as its status shows it; nil:
// there is none.
func parseSELinux(config string) *bool {
	var c struct {
		Enable *bool `json:"enableSelinux"`
	}
	_ = json.Unmarshal([]byte(config), &c) // of another shape: not known
	return c.Enable
}

// judgePropagation: a private root directory is no fault, as a node makes it shared, but
// the machine's owner sees one mount more.
func judgePropagation(root string, p propagation) Line {
	if p.shared {
		return ok(Propagation, "%s is on a shared mount (%s): mounts reach pods and come from them, where pods ask for it", root, p.mount)
	}
	return ok(Propagation, "%s is on a private mount (%s): the node mounts it on itself as shared, as a kubelet does, and bowline host release undoes that", root, p.mount)
}

// judgeSELinux: runtime is what the runtime's configuration says of SELinux, nil if that is
// not known.
func judgeSELinux(on, enforcing bool, runtime *bool) Line {
	switch {
	case !on:
		return ok(SELinux, "off")
	case enforcing && runtime != nil && !*runtime:
		return Line{Warning, SELinux, "enforcing, but off in the runtime's configuration: containers run without labels of their own",
			"set enable_selinux = true for the CRI plugin in " + containerdConfig + "\nsystemctl restart containerd"}
	case enforcing:
		return ok(SELinux, "enforcing: the runtime relabels what volumes hold for their pod")
	}
	return ok(SELinux, "on, but it only logs what it would deny (permissive)")
}
