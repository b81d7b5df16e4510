package hostcheck

import (
	"context"
	"maps"
)

// Found is what a look gathered that a mend can be decided on.
type Found struct {
	// Asked: the machine could be asked, as root.
	Asked bool
	// CRI: a runtime answers at the socket.
	CRI bool
	// Config is containerd's configuration file at ContainerdConfig, where no CRI
	// answers; nil if there is none.
	Config []byte

	NetworkReady bool     // by the runtime's word; of no meaning without CRI
	ConfDir      string   // of the network's configuration; empty without CRI
	BinDirs      []string // where its programs are looked for
	Networks     []string // the files of ConfDir that configure a network
	Programs     []string // what is in BinDirs

	// Sysctls by name; one that is missing is one that this kernel does not have.
	Sysctls map[string]string
}

// ContainerdConfig is where containerd's configuration is, unless it is told
// otherwise.
const ContainerdConfig = containerdConfig

// Look is Run, with what the report was made from.
func Look(ctx context.Context, c Config) (*Report, Found) {
	if c.Target == nil {
		return look(ctx, c, nearWay{c.RootDir}, true)
	}
	return look(ctx, c, &farWay{target: c.Target, rootDir: c.RootDir}, false)
}

// found is what of an examination is of use to others.
func (e *examination) found() Found {
	return Found{
		Asked: e.machine != nil && e.root && e.gone == nil, CRI: e.status != nil, Config: e.file,
		NetworkReady: ready(e.status), ConfDir: e.network.confDir, BinDirs: e.network.binDirs,
		Networks: e.network.configs, Programs: e.network.bins, Sysctls: maps.Clone(e.sysctls),
	}
}
