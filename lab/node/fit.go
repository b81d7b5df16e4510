package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Runc adapts the container that runc is about to start to this machine, and executes runc. args
// are runc's own. containerd does the same if it is configured to; CRI-O does not, and runc would
// refuse the container.
func Runc(args []string) error {
	limits := machineLimits()
	if bundle := option(args, "--bundle", "-b"); bundle != "" {
		if err := rewrite(filepath.Join(bundle, "config.json"), limits.fitContainer); err != nil {
			return err
		}
	}
	if process := option(args, "--process", "-p"); process != "" {
		if err := rewrite(process, limits.fitProcess); err != nil {
			return err
		}
	}
	runc, err := lookRunc()
	if err != nil {
		return err
	}
	return fmt.Errorf("run %s: %w", runc, syscall.Exec(runc, append([]string{"runc"}, args...), os.Environ()))
}

// lookRunc finds runc even without a PATH: conmon clears the environment.
func lookRunc() (string, error) {
	path := os.Getenv("PATH")
	if path == "" {
		path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	for _, dir := range filepath.SplitList(path) {
		if info, err := os.Stat(filepath.Join(dir, "runc")); err == nil && info.Mode()&0o111 != 0 {
			return filepath.Join(dir, "runc"), nil
		}
	}
	return "", errors.New("runc is not on the PATH " + path)
}

// option returns the value of an option of runc, given as one argument or two.
func option(args []string, names ...string) string {
	for i, arg := range args {
		for _, name := range names {
			if value, ok := strings.CutPrefix(arg, name+"="); ok {
				return value
			}
			if arg == name && i+1 < len(args) {
				return args[i+1]
			}
		}
	}
	return ""
}

// limits describe what the lab's processes cannot give a container on this machine.
type limits struct {
	hugetlb     bool // there is a hierarchy for limits of huge pages
	oomScoreAdj int  // the lowest value that a process may set
	// capabilities is the bounding set, a bit for each of capabilityNames.
	capabilities uint64
}

// capabilityNames is in the order of the capabilities' numbers (capabilities(7)).
var capabilityNames = strings.Fields(`CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL
	CAP_SETGID CAP_SETUID CAP_SETPCAP CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW
	CAP_IPC_LOCK CAP_IPC_OWNER CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT CAP_SYS_ADMIN
	CAP_SYS_BOOT CAP_SYS_NICE CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_MKNOD CAP_LEASE CAP_AUDIT_WRITE
	CAP_AUDIT_CONTROL CAP_SETFCAP CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_AUDIT_READ
	CAP_PERFMON CAP_BPF CAP_CHECKPOINT_RESTORE`)

// boundingSet returns CapBnd of /proc/self/status, or all capabilities if it cannot be read.
func boundingSet() uint64 {
	data, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			if set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64); err == nil {
				return set
			}
		}
	}
	return ^uint64(0)
}

// may reports whether a container can have a capability on this machine.
func (l limits) may(name string) bool {
	number := slices.Index(capabilityNames, name)
	return number < 0 || l.capabilities&(1<<number) != 0
}

func machineLimits() limits {
	l := limits{oomScoreAdj: -1000, capabilities: boundingSet()}
	for _, path := range []string{"/sys/fs/cgroup/hugetlb", "/sys/fs/cgroup/cgroup.controllers"} {
		data, err := os.ReadFile(path)
		var isDir *fs.PathError
		if err == nil && strings.Contains(string(data), "hugetlb") || errors.As(err, &isDir) && errors.Is(err, syscall.EISDIR) {
			l.hugetlb = true
		}
	}
	if !canLowerOOMScore() {
		if data, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
			if own, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
				l.oomScoreAdj = own
			}
		}
	}
	return l
}

// fitContainer adapts an OCI runtime configuration.
func (l limits) fitContainer(config map[string]any) {
	if linux, ok := config["linux"].(map[string]any); ok && !l.hugetlb {
		if resources, ok := linux["resources"].(map[string]any); ok {
			delete(resources, "hugepageLimits")
		}
	}
	if process, ok := config["process"].(map[string]any); ok {
		l.fitProcess(process)
	}
}

// fitProcess adapts the process of an OCI runtime configuration.
func (l limits) fitProcess(process map[string]any) {
	// A privileged container gets every capability that CRI-O knows.
	if sets, ok := process["capabilities"].(map[string]any); ok {
		for kind, value := range sets {
			if names, ok := value.([]any); ok {
				sets[kind] = slices.DeleteFunc(names, func(name any) bool {
					text, ok := name.(string)
					return ok && !l.may(text)
				})
			}
		}
	}
	number, ok := process["oomScoreAdj"].(json.Number)
	if !ok {
		return
	}
	if value, err := number.Int64(); err == nil && int(value) < l.oomScoreAdj {
		process["oomScoreAdj"] = l.oomScoreAdj
	}
}

// rewrite changes a JSON file in place. Numbers keep their digits.
func rewrite(path string, change func(map[string]any)) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // runc reports it better
	}
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var value map[string]any
	if err := decoder.Decode(&value); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	change(value)
	changed, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return os.WriteFile(path, changed, 0o600)
}
