package hostcheck

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cni is the CNI configuration of the machine.
type cni struct {
	confDir string
	binDirs []string
	loaded  bool     // the runtime reports binDirs; false: they are the default
	configs []string // CNI configuration files, by name
	plugins []string // plugins that the first of them calls
	bins    []string // the files in binDirs
}

// parseCNI parses the CNI directories in the configuration that containerd shows. It falls back to
// the default directories.
func parseCNI(config string) cni {
	var c struct {
		CNI struct {
			ConfDir string   `json:"confDir"`
			BinDir  string   `json:"binDir"`  // containerd 1
			BinDirs []string `json:"binDirs"` // containerd 2
		} `json:"cni"`
	}
	_ = json.Unmarshal([]byte(config), &c) // unknown shape: use the defaults
	out := cni{confDir: "/etc/cni/net.d"}
	if path.IsAbs(c.CNI.ConfDir) {
		out.confDir = c.CNI.ConfDir
	}
	for _, dir := range append(c.CNI.BinDirs, c.CNI.BinDir) {
		if path.IsAbs(dir) {
			out.binDirs, out.loaded = append(out.binDirs, dir), true
		}
	}
	if !out.loaded {
		out.binDirs = []string{"/opt/cni/bin"}
	}
	return out
}

// isNetworkConfig follows the rule of libcni's loader.
func isNetworkConfig(name string) bool {
	return strings.HasSuffix(name, ".conf") || strings.HasSuffix(name, ".conflist") || strings.HasSuffix(name, ".json")
}

// parsePlugins lists the plugins that a network configuration calls.
func parsePlugins(data []byte) ([]string, error) {
	type plugin struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	var c struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, err
	}
	var names []string
	for _, p := range append(c.Plugins, c.plugin) {
		for _, n := range []string{p.Type, p.IPAM.Type} {
			if n != "" && !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	return names, nil
}

// ready reports the runtime's condition NetworkReady.
func ready(status *runtimeapi.RuntimeStatus) bool {
	return condition(status, runtimeapi.NetworkReady).GetStatus()
}

// checkNetwork reports whether pods can have a network, and what is missing.
func checkNetwork(see service, status *runtimeapi.RuntimeStatus, c cni) Line {
	cond := condition(status, runtimeapi.NetworkReady)
	if cond == nil {
		return Line{Warning, Network, "the runtime does not report whether its network is ready", "check it manually"}
	}
	var missing []string
	for _, p := range c.plugins {
		if !slices.Contains(c.bins, p) {
			missing = append(missing, p)
		}
	}
	found := "not ready: " + conditionText(cond)
	switch {
	case cond.GetStatus() && c.loaded && len(missing) > 0:
		// containerd reads the configuration, but searches the plugins only for the first pod.
		found = "reported as ready, but pod networks will fail"
	case cond.GetStatus():
		return ok(Network, "ready")
	case len(c.configs) == 0:
		return Line{Failure, Network, found, fmt.Sprintf("%s has no *.conflist: install the cluster's network (a network add-on that runs on each node does it when the node joins)", c.confDir)}
	case len(missing) == 0:
		return Line{Failure, Network, found, see.logs() + fmt.Sprintf("\nabout %s/%s", c.confDir, c.configs[0])}
	}
	return Line{Failure, Network, found, fmt.Sprintf("%s needs plugins that are not in %s: %s; install them from\nhttps://github.com/containernetworking/plugins/releases",
		c.configs[0], strings.Join(c.binDirs, ", "), strings.Join(missing, ", "))}
}
