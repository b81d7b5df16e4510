package proc

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/lab/internal/testutil"
)

func TestParseStat(t *testing.T) {
	state, start, err := parseStat("7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 2 3")
	if err != nil || state != "S" || start != 4711 {
		t.Errorf("%q %d %v", state, start, err)
	}
	for _, bad := range []string{"", "7 (a) S 1", "7 a S 1 2 3"} {
		if _, _, err := parseStat(bad); err == nil {
			t.Errorf("%q is taken for a stat file", bad)
		}
	}
}

// A recycled pid must never get a signal.
func TestRecycledPidIsNotOurs(t *testing.T) {
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Skip(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	id, err := Identify(other.Process.Pid)
	testutil.Must(t, err)
	for name, stale := range map[string]ID{
		"another start": {PID: id.PID, Start: id.Start - 1, Boot: id.Boot},
		"another boot":  {PID: id.PID, Start: id.Start, Boot: "before"},
	} {
		if stale.Alive() || stale.Signal(syscall.SIGKILL) {
			t.Errorf("%s: taken for the same process", name)
		}
		if err := stale.Stop(context.Background(), time.Second); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !id.Alive() {
		t.Error("the other process is dead")
	}
}

func TestDaemonStartsOnceAndStops(t *testing.T) {
	dir := t.TempDir()
	d := Daemon{Name: "d", Args: []string{"sh", "-c", "echo up; exec sleep 60"},
		RunDir: filepath.Join(dir, "run"), LogDir: filepath.Join(dir, "logs")}
	if started, err := d.Ensure(); err != nil || !started {
		t.Fatalf("first: %t %v", started, err)
	}
	first, ok := d.Running()
	if !ok {
		t.Fatal("it does not run")
	}
	defer first.Signal(syscall.SIGKILL)
	if started, err := d.Ensure(); err != nil || started {
		t.Errorf("second: %t %v", started, err)
	}
	if again, _ := d.Running(); again.ID != first.ID {
		t.Errorf("two of them: %+v, %+v", first.ID, again.ID)
	}
	if err := first.Stop(context.Background(), 5*time.Second); err != nil {
		t.Error(err)
	}
	if _, ok := d.Running(); ok {
		t.Error("it runs after it was stopped")
	}
	if started, err := d.Ensure(); err != nil || !started {
		t.Errorf("after its end: %t %v", started, err)
	}
	last, _ := d.Running()
	last.Signal(syscall.SIGKILL)
}

func TestDaemonThatIgnoresTermIsKilled(t *testing.T) {
	dir := t.TempDir()
	d := Daemon{Name: "d", Args: []string{"sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"}, RunDir: dir, LogDir: dir}
	if _, err := d.Ensure(); err != nil {
		t.Fatal(err)
	}
	r, _ := d.Running()
	for deadline := time.Now().Add(10 * time.Second); Tail(filepath.Join(dir, "d.log"), 1) != "ready"; {
		if time.Now().After(deadline) {
			t.Fatal("it does not get ready")
		}
	}
	if err := r.Stop(context.Background(), 100*time.Millisecond); err != nil {
		t.Error(err)
	}
	if r.Alive() {
		t.Error("it is alive")
	}
}

// A process that calls execve from a thread other than the first is alive throughout.
func TestExecOfAThreadIsNotDeath(t *testing.T) {
	if os.Getenv("EXEC_FROM_THREAD") != "" {
		n, _ := strconv.Atoi(os.Getenv("EXEC_FROM_THREAD"))
		if n == 0 {
			os.Exit(0)
		}
		done := make(chan error)
		go func() {
			runtime.LockOSThread()
			os.Setenv("EXEC_FROM_THREAD", strconv.Itoa(n-1))
			done <- syscall.Exec("/proc/self/exe", os.Args, os.Environ())
		}()
		t.Fatal(<-done)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestExecOfAThreadIsNotDeath$")
	cmd.Env = append(os.Environ(), "EXEC_FROM_THREAD=200")
	testutil.Must(t, cmd.Start())
	id, err := Identify(cmd.Process.Pid)
	testutil.Must(t, err)
	defer cmd.Process.Kill()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for looks := 0; ; looks++ {
		alive := id.Alive()
		select {
		case err := <-ended:
			if err != nil || looks == 0 {
				t.Errorf("%v after %d looks", err, looks)
			}
			return
		default:
		}
		if alive {
			continue
		}
		// The process has ended, unless it is alive again.
		for {
			if id.Alive() {
				t.Fatalf("it was taken for dead at look %d and is alive", looks)
			}
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
				return
			default:
			}
		}
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	testutil.Must(t, os.WriteFile(path, []byte("1\n2\n3\n"), 0o644))
	if got := Tail(path, 2); got != "2\n3" {
		t.Errorf("%q", got)
	}
}

// A command that was killed right after it started a daemon wrote no pid file. The daemon wrote its own, so that
// the next command does not start it again.
func TestDaemonOfAKilledCommandIsFound(t *testing.T) {
	if os.Getenv(pidFileVar) != "" { // the process that becomes the daemon
		args := os.Args[3:]
		env, err := Register(args, os.Environ())
		testutil.Must(t, err)
		t.Fatal(syscall.Exec("/bin/sh", args, env))
	}
	dir := t.TempDir()
	d := Daemon{Name: "d", Enter: []string{os.Args[0], "-test.run=^TestDaemonOfAKilledCommandIsFound$", "--"},
		Args: []string{"sh", "-c", `echo "$BOWLINE_LAB_PID_FILE" >` + dir + `/variable; exec sleep 60`}, RunDir: dir, LogDir: dir}
	cmd := d.command()
	testutil.Must(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var data []byte
	for deadline := time.Now().Add(10 * time.Second); len(data) == 0; {
		if data, _ = os.ReadFile(filepath.Join(dir, "variable")); time.Now().After(deadline) {
			t.Fatal("the daemon does not run")
		}
	}
	if string(data) != "\n" {
		t.Errorf("the daemon has the variable: %s", data)
	}
	if started, err := d.Ensure(); err != nil || started {
		t.Errorf("started a second time: %t, %v", started, err)
	}
	if r, ok := d.Running(); !ok || r.PID != cmd.Process.Pid || len(r.Args) != len(d.Args) {
		t.Errorf("the record: %+v, runs: %t, want process %d", r, ok, cmd.Process.Pid)
	}
}
