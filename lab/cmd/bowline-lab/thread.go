package main

import (
	"os/exec"
	"runtime"
)

// runOnThread runs a command that has a parent death signal. The kernel sends that signal when the
// thread that started the process ends, so this keeps the thread.
func runOnThread(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}
