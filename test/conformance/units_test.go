package main

import (
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
	type result struct {
		argv []string
		err  error
	}
	got := make(chan result)
	go func() {
		argv, err := argvOf(t.Context(), cmd.Process.Pid, "tail")
		got <- result{argv, err}
	}()
	select {
	case r := <-got:
		t.Fatalf("read %q, %v before the program ran", r.argv, r.err)
	default:
	}
	_, err = fmt.Fprintln(in)
	testutil.Must(t, err)
	if r := <-got; r.err != nil || fmt.Sprint(r.argv) != "[tail -f /dev/null]" {
		t.Errorf("read %q, %v", r.argv, r.err)
	}
}
