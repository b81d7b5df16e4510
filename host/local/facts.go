package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// Facts fails only if a node requires the missing fact. Facts that a host may lack (DMI, swap,
// huge pages) stays zero.
func (h *Host) Facts(ctx context.Context) (host.Facts, error) {
	return call(h, ctx, "Facts", shortDeadline, func(context.Context) (host.Facts, error) {
		var u unix.Utsname
		if err := unix.Uname(&u); err != nil {
			return host.Facts{}, fmt.Errorf("facts of %s: uname: %w", h.name, err)
		}
		f := host.Facts{
			Hostname:      unix.ByteSliceToString(u.Nodename[:]),
			KernelVersion: unix.ByteSliceToString(u.Release[:]),
			Architecture:  runtime.GOARCH,
			OS:            runtime.GOOS,
			OSImage:       machine.FirstOf(osImage("/etc/os-release"), osImage("/usr/lib/os-release")),
			MachineID:     machine.FirstOf(oneLine("/etc/machine-id"), oneLine("/var/lib/dbus/machine-id")),
			BootID:        oneLine("/proc/sys/kernel/random/boot_id"),
			CPUs:          cpus(),
			PhysicalCores: distinct("thread_siblings_list"),
			CPUSockets:    distinct("core_siblings_list"),
			PidsMax:       machine.Smaller(number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max")),
			CgroupVersion: h.hier.Version,
			HugePages:     hugePages("/sys/kernel/mm/hugepages"),
		}
		// In the order of the kubelet: from the firmware, the hypervisor, the file.
		f.SystemUUID = machine.FirstOf(strings.ToLower(oneLine("/sys/class/dmi/id/product_uuid")),
			strings.Trim(oneLine("/proc/device-tree/vm,uuid"), "\x00"), f.MachineID)
		var err error
		if f.Addresses, f.Routed, err = addresses(); err != nil {
			return host.Facts{}, fmt.Errorf("facts of %s: addresses: %w", h.name, err)
		}
		mem, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			return host.Facts{}, fmt.Errorf("facts of %s: %w", h.name, err)
		}
		f.MemoryBytes, f.SwapBytes = machine.Meminfo(mem, "MemTotal"), machine.Meminfo(mem, "SwapTotal")
		if f.RootDiskBytes, f.RootDiskInode, err = disk(h.rootDir); err != nil {
			return host.Facts{}, fmt.Errorf("facts of %s: disk of %s: %w", h.name, h.rootDir, err)
		}
		if f.ResolvConf, err = os.ReadFile("/etc/resolv.conf"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return host.Facts{}, fmt.Errorf("facts of %s: %w", h.name, err)
		}
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return host.Facts{}, fmt.Errorf("facts of %s: %w", h.name, err)
		}
		f.CanLowerOOMScore = machine.HasCapability(status, unix.CAP_SYS_RESOURCE)
		f.SELinux, f.SELinuxEnforcing = machine.SELinux(oneLine("/sys/fs/selinux/enforce"), oneLine("/proc/self/attr/current"))
		swaps, _ := os.ReadFile("/proc/swaps")
		f.Swaps = machine.Swaps(swaps)
		f.SwapControl = exists(machine.SwapControlFiles(f.CgroupVersion))
		f.ThermalThrottle = throttles(machine.ThermalThrottleDirs)
		f.AppArmor = machine.AppArmor(oneLine("/sys/module/apparmor/parameters/enabled"))
		return f, nil
	})
}

func oneLine(path string) string {
	data, _ := os.ReadFile(path)
	line, _, _ := bytes.Cut(data, []byte("\n"))
	return strings.TrimSpace(string(line))
}

// throttles returns the CPUs of the directories that match the pattern.
func throttles(pattern string) []int {
	found, _ := filepath.Glob(pattern)
	return machine.ThermalThrottle(found)
}

// exists reports whether any file matches any of the patterns.
func exists(patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		found, _ := filepath.Glob(p)
		return len(found) > 0
	})
}

func number(path string) int64 {
	n, _ := strconv.ParseInt(oneLine(path), 10, 64)
	return n
}

func osImage(path string) string {
	data, _ := os.ReadFile(path)
	return machine.PrettyName(data)
}

// distinct counts the different contents of a file that describes the place of each CPU.
func distinct(file string) int {
	paths, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/topology/" + file)
	seen := map[string]bool{}
	for _, p := range paths {
		if content := oneLine(p); content != "" {
			seen[content] = true
		}
	}
	return len(seen)
}

// cpus counts the CPUs of the host, not those that this process may use.
func cpus() int {
	if n := machine.CountList(oneLine("/sys/devices/system/cpu/online")); n > 0 {
		return n
	}
	return runtime.NumCPU()
}

// hugePages returns the reserved bytes by page size.
func hugePages(dir string) map[string]int64 {
	entries, _ := os.ReadDir(dir)
	pages := map[string]int64{}
	for _, e := range entries {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(e.Name(), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		pages[machine.PageSizeName(kb)] = number(filepath.Join(dir, e.Name(), "nr_hugepages")) * kb * 1024
	}
	return pages
}

// disk measures the file system of dir, or of its nearest parent that exists.
func disk(dir string) (size, inodes int64, err error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return int64(st.Blocks) * st.Frsize, int64(st.Files), nil
		}
		if !errors.Is(err, unix.ENOENT) || dir == "/" {
			return 0, 0, err
		}
		dir = filepath.Dir(dir)
	}
}
