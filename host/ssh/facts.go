package ssh

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

const (
	maxThrottles   = 16 << 10 // CPUs that are checked; a kernel has at most 8,192
	capSysResource = 24
)

// Facts fails only if a node requires the missing fact. Facts that a host may lack (DMI, swap,
// huge pages) stay zero.
func (h *Host) Facts(ctx context.Context) (host.Facts, error) {
	return call(h, ctx, "Facts", shortDeadline, func(ctx context.Context) (host.Facts, error) {
		f, err := h.readFacts(ctx)
		if err != nil {
			return host.Facts{}, err
		}
		switch again, err := h.booted(ctx, f.BootID); {
		case err != nil:
			return host.Facts{}, err
		case again: // some queries depended on the state before the reboot
			return h.readFacts(ctx)
		}
		return f, nil
	})
}

// parseFields reads keys and values that each end with a NUL. Of duplicate keys the last one
// counts.
func parseFields(data []byte) map[string]string {
	v := map[string]string{}
	for len(data) > 0 {
		key, rest, ok := bytes.Cut(data, []byte{0})
		if !ok {
			break
		}
		value, rest, _ := bytes.Cut(rest, []byte{0})
		v[string(key)], data = string(value), rest
	}
	return v
}

func (h *Host) readFacts(ctx context.Context) (host.Facts, error) {
	version := h.machine().hier.Version
	f, err := h.factsBy(ctx, machine.ThermalThrottleDirs, machine.SwapControlFiles(version))
	if err != nil {
		return host.Facts{}, err
	}
	f.CgroupVersion = version
	return f, nil
}

// factsBy reads the facts that do not depend on the cgroup version. thermal and swap are patterns of
// paths.
func (h *Host) factsBy(ctx context.Context, thermal string, swap []string) (f host.Facts, err error) {
	const what = "the facts"
	if err := h.read(ctx, "read", what, h.whole(what, shell.Request{Script: scriptFacts,
		Args: append([]string{h.rootDir, thermal}, swap...)}),
		func(stdout []byte) (err error) {
			if err = checkFields(h.budget, what, stdout); err == nil {
				f, err = parseFacts(stdout)
			}
			if err != nil {
				return fmt.Errorf("facts: %w", err)
			}
			return nil
		}); err != nil {
		return host.Facts{}, err
	}
	return f, nil
}

// parseFacts parses the output of scripts/facts.sh.
func parseFacts(data []byte) (host.Facts, error) {
	v := parseFields(data)
	f := host.Facts{
		Hostname:      v["hostname"],
		KernelVersion: v["kernel"],
		Architecture:  goarch(v["machine"]),
		OS:            "linux",
		OSImage:       machine.FirstOf(machine.PrettyName([]byte(v["os-release"])), machine.PrettyName([]byte(v["usr-os-release"]))),
		MachineID:     machine.FirstOf(v["machine-id"], v["dbus-machine-id"]),
		BootID:        v["boot-id"],
		CPUs:          machine.CountList(v["cpus"]),
		PhysicalCores: int(min(number(v["cores"]), maxThrottles)),
		CPUSockets:    int(min(number(v["sockets"]), maxThrottles)),
		MemoryBytes:   machine.Meminfo([]byte(v["meminfo"]), "MemTotal"),
		SwapBytes:     machine.Meminfo([]byte(v["meminfo"]), "SwapTotal"),
		PidsMax:       machine.Smaller(number(v["pid-max"]), number(v["threads-max"])),
		HugePages:     map[string]int64{},
		Addresses:     machine.Addresses(v["addresses"], v["route"], v["if-inet6"], v["fib-trie"]),
		Routed:        machine.DefaultInterface([]byte(v["route"])) != "",
	}
	// In the order of the kubelet: from the firmware, the hypervisor, the file.
	f.SystemUUID = machine.FirstOf(strings.ToLower(v["product-uuid"]), strings.TrimSpace(v["vm-uuid"]), f.MachineID)
	if r, ok := v["resolv.conf"]; ok {
		f.ResolvConf = []byte(r)
	}
	f.CanLowerOOMScore = machine.HasCapability([]byte(v["status"]), capSysResource)
	f.AppArmor = machine.AppArmor(v["apparmor"])
	f.SELinux, f.SELinuxEnforcing = machine.SELinux(v["selinux"], v["label"])
	f.Swaps, f.SwapControl = machine.Swaps([]byte(v["swaps"])), v["swap-control"] == "yes"
	var throttles []string
	for dir := range strings.FieldsSeq(v["thermal-throttle"]) {
		if len(throttles) == maxThrottles {
			break
		}
		throttles = append(throttles, dir)
	}
	f.ThermalThrottle = machine.ThermalThrottle(throttles)
	for key, value := range v {
		size, ok := strings.CutPrefix(key, "hugepages-")
		if kb := number(strings.TrimSuffix(size, "kB")); ok && kb > 0 {
			f.HugePages[machine.PageSizeName(kb)] = machine.Times(number(value), machine.Times(kb, 1024))
		}
	}
	disk := strings.Fields(v["disk"])
	if len(disk) != 3 {
		return host.Facts{}, fmt.Errorf("the disk's size is %q", v["disk"])
	}
	f.RootDiskBytes, f.RootDiskInode = machine.Times(number(disk[0]), number(disk[1])), number(disk[2])
	if f.MemoryBytes == 0 || f.CPUs == 0 || f.BootID == "" {
		return host.Facts{}, hint.Add(fmt.Errorf("%d bytes of memory, %d processors, boot ID %q", f.MemoryBytes, f.CPUs, f.BootID), "check that /proc is mounted on the host")
	}
	return f, nil
}

func number(s string) int64 {
	return machine.Count(s)
}

// goarch converts the output of uname -m to GOARCH.
func goarch(m string) string {
	switch m {
	case "x86_64":
		return "amd64"
	case "i386", "i486", "i586", "i686":
		return "386"
	case "aarch64", "arm64":
		return "arm64"
	case "loongarch64":
		return "loong64"
	case "mips64":
		return "mips64"
	}
	if strings.HasPrefix(m, "arm") {
		return "arm"
	}
	return m // riscv64, ppc64le, s390x
}
