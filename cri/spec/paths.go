package spec

import (
	"path"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func join(elem ...string) string { return path.Join(elem...) }

// VolumeDir is where a volume's content lies; plugin is its name with or
// without the slash escaped ("kubernetes.io/empty-dir", "kubernetes.io~empty-dir").
func VolumeDir(root string, uid types.UID, plugin, name string) string {
	return join(PodDir(root, uid), "volumes", strings.ReplaceAll(plugin, "/", "~"), name)
}

// ContainerDir holds the termination logs of one container, one file an instance.
func ContainerDir(root string, uid types.UID, container string) string {
	return join(PodDir(root, uid), "containers", container)
}

// TerminationLogPath is the file behind a container's terminationMessagePath.
// It is named by the attempt, so a start that is tried again finds the same one.
func TerminationLogPath(root string, uid types.UID, container string, attempt uint32) string {
	return join(ContainerDir(root, uid, container), strconv.FormatUint(uint64(attempt), 10))
}

// EtcHostsPath is the pod's managed hosts file on the machine.
func EtcHostsPath(root string, uid types.UID) string { return join(PodDir(root, uid), "etc-hosts") }

// LogDir is the log directory of a pod: PodSandboxConfig.LogDirectory.
func LogDir(m Machine, p *v1.Pod) string {
	return join(m.PodLogsDir, p.Namespace+"_"+p.Name+"_"+string(p.UID))
}

// LogPath is a container's log file relative to LogDir: ContainerConfig.LogPath.
func LogPath(container string, attempt uint32) string {
	return join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}

// LogLink is the name of the link in /var/log/containers for one container
// instance, as log collectors expect it. A file name has at most 255 bytes.
func LogLink(p *v1.Pod, container, id string) string {
	const longest = 255 - len(".log")
	name := p.Name + "_" + p.Namespace + "_" + container + "-" + id
	if len(name) > longest {
		name = name[:longest]
	}
	return name + ".log"
}

// CgroupPath is the pod's cgroup below Machine.CgroupRoot: /kubepods/burstable/pod<uid>,
// or the slices of the systemd driver; a Guaranteed pod lies directly in kubepods.
func CgroupPath(p *v1.Pod, m Machine) string { return driversPath(cgroupParts(p), m.CgroupDriver) }

// driversPath is a cgroup in the form of the runtime's driver.
func driversPath(parts []string, driver string) string {
	if driver == "systemd" {
		return systemdSlice(parts)
	}
	return "/" + path.Join(parts...)
}

func cgroupParts(p *v1.Pod) []string {
	parts := []string{"kubepods"}
	switch QOSClass(p) {
	case v1.PodQOSBurstable:
		parts = append(parts, "burstable")
	case v1.PodQOSBestEffort:
		parts = append(parts, "besteffort")
	}
	return append(parts, "pod"+string(p.UID))
}

// CgroupParent is LinuxPodSandboxConfig.CgroupParent: the pod's cgroup in the
// runtime's driver's form, below Machine.CgroupRoot.
func CgroupParent(p *v1.Pod, m Machine) string {
	parts := cgroupParts(p)
	if root := strings.Trim(m.CgroupRoot, "/"); root != "" {
		parts = append(strings.Split(root, "/"), parts...)
	}
	return driversPath(parts, m.CgroupDriver)
}

// systemdSlice is the path of nested slices: a slice's name repeats those above
// it, joined by dashes, so dashes within a part become underscores.
func systemdSlice(parts []string) string {
	var name, dir strings.Builder
	for i, part := range parts {
		if i > 0 {
			name.WriteByte('-')
		}
		name.WriteString(strings.ReplaceAll(part, "-", "_"))
		dir.WriteString("/" + name.String() + ".slice")
	}
	return dir.String()
}
