// Package version has the version of this program.
package version

import (
	"runtime"
	"runtime/debug"
)

// Set by the linker. Without a Commit, Go's VCS stamp is used.
var (
	Version = "dev"
	Commit  string
)

// Build describes this program.
type Build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Go       string `json:"goVersion"`
	Platform string `json:"platform"`
}

// This returns the description of the running program.
func This() Build {
	b := Build{Version: Version, Commit: Commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok && b.Commit == "" {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				b.Commit = s.Value + b.Commit
			case s.Key == "vcs.modified" && s.Value == "true":
				b.Commit += "-dirty"
			}
		}
	}
	return b
}
