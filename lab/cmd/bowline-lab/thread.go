package main

import (
	"os/exec"
	"runtime"
)

// runOnThread runs a command whose parent death signal is set: the kernel sends
// it when the thread that started the process ends, so that thread is kept.
func runOnThread(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}
