package main

import (
	"log/slog"

	"k8s.io/klog/v2"
)

// quiet stops libraries from logging in commands that report to the user by other means, unless the
// user gives -v.
func quiet() {
	if !klog.V(1).Enabled() {
		klog.StopFlushDaemon() // it reads the logger without a lock
		klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	}
}
