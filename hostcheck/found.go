package hostcheck

import (
	"context"
	"maps"
)

// Found is what a look gathered for a caller that decides on fixes.
type Found struct {
	// Asked: the machine could be examined as root.
	Asked bool
	// CRI: a runtime answers at the socket.
	CRI bool
	// Config is the content of ContainerdConfig if no CRI answers; nil if the file does not exist.
	Config []byte

	NetworkReady bool     // as the runtime reports; meaningless without CRI
	ConfDir      string   // of the CNI configuration; empty without CRI
	BinDirs      []string // where the CNI plugins are searched
	Networks     []string // the CNI configuration files in ConfDir
	Programs     []string // the files in BinDirs

	// Sysctls by name. A missing one does not exist in this kernel.
	Sysctls map[string]string
}

// ContainerdConfig is the default path of containerd's configuration.
const ContainerdConfig = containerdConfig

// Look is Run, and also returns what the report is based on.
func Look(ctx context.Context, c Config) (*Report, Found) {
	if c.Target == nil {
		return look(ctx, c, localWay{c.RootDir}, true)
	}
	return look(ctx, c, &remoteWay{target: c.Target, rootDir: c.RootDir}, false)
}

// found extracts from an examination what other packages use.
func (e *examination) found() Found {
	return Found{
		Asked: e.machine != nil && e.root && e.gone == nil, CRI: e.status != nil, Config: e.file,
		NetworkReady: ready(e.status), ConfDir: e.network.confDir, BinDirs: e.network.binDirs,
		Networks: e.network.configs, Programs: e.network.bins, Sysctls: maps.Clone(e.sysctls),
	}
}
