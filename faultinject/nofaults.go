//go:build !faults

// Package faultinject injects faults into the calls to hosts and runtimes, for the kill matrix. Only
// a build with the tag faults can; without it the package does nothing.
package faultinject

import (
	"time"

	"github.com/bowline-k8s/bowline/host"
)

// Hook returns nil: only a build with the tag faults injects faults.
func Hook() (host.Hook, error) { return nil, nil }

// SweepPeriod returns 0, for the garbage collector's defaults.
func SweepPeriod() time.Duration { return 0 }
