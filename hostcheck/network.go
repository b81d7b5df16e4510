package hostcheck

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cni is what lies on the machine for its pods' network.
type cni struct {
	confDir, binDir string
	configs         []string // files that configure a network, by name
	plugins         []string // programs that the first of them calls
	bins            []string // what is in binDir
}

// cniDirs are the directories that containerd shows in its configuration; the usual
// ones where it does not.
func cniDirs(config string) (confDir, binDir string) {
	var c struct {
		CNI struct {
			ConfDir string   `json:"confDir"`
			BinDir  string   `json:"binDir"`
			BinDirs []string `json:"binDirs"`
		} `json:"cni"`
	}
	_ = json.Unmarshal([]byte(config), &c) // of another shape: the usual ones
	confDir, binDir = "/etc/cni/net.d", "/opt/cni/bin"
	if strings.HasPrefix(c.CNI.ConfDir, "/") {
		confDir = c.CNI.ConfDir
	}
	if len(c.CNI.BinDirs) > 0 {
		c.CNI.BinDir = c.CNI.BinDirs[0]
	}
	if strings.HasPrefix(c.CNI.BinDir, "/") {
		binDir = c.CNI.BinDir
	}
	return confDir, binDir
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

// judgeNetwork: whether pods can have a network, and what is missing for it.
func judgeNetwork(status *runtimeapi.RuntimeStatus, c cni) Line {
	cond := condition(status, runtimeapi.NetworkReady)
	if cond == nil {
		return Line{Warning, Network, "the runtime does not say whether its network is ready", "look at it by hand"}
	}
	if cond.GetStatus() {
		return ok(Network, "ready")
	}
	found := "not ready: " + said(cond)
	if len(c.configs) == 0 {
		return Line{Failure, Network, found, fmt.Sprintf("there is no *.conflist in %s: put the one of the cluster's network there (an add-on that runs on each node brings its own, once the node is there)", c.confDir)}
	}
	var missing []string
	for _, p := range c.plugins {
		if !slices.Contains(c.bins, p) {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		return Line{Failure, Network, found, fmt.Sprintf("%s calls what is not in %s: %s; put it there, from\nhttps://github.com/containernetworking/plugins/releases",
			c.configs[0], c.binDir, strings.Join(missing, ", "))}
	}
	return Line{Failure, Network, found, "see what the runtime says of " + c.confDir + "/" + c.configs[0] + ":\njournalctl -u containerd | grep -i cni"}
}
