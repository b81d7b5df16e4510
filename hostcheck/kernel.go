package hostcheck

import (
	"fmt"
	"strings"
	"time"
)

// maxOffset is the largest clock offset without a warning. A larger one is no failure, because
// Bowline corrects the machine's times by it.
const maxOffset = 2 * time.Second

func checkClock(offset, uncertainty time.Duration) Line {
	if offset.Abs() < uncertainty {
		offset = 0
	}
	found := fmt.Sprintf("%s, within %s", ahead(offset), uncertainty.Round(100*time.Microsecond))
	if offset.Abs()-uncertainty > maxOffset {
		return Line{Warning, Clock, found, "synchronize the clocks of both machines:\ntimedatectl set-ntp true"}
	}
	return ok(Clock, "%s", found)
}

func ahead(offset time.Duration) string {
	switch d := offset.Abs().Round(time.Millisecond); {
	case d == 0:
		return "the same as here"
	case offset > 0:
		return d.String() + " ahead of here"
	default:
		return d.String() + " behind here"
	}
}

// sysctl is one kernel setting and its required value.
type sysctl struct {
	name, want string
	level      Level
	why        string
}

// A kubelet sets the last four, or requires them with protectKernelDefaults.
var sysctls = []sysctl{
	{"net.ipv4.ip_forward", "1", Failure, "pods cannot reach each other"},
	{"net.bridge.bridge-nf-call-iptables", "1", Warning, "Services do not work for bridged traffic"},
	{"vm.overcommit_memory", "1", Warning, "a kubelet sets it"},
	{"vm.panic_on_oom", "0", Warning, "a kubelet sets it"},
	{"kernel.panic", "10", Warning, "a kubelet sets it"},
	{"kernel.panic_on_oops", "1", Warning, "a kubelet sets it"},
}

func (s sysctl) path() string { return "/proc/sys/" + strings.ReplaceAll(s.name, ".", "/") }

// checkSysctls: values by name. A missing one does not exist in this kernel, for example those of
// bridges if br_netfilter is not loaded.
func checkSysctls(values map[string]string) []Line {
	var lines []Line
	var well []string
	for _, level := range []Level{Failure, Warning} {
		var wrong, fix []string
		for _, s := range sysctls {
			switch v, has := values[s.name]; {
			case s.level != level || !has:
			case v == s.want:
				well = append(well, s.name+"="+v)
			default:
				wrong = append(wrong, fmt.Sprintf("%s=%s (%s)", s.name, v, s.why))
				fix = append(fix, fmt.Sprintf("echo %s=%s >>/etc/sysctl.d/90-bowline.conf", s.name, s.want))
			}
		}
		if len(wrong) > 0 {
			lines = append(lines, Line{level, Sysctls, strings.Join(wrong, ", "), strings.Join(append(fix, "sysctl --system"), "\n")})
		}
	}
	if len(well) > 0 {
		lines = append(lines, ok(Sysctls, "%s", strings.Join(well, ", ")))
	}
	return lines
}

// checkSwap fails where the node would refuse to start.
func checkSwap(bytes int64, allowed bool) Line {
	switch {
	case bytes == 0:
		return ok(Swap, "off")
	case allowed:
		return ok(Swap, "%s are on, and the node allows it: containers get no swap", size(bytes))
	}
	return Line{Failure, Swap, size(bytes) + " are on: the node does not start, unless failSwapOn is false in its configuration (check with --fail-swap-on=false)",
		"swapoff -a\nsed -i.bak '/[[:space:]]swap[[:space:]]/s/^/#/' /etc/fstab"}
}
