package main

import (
	"context"
	"fmt"
	"os/exec"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestArgvOf: the command line is read after the process has executed the program.
func TestArgvOf(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "read -r _; exec tail -f /dev/null")
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if argv, err := argvOf(ended(t), cmd.Process.Pid, "tail"); err == nil {
		t.Fatalf("read %q before the program ran", argv)
	}
	got := make(chan error)
	var argv []string
	go func() {
		var err error
		argv, err = argvOf(t.Context(), cmd.Process.Pid, "tail")
		got <- err
	}()
	_, err = fmt.Fprintln(in)
	testutil.Must(t, err)
	if err := <-got; err != nil || fmt.Sprint(argv) != "[tail -f /dev/null]" {
		t.Errorf("read %q, %v", argv, err)
	}
}

// ended returns a context that has ended.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
