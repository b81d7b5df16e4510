package main

import (
	"fmt"
	"strings"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host"
)

// swapAllowed refuses a machine on which swap is on, unless its owner says otherwise, as
// a kubelet does. Containers are denied swap then, by cri/spec.
func swapAllowed(cfg *config.Host, facts host.Facts) error {
	if !*cfg.FailSwapOn || len(facts.Swaps) == 0 {
		return nil
	}
	return fmt.Errorf("swap is on (%s): turn it off with swapoff -a, or set failSwapOn to false, which denies it to containers", strings.Join(facts.Swaps, ", "))
}
