package fleet

import (
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri"
)

// LogLibraries sends the lines of the libraries that do not use klog to log, as far as its verbosity asks
// for them now.
func LogLibraries(log klog.Logger) { cri.LogGRPC(log) }
