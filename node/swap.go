package node

import (
	"fmt"
	"strings"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
)

// swapAllowed rejects a host on which swap is on, as a kubelet does, unless failSwapOn is false.
// With failSwapOn false, cri/spec denies swap to containers.
func swapAllowed(cfg *config.Host, facts host.Facts) error {
	if !*cfg.FailSwapOn || len(facts.Swaps) == 0 {
		return nil
	}
	return hint.Add(fmt.Errorf("swap is on (%s)", strings.Join(facts.Swaps, ", ")),
		"turn it off with swapoff -a, or set failSwapOn to false, so that containers get no swap")
}
