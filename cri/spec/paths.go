package spec

import (
	"path"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

func join(elem ...string) string { return path.Join(elem...) }

// VolumeDir returns the directory of a volume's content. plugin is the plugin's name, with the
// slash escaped or not ("kubernetes.io/empty-dir", "kubernetes.io~empty-dir").
func VolumeDir(root string, uid types.UID, plugin, name string) string {
	return join(PodDir(root, uid), "volumes", strings.ReplaceAll(plugin, "/", "~"), name)
}

// ContainerDir returns the directory of a container's termination logs, one file per instance.
func ContainerDir(root string, uid types.UID, container string) string {
	return join(PodDir(root, uid), "containers", container)
}

// TerminationLogPath returns the file behind a container's terminationMessagePath. Its name is the
// attempt, so a retried start finds the same file.
func TerminationLogPath(root string, uid types.UID, container string, attempt uint32) string {
	return join(ContainerDir(root, uid, container), strconv.FormatUint(uint64(attempt), 10))
}

// EtcHostsPath returns the path of the pod's managed hosts file on the host.
func EtcHostsPath(root string, uid types.UID) string { return join(PodDir(root, uid), "etc-hosts") }

// LogDir returns the log directory of a pod: PodSandboxConfig.LogDirectory.
func LogDir(m Machine, p *v1.Pod) string {
	return join(m.PodLogsDir, p.Namespace+"_"+p.Name+"_"+string(p.UID))
}

// LogPath returns a container's log file relative to LogDir: ContainerConfig.LogPath.
func LogPath(container string, attempt uint32) string {
	return join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}

// LogLink returns the name of a container instance's link in /var/log/containers, in the form that
// log collectors expect. A file name has at most 255 bytes.
func LogLink(p *v1.Pod, container, id string) string {
	const longest = 255 - len(".log")
	name := p.Name + "_" + p.Namespace + "_" + container + "-" + id
	if len(name) > longest {
		name = name[:longest]
	}
	return name + ".log"
}

// CgroupPath returns the pod's cgroup below Machine.CgroupRoot: /kubepods/burstable/pod<uid>, or
// the slices of the systemd driver. The cgroup of a Guaranteed pod is directly in kubepods.
func CgroupPath(p *v1.Pod, m Machine) string { return driversPath(cgroupParts(p), m.CgroupDriver) }

// driversPath returns a cgroup in the form of the runtime's cgroup driver.
func driversPath(parts []string, driver string) string {
	if driver == "systemd" {
		return systemdSlice(parts)
	}
	return "/" + path.Join(parts...)
}

func cgroupParts(p *v1.Pod) []string {
	parts := []string{"kubepods"}
	switch pod.QOSClass(p) {
	case v1.PodQOSBurstable:
		parts = append(parts, "burstable")
	case v1.PodQOSBestEffort:
		parts = append(parts, "besteffort")
	}
	return append(parts, "pod"+string(p.UID))
}

// CgroupParent returns LinuxPodSandboxConfig.CgroupParent: the pod's cgroup below
// Machine.CgroupRoot, in the form of the runtime's cgroup driver.
func CgroupParent(p *v1.Pod, m Machine) string {
	parts := cgroupParts(p)
	if root := strings.Trim(m.CgroupRoot, "/"); root != "" {
		parts = append(strings.Split(root, "/"), parts...)
	}
	return driversPath(parts, m.CgroupDriver)
}

// systemdSlice returns the path of nested slices. A slice's name repeats the names above it, joined
// by dashes, so dashes within a part become underscores.
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
