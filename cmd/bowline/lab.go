package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
)

// labProgram runs the lab. It is a program of its own, so that this one does not
// carry Kubernetes, containerd and a registry.
const labProgram = "bowline-lab"

func labCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "lab up|down|status|kubectl|kubeconfig|load-image",
		Short:              "A whole Kubernetes cluster on this machine, to try Bowline on",
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			program, err := findLab()
			if err != nil {
				return err
			}
			cmd := exec.Command(program, args...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
			err = cmd.Run()
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return exitError(exit.ExitCode())
			}
			return err
		},
	}
}

// findLab looks beside this program, in the lab's cache and on the PATH.
func findLab() (string, error) {
	var places []string
	if self, err := os.Executable(); err == nil {
		places = append(places, filepath.Dir(self))
	}
	if cache := os.Getenv("BOWLINE_CACHE"); cache != "" {
		places = append(places, filepath.Join(cache, "bin"))
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
	return "", fmt.Errorf("%s is not built: run `make lab` in the source tree", labProgram)
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
