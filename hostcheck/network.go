package hostcheck

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cni is what lies on the machine for its pods' network.
type cni struct {
	confDir string
	binDirs []string
	told    bool     // binDirs are the runtime's own word, and not the usual ones
	configs []string // files that configure a network, by name
	plugins []string // programs that the first of them calls
	bins    []string // what is in binDirs
}

// parseCNI reads where containerd, by the configuration that it shows, has its
// network; the usual directories where it does not say.
func parseCNI(config string) cni {
	var c struct {
		CNI struct {
			ConfDir string   `json:"confDir"`
			BinDir  string   `json:"binDir"`  // containerd 1
			BinDirs []string `json:"binDirs"` // containerd 2
		} `json:"cni"`
	}
	_ = json.Unmarshal([]byte(config), &c) // of another shape: the usual ones
	out := cni{confDir: "/etc/cni/net.d"}
	if path.IsAbs(c.CNI.ConfDir) {
		out.confDir = c.CNI.ConfDir
	}
	for _, dir := range append(c.CNI.BinDirs, c.CNI.BinDir) {
		if path.IsAbs(dir) {
			out.binDirs, out.told = append(out.binDirs, dir), true
		}
	}
	if !out.told {
		out.binDirs = []string{"/opt/cni/bin"}
	}
	return out
}

// isNetworkConfig is the rule of libcni's loader.
func isNetworkConfig(name string) bool {
	return strings.HasSuffix(name, ".conf") || strings.HasSuffix(name, ".conflist") || strings.HasSuffix(name, ".json")
}

// parsePlugins are the programs that a network configuration calls.
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

// ready tells whether a runtime that answers calls its network ready.
func ready(status *runtimeapi.RuntimeStatus) bool {
	return condition(status, runtimeapi.NetworkReady).GetStatus()
}

// judgeNetwork: whether pods can have a network, and what is missing for it.
func judgeNetwork(see service, status *runtimeapi.RuntimeStatus, c cni) Line {
	cond := condition(status, runtimeapi.NetworkReady)
	if cond == nil {
		return Line{Warning, Network, "the runtime does not say whether its network is ready", "look at it by hand"}
	}
	var missing []string
	for _, p := range c.plugins {
		if !slices.Contains(c.bins, p) {
			missing = append(missing, p)
		}
	}
	found := "not ready: " + said(cond)
	switch {
	case cond.GetStatus() && c.told && len(missing) > 0:
		// containerd reads the configuration, and looks for the programs with the first pod.
		found = "called ready, and a pod's network will fail"
	case cond.GetStatus():
		return ok(Network, "ready")
	case len(c.configs) == 0:
		return Line{Failure, Network, found, fmt.Sprintf("there is no *.conflist in %s: put the one of the cluster's network there (an add-on that runs on each node brings its own, once the node is there)", c.confDir)}
	case len(missing) == 0:
		return Line{Failure, Network, found, see.logs() + fmt.Sprintf("\nabout %s/%s", c.confDir, c.configs[0])}
	}
	return Line{Failure, Network, found, fmt.Sprintf("%s calls what is not in %s: %s; put it there, from\nhttps://github.com/containernetworking/plugins/releases",
		c.configs[0], strings.Join(c.binDirs, ", "), strings.Join(missing, ", "))}
}
