package hostcheck

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
)

const containerdConfig = "/etc/containerd/config.toml"

// checkNoRuntime reports a socket that opens but does not serve CRI v1. config is containerd's
// configuration if the socket is containerd's and the file could be read.
func checkNoRuntime(socket string, err error, config []byte) Line {
	runtime := serviceOf(socket)
	if line, disabled := withoutCRI(config); disabled && errors.Is(err, cri.ErrNoCRI) {
		return Line{Failure, Runtime, "containerd runs with its CRI plugin disabled, as Docker's package sets it up",
			"in " + containerdConfig + " write\n" + line + "\nthen\nsystemctl restart containerd"}
	}
	fix := runtime.logs()
	switch {
	case !errors.Is(err, cri.ErrNoCRI):
	case !runtime.containerd():
		fix = "set the endpoint to the socket of a CRI runtime"
	default:
		fix = "find the setting that disables the CRI plugin of containerd, and remove it:\ncontainerd config dump | grep -A3 disabled_plugins\nsystemctl restart containerd"
	}
	found := err.Error()
	if errors.Is(err, cri.ErrNoCRI) {
		found = "the runtime at " + socket + " does not serve CRI v1"
	}
	return Line{Failure, Runtime, found, fix}
}

var (
	disabledPlugins = regexp.MustCompile(`(?ms)^[ \t]*disabled_plugins[ \t]*=[ \t]*\[(.*?)\]`)
	quoted          = regexp.MustCompile(`"[^"\n]*"|'[^'\n]*'`)
)

// withoutCRI reports whether the CRI plugin is among containerd's disabled plugins. line is the
// setting without it.
func withoutCRI(config []byte) (line string, disabled bool) {
	m := disabledPlugins.FindSubmatch(config)
	if m == nil {
		return "", false
	}
	var rest []string
	for _, p := range quoted.FindAllString(string(m[1]), -1) {
		switch strings.Trim(p, `"'`) {
		case "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images":
			disabled = true
		default:
			rest = append(rest, p)
		}
	}
	return "disabled_plugins = [" + strings.Join(rest, ", ") + "]", disabled
}

// EnableCRI removes the CRI plugin from the disabled plugins in containerd's configuration. It
// returns false if the plugin is not among them.
func EnableCRI(config []byte) (fixed []byte, disabled bool) {
	line, disabled := withoutCRI(config)
	if !disabled {
		return config, false
	}
	at := disabledPlugins.FindIndex(config)
	return slices.Concat(config[:at[0]], []byte(line), config[at[1]:]), true
}

// checkRuntime reports on a runtime that answers: name, version, and condition RuntimeReady.
func checkRuntime(see service, v *runtimeapi.VersionResponse, status *runtimeapi.RuntimeStatus) Line {
	name := v.GetRuntimeName() + " " + v.GetRuntimeVersion()
	if major, minor, known := parseVersion(v.GetRuntimeVersion()); v.GetRuntimeName() == "containerd" && known && (major < 1 || major == 1 && minor < 6) {
		return Line{Failure, Runtime, name + " is older than 1.6", "install containerd 1.6 or later"}
	}
	if c := condition(status, runtimeapi.RuntimeReady); c != nil && !c.GetStatus() {
		return Line{Failure, Runtime, name + " is not ready: " + conditionText(c), see.logs()}
	}
	return ok(Runtime, "%s, CRI v1, ready", name)
}

// checkEvents: err is of the subscription to the runtime's events. Without events the node relists
// each second, which costs bandwidth on a link.
func checkEvents(see service, err error) []Line {
	if !errors.Is(err, cri.ErrNoEvents) {
		return nil
	}
	fix := "enable the runtime's events (GetContainerEvents of the CRI)"
	if see.unit == "crio" {
		fix = "write to /etc/crio/crio.conf.d/10-events.conf:\n[crio.runtime]\nenable_pod_events = true\nthen run:\nsystemctl restart crio"
	}
	return []Line{{Warning, Runtime, "it sends no events: the node lists its containers every second instead", fix}}
}

func condition(s *runtimeapi.RuntimeStatus, kind string) *runtimeapi.RuntimeCondition {
	for _, c := range s.GetConditions() {
		if c.GetType() == kind {
			return c
		}
	}
	return nil
}

func conditionText(c *runtimeapi.RuntimeCondition) string {
	if c.GetMessage() == "" {
		return c.GetReason()
	}
	return c.GetMessage()
}

// parseVersion parses versions like "v1.6.20~ds1" and "2.1.4".
func parseVersion(s string) (major, minor int, known bool) {
	a, b, _ := strings.Cut(strings.TrimPrefix(s, "v"), ".")
	if i := strings.IndexFunc(b, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		b = b[:i]
	}
	major, err1 := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(b)
	return major, minor, err1 == nil && err2 == nil && major >= 0
}

// systemdInConfig finds the cgroup driver in the configuration that containerd 1 shows, which does
// not report it by RuntimeConfig.
var systemdInConfig = regexp.MustCompile(`"[sS]ystemdCgroup"\s*:\s*true`)

// checkCgroups reports the version, the cgroup driver, and missing controllers that limits need.
// driver is empty without a runtime. reported is true if the runtime reports the driver, and false
// if its configuration suggests it.
func checkCgroups(version int, controllers []string, driver string, reported bool) Line {
	if version == 0 {
		return Line{Failure, Cgroups, "no cgroups are mounted", "mount -t cgroup2 none /sys/fs/cgroup"}
	}
	var missing []string
	for _, want := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(controllers, want) {
			missing = append(missing, want)
		}
	}
	if len(missing) > 0 {
		fix := "enable them on the kernel command line, and reboot"
		if slices.Equal(missing, []string{"memory"}) {
			fix = "add this to the kernel command line, and reboot:\ncgroup_enable=memory cgroup_memory=1"
		}
		return Line{Failure, Cgroups, fmt.Sprintf("version %d without controllers for %s", version, strings.Join(missing, ", ")), fix}
	}
	if driver == "systemd" && !reported {
		return Line{Warning, Cgroups, fmt.Sprintf("version %d; the runtime uses the systemd driver, but is too old to report it", version),
			"set in the node's configuration:\ncgroupDriver: systemd"}
	}
	if driver == "" {
		return ok(Cgroups, "version %d, controllers cpu, memory, pids; the runtime chooses the driver", version)
	}
	return ok(Cgroups, "version %d, driver %s, controllers cpu, memory, pids", version, driver)
}

// parseControllers parses /proc/cgroups (version 1: only mounted controllers) or cgroup.controllers
// (version 2).
func parseControllers(version int, data string) []string {
	if version == 2 {
		return strings.Fields(data)
	}
	var names []string
	for line := range strings.Lines(data) {
		f := strings.Fields(line)
		if len(f) == 4 && !strings.HasPrefix(f[0], "#") && f[1] != "0" && f[3] == "1" {
			names = append(names, f[0])
		}
	}
	return names
}
