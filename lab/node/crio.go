package node

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/bowline-k8s/bowline/lab/layout"
)

// crio is the path of a program that hack/build-crio.sh built.
func (t Tools) crio(program string) string {
	return filepath.Join(filepath.Dir(t.Bin), "crio", "bin", program)
}

// MissingCRIO returns the path of a CRI-O program that has not been built, or "" if none is
// missing.
func MissingCRIO(t Tools) string {
	for _, program := range []string{"crio", "pinns"} {
		if _, err := os.Stat(t.crio(program)); err != nil {
			return t.crio(program)
		}
	}
	return ""
}

// crioRunc is the program that a host's CRI-O starts as its OCI runtime. It adapts the container to
// this machine and executes runc (see Runc).
func crioRunc(h layout.Host) string { return h.Path("crio", "runc") }

// crioFiles returns the contents of a host's files for CRI-O, by path.
func crioFiles(t Tools, h layout.Host, config string) map[string]string {
	return map[string]string{
		config:      crioConfig(t, h),
		crioRunc(h): fmt.Sprintf("#!/bin/sh\nexec %s _runc \"$@\"\n", t.Self),
		// The lab's images are not signed.
		h.Path("crio", "policy.json"): `{"default": [{"type": "insecureAcceptAnything"}]}` + "\n",
		// These are in the host's own /etc.
		h.Path("root/etc/containers/policy.json"): `{"default": [{"type": "insecureAcceptAnything"}]}` + "\n",
		h.Path("root/etc/containers/registries.conf"): fmt.Sprintf(`short-name-mode = "disabled"

[[registry]]
prefix = %q
location = %q
insecure = true

[[registry]] # plain HTTP on loopback, as containerd takes it
location = "127.0.0.1"
insecure = true
`, layout.Registry, h.Lab.RegistryAddress()),
	}
}

func crioConfig(t Tools, h layout.Host) string {
	return fmt.Sprintf(`[crio]
root = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
storage_driver = "overlay"
version_file = "/run/crio/version"
version_file_persist = ""
clean_shutdown_file = ""

[crio.api]
listen = %q

[crio.runtime]
cgroup_manager = "cgroupfs"
default_runtime = "runc"
pinns_path = %q
hooks_dir = []
enable_pod_events = true

[crio.runtime.runtimes.runc]
runtime_path = %q
runtime_type = "oci"
runtime_root = "/run/runc"
monitor_path = "/usr/bin/conmon"
monitor_cgroup = "pod"

[crio.image]
pause_image = %q
pause_command = "/bin/pause"
signature_policy = %q

[crio.network]
network_dir = "/etc/cni/net.d"
plugin_dirs = ["/opt/cni/bin", "/usr/lib/cni"]

[crio.nri]
enable_nri = false
`, layout.CRIO.Socket(), t.crio("pinns"), crioRunc(h), layout.Registry+"/pause:lab", h.Path("crio", "policy.json"))
}
