package machine

import (
	"errors"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/bowline-k8s/bowline/host"
)

const sliceSuffix = ".slice"

// IsSlice reports whether the path of a cgroup names a slice. systemd creates and removes
// slices, and reverts changes that it has not made.
func IsSlice(p string) bool { return strings.HasSuffix(p, sliceSuffix) }

// ErrNoSlice: systemd cannot have slices below the configured root, so there are none.
var ErrNoSlice = errors.New("systemd can have no slices below the configured root")

// SliceBelow returns the path of nested slices (/a.slice/a-b.slice) below the configured root.
// root is a slash path whose elements prefix the names of all slices below it: "/lab" gives
// /lab.slice/lab-a.slice/lab-a-b.slice.
func SliceBelow(root, p string) (string, error) {
	prefix, out := "", ""
	for part := range strings.SplitSeq(strings.Trim(root, "/"), "/") {
		if part == "" {
			continue
		}
		prefix += strings.ReplaceAll(part, "-", "_")
		out += "/" + prefix + sliceSuffix
		prefix += "-"
	}
	if r, odd := oddRune(out); odd {
		return "", fmt.Errorf("cgroup %s: %w: their names have no %q", p, ErrNoSlice, r)
	}
	above := ""
	for e := range strings.SplitSeq(strings.TrimPrefix(p, "/"), "/") {
		stem, ok := strings.CutSuffix(e, sliceSuffix)
		own, inside := strings.CutPrefix(stem, above)
		if !ok || !inside || own == "" || strings.Contains(own, "-") {
			return "", fmt.Errorf("cgroup %s is no path of nested slices, as %s does not belong there", p, e)
		}
		out += "/" + prefix + e
		above = stem + "-"
	}
	if r, odd := oddRune(out); odd {
		return "", fmt.Errorf("cgroup %s: systemd takes no %q in the name of a slice", out, r)
	}
	return out, nil
}

// oddRune finds a character that systemd does not allow in a slice's name.
func oddRune(path string) (rune, bool) {
	for _, r := range path {
		if r != '/' && r != '-' && r != '_' && r != '.' && r != ':' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return r, true
		}
	}
	return 0, false
}

// SliceNames returns the names of slices without the prefix of the root.
func SliceNames(root string, names []string) []string {
	prefix := strings.ReplaceAll(strings.Trim(root, "/"), "-", "_")
	if prefix == "" {
		return names
	}
	prefix = strings.ReplaceAll(prefix, "/", "-") + "-"
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = n
		if IsSlice(n) {
			out[i] = strings.TrimPrefix(n, prefix)
		}
	}
	return out
}

// Slices returns the paths of a slice and of its parents, the outermost first.
func Slices(full string) []string {
	var all []string
	for p := full; p != "/" && p != "."; p = path.Dir(p) {
		all = append([]string{p}, all...)
	}
	return all
}

// ForSystemd returns limits that systemd can represent. It counts a quota in hundredths of a
// CPU; a value between two is rounded up, so that the containers get theirs in full.
func ForSystemd(r host.CgroupResources) host.CgroupResources {
	if r.CPUQuotaUS <= 0 {
		return r
	}
	period := int64(r.CPUPeriodUS)
	if period == 0 {
		period = defaultPeriodUS
	}
	if perSecond := r.CPUQuotaUS * 1_000_000 / period; perSecond%10_000 != 0 {
		r.CPUQuotaUS = (perSecond/10_000 + 1) * 10_000 * period / 1_000_000
	}
	return r
}

// SliceProperties returns limits as unit properties in the syntax of busctl: NAME TYPE VALUE.
// systemd has no property for huge pages; they are written to the files of the cgroup.
func SliceProperties(version int, r host.CgroupResources) [][]string {
	var p [][]string
	add := func(name string, value uint64) {
		p = append(p, []string{name, "t", strconv.FormatUint(value, 10)})
	}
	limit := func(name string, n int64) {
		switch {
		case n < 0:
			add(name, math.MaxUint64) // infinity
		case n > 0:
			add(name, uint64(n))
		}
	}
	if r.CPUShares != 0 {
		if version == 2 {
			add("CPUWeight", sharesToWeight(r.CPUShares))
		} else {
			add("CPUShares", min(max(r.CPUShares, 2), 262144))
		}
	}
	if r.CPUPeriodUS != 0 && r.CPUPeriodUS != defaultPeriodUS {
		add("CPUQuotaPeriodUSec", r.CPUPeriodUS) // unknown to systemd before 242
	}
	switch {
	case r.CPUQuotaUS > 0:
		period := r.CPUPeriodUS
		if period == 0 {
			period = defaultPeriodUS
		}
		add("CPUQuotaPerSecUSec", uint64(ForSystemd(r).CPUQuotaUS)*1_000_000/period)
	case r.CPUQuotaUS < 0 || r.CPUPeriodUS != 0:
		limit("CPUQuotaPerSecUSec", -1)
	}
	if version == 2 {
		limit("MemoryMax", r.MemoryBytes)
	} else {
		limit("MemoryLimit", r.MemoryBytes)
	}
	limit("TasksMax", r.PidsMax)
	return p
}

// sliceBirth returns the properties for the creation of a slice.
func sliceBirth(version int, full string) [][]string {
	above := "-.slice"
	if dir := path.Dir(full); dir != "/" {
		above = path.Base(dir)
	}
	io := "IOAccounting"
	if version != 2 {
		io = "BlockIOAccounting"
	}
	return [][]string{
		{"Wants", "as", "1", above},
		{"MemoryAccounting", "b", "true"}, {"CPUAccounting", "b", "true"}, {io, "b", "true"}, {"TasksAccounting", "b", "true"},
		{"DefaultDependencies", "b", "false"},
	}
}

// manager begins a call. After the dashes nothing is parsed as an option, even if a slice is
// "-.slice".
var manager = []string{"--system", "--", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"}

func call(method, signature string, args ...string) []string {
	return append(append([]string{}, manager...), append([]string{method, signature}, args...)...)
}

func withProperties(args []string, p [][]string) []string {
	args = append(args, strconv.Itoa(len(p)))
	for _, one := range p {
		args = append(args, one...)
	}
	return args
}

// StartSlice returns the busctl arguments that create a slice with limits. The call fails if the
// slice exists (SliceExists). No argument contains white space.
func StartSlice(version int, full string, r host.CgroupResources) []string {
	args := call("StartTransientUnit", "ssa(sv)a(sa(sv))", path.Base(full), "replace")
	return append(withProperties(args, append(sliceBirth(version, full), SliceProperties(version, r)...)), "0")
}

// SetSlice changes the limits of an existing slice; nil if there are none to set.
func SetSlice(version int, full string, r host.CgroupResources) []string {
	p := SliceProperties(version, r)
	if len(p) == 0 {
		return nil
	}
	return withProperties(call("SetUnitProperties", "sba(sv)", path.Base(full), "true"), p)
}

// StopSlice removes a slice.
func StopSlice(full string) []string { return call("StopUnit", "ss", path.Base(full), "replace") }

// SliceExists reports whether the output of busctl says that the slice exists already. busctl prints
// the message of a D-Bus error, but not its name.
func SliceExists(said string) bool { return strings.Contains(said, "already") }

// SliceMissing reports whether the output of busctl says that there is no such unit.
func SliceMissing(said string) bool { return strings.Contains(said, "not loaded") }

// SliceSettings is where systemd keeps, until the reboot, the limits of a slice that it did not
// create for us.
func SliceSettings(full string) string {
	return "/run/systemd/system.control/" + path.Base(full) + ".d"
}
