package labtest

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// guard removes a lab when the process that made it is gone, however it ended. Then it removes the
// test's directory around the lab, if that is empty.
type guard struct{ stdin io.WriteCloser }

// newGuard starts the guard: a process in its own session, which no signal to a terminal or to a
// process group reaches, and whose input ends with ours.
func newGuard(dir string) (*guard, error) {
	cmd := exec.Command("sh", "-c", `read -r word
[ "$word" != down ] || exit 0
"$0" --dir "$1" down >/dev/null 2>&1
case ${1%/*} in */bowline-*) rmdir "${1%/*}" 2>/dev/null ;; esac`, Program("bowline-lab"), dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("guard the lab: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	return &guard{stdin}, nil
}

// dismiss ends the guard: the lab is down already.
func (g *guard) dismiss() {
	_, _ = io.WriteString(g.stdin, "down\n")
	_ = g.stdin.Close()
}
