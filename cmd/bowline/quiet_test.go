package main

import (
	"testing"
	"time"

	"k8s.io/klog/v2"
)

// The log flags start klog's flush daemon, which reads the logger every few seconds. Here it reads
// all the time, so that the race detector sees a logger that is set beside it.
func TestQuietBesideTheFlushDaemon(t *testing.T) {
	klog.StopFlushDaemon()
	klog.StartFlushDaemon(time.Microsecond)
	t.Cleanup(func() {
		klog.StopFlushDaemon()
		klog.ClearLogger()
	})
	for range 100 {
		quiet()
		klog.StartFlushDaemon(time.Microsecond)
	}
}
