package local

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
)

// Facts fails only where a node could not be made of the rest; what a machine
// may lack (DMI, swap, huge pages) stays zero.
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
			OSImage:       firstOf(osImage("/etc/os-release"), osImage("/usr/lib/os-release")),
			MachineID:     firstOf(oneLine("/etc/machine-id"), oneLine("/var/lib/dbus/machine-id")),
			BootID:        oneLine("/proc/sys/kernel/random/boot_id"),
			CPUs:          cpus(),
			PidsMax:       smaller(number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max")),
			CgroupVersion: h.hier.version,
			HugePages:     hugePages("/sys/kernel/mm/hugepages"),
		}
		// As the kubelet reports it: the firmware's, the hypervisor's, the file's.
		f.SystemUUID = firstOf(strings.ToLower(oneLine("/sys/class/dmi/id/product_uuid")),
			strings.Trim(oneLine("/proc/device-tree/vm,uuid"), "\x00"), f.MachineID)
		var err error
		if f.Addresses, err = addresses(); err != nil {
			return host.Facts{}, fmt.Errorf("facts of %s: addresses: %w", h.name, err)
		}
		mem, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			return host.Facts{}, fmt.Errorf("facts of %s: %w", h.name, err)
		}
		f.MemoryBytes, f.SwapBytes = meminfo(mem, "MemTotal"), meminfo(mem, "SwapTotal")
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
		f.CanLowerOOMScore = hasCapability(status, unix.CAP_SYS_RESOURCE)
		return f, nil
	})
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// smaller of two numbers of which zero means not known.
func smaller(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func oneLine(path string) string {
	data, _ := os.ReadFile(path)
	line, _, _ := bytes.Cut(data, []byte("\n"))
	return strings.TrimSpace(string(line))
}

func number(path string) int64 {
	n, _ := strconv.ParseInt(oneLine(path), 10, 64)
	return n
}

func osImage(path string) string {
	data, _ := os.ReadFile(path)
	return prettyName(data)
}

// prettyName reads os-release(5): PRETTY_NAME, else NAME; the last line wins.
func prettyName(data []byte) string {
	values := map[string]string{}
	for line := range bytes.Lines(data) {
		key, value, ok := strings.Cut(strings.TrimSpace(string(line)), "=")
		if !ok || strings.HasPrefix(key, "#") {
			continue
		}
		if len(value) >= 2 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			quoted := value[0] == '"'
			value = value[1 : len(value)-1]
			if quoted {
				value = strings.NewReplacer(`\"`, `"`, `\$`, `$`, `\\`, `\`, "\\`", "`").Replace(value)
			}
		}
		values[key] = value
	}
	return firstOf(values["PRETTY_NAME"], values["NAME"])
}

// cpus counts what the machine has, not what this process may use.
func cpus() int {
	if n := countList(oneLine("/sys/devices/system/cpu/online")); n > 0 {
		return n
	}
	return runtime.NumCPU()
}

// countList counts the members of a list such as "0-3,8".
func countList(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(lo)
		if err != nil {
			return 0
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(hi); err != nil || b < a {
				return 0
			}
		}
		n += b - a + 1
	}
	return n
}

// meminfo returns one value of /proc/meminfo in bytes.
func meminfo(data []byte, key string) int64 {
	for line := range bytes.Lines(data) {
		fields := strings.Fields(string(line))
		if len(fields) >= 2 && fields[0] == key+":" {
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			return n * 1024
		}
	}
	return 0
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
		pages[pageSizeName(kb)] = number(filepath.Join(dir, e.Name(), "nr_hugepages")) * kb * 1024
	}
	return pages
}

// pageSizeName is the kernel's own short form in file names, "2MB".
func pageSizeName(kb int64) string {
	switch {
	case kb >= 1<<20:
		return strconv.FormatInt(kb>>20, 10) + "GB"
	case kb >= 1<<10:
		return strconv.FormatInt(kb>>10, 10) + "MB"
	}
	return strconv.FormatInt(kb, 10) + "KB"
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

// hasCapability reads the bounding set: it is what a runtime beside us can give.
func hasCapability(status []byte, capability uint) bool {
	for line := range bytes.Lines(status) {
		value, ok := strings.CutPrefix(string(line), "CapBnd:")
		if !ok {
			continue
		}
		set, err := hex.DecodeString(strings.TrimSpace(value))
		if err != nil || int(capability/8) >= len(set) {
			return false
		}
		return set[len(set)-1-int(capability/8)]&(1<<(capability%8)) != 0
	}
	return false
}

// addresses are the global unicast ones of interfaces that are up: first those
// of the interface with the default route, IPv4 before IPv6.
func addresses() ([]net.IP, error) {
	ifaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	route, _ := os.ReadFile("/proc/net/route")
	preferred := defaultInterface(route)
	type ranked struct {
		ip   net.IP
		rank int
	}
	var all []ranked
	for _, i := range ifaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // the interface went since it was listed
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok || !n.IP.IsGlobalUnicast() {
				continue
			}
			r := ranked{ip: n.IP}
			if i.Name != preferred {
				r.rank += 2
			}
			if n.IP.To4() == nil {
				r.rank++
			}
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return a.rank - b.rank })
	ips := make([]net.IP, 0, len(all))
	for _, r := range all {
		ips = append(ips, r.ip)
	}
	return ips, nil
}

// defaultInterface reads /proc/net/route: the default route of least metric.
func defaultInterface(table []byte) string {
	best, bestMetric := "", uint64(0)
	for line := range bytes.Lines(table) {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask ...
		f := strings.Fields(string(line))
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
			continue
		}
		metric, err := strconv.ParseUint(f[6], 10, 32)
		if err == nil && (best == "" || metric < bestMetric) {
			best, bestMetric = f[0], metric
		}
	}
	return best
}
