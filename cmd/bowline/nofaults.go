//go:build !faults

package main

import (
	"time"

	"github.com/bowline-k8s/bowline/host"
)

// faultHook is nil: only a program built for the kill matrix injects faults.
func faultHook() (host.Hook, error) { return nil, nil }

// sweepPeriod is zero: the sweeper's own.
func sweepPeriod() time.Duration { return 0 }
