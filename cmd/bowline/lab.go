package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/hint"
)

// labProgram is the lab's program. It is separate so that bowline does not contain Kubernetes,
// containerd and a registry.
const labProgram = "bowline-lab"

// labCommand is hidden unless the lab's program is built: a release does not contain it.
func labCommand(find func() (string, error)) *cobra.Command {
	_, absent := find()
	return &cobra.Command{
		Use:                "lab up|down|status|kubectl|kubeconfig|load-image|exec",
		Short:              "A whole Kubernetes cluster on this machine, to try Bowline on",
		Hidden:             absent != nil,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			program, err := find()
			if err != nil {
				return err
			}
			// exec: signals, terminal and exit status become the lab's own.
			return fmt.Errorf("run %s: %w", program, syscall.Exec(program, append([]string{program}, args...), os.Environ()))
		},
	}
}

// findLab looks next to this program, in the lab's cache and in PATH.
func findLab() (string, error) {
	var places []string
	if self, err := os.Executable(); err == nil {
		places = append(places, filepath.Dir(self))
	}
	if cache := os.Getenv("BOWLINE_CACHE"); cache != "" {
		places = append(places, filepath.Join(cache, "bin"))
	}
	if cache, err := os.UserCacheDir(); err == nil {
		places = append(places, filepath.Join(cache, "bowline", "bin"))
	}
	places = append(places, "/var/cache/bowline/bin")
	for _, dir := range places {
		if p := filepath.Join(dir, labProgram); executable(p) {
			return p, nil
		}
	}
	if p, err := exec.LookPath(labProgram); err == nil {
		return p, nil
	}
	return "", hint.Add(fmt.Errorf("%s is not built", labProgram), "run `make lab` in the source tree")
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
