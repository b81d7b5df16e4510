// Package proc starts, finds and stops the lab's daemons. It identifies a daemon by its pid and its
// start time, so that a recycled pid is never mistaken for it.
package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ID identifies one process of one boot.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot: field 22 of /proc/PID/stat
	Boot  string `json:"boot"`  // /proc/sys/kernel/random/boot_id
}

// Identify reads the identity of a live process.
func Identify(pid int) (ID, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ID{}, err
	}
	state, start, err := parseStat(string(data))
	if err != nil {
		return ID{}, fmt.Errorf("process %d: %w", pid, err)
	}
	// While a thread other than the first replaces the program (execve), the first thread is a
	// zombie for a moment, although the process is alive.
	if (state == "Z" || state == "X") && exited(pid) {
		return ID{}, fmt.Errorf("process %d is dead", pid)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ID{}, err
	}
	return ID{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, nil
}

// exited reports whether all threads of a process have ended.
func exited(pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// parseStat reads the state and the start time from a /proc/PID/stat file. The name in it may
// contain spaces and parentheses.
func parseStat(stat string) (state string, start uint64, err error) {
	end := strings.LastIndexByte(stat, ')')
	if end < 0 {
		return "", 0, errors.New("stat file has no name")
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) < 20 {
		return "", 0, errors.New("stat file is short")
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0], start, err
}

// Alive reports whether this very process still runs.
func (id ID) Alive() bool {
	if id.PID <= 0 {
		return false
	}
	now, err := Identify(id.PID)
	return err == nil && now == id
}

// Signal sends a signal to this very process, and returns false if it is gone.
func (id ID) Signal(sig syscall.Signal) bool {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return id.Alive() && unix.PidfdSendSignal(fd, sig, nil, 0) == nil
}

// Stop sends SIGTERM, and kills the process after grace.
func (id ID) Stop(ctx context.Context, grace time.Duration) error {
	if !id.Signal(syscall.SIGTERM) {
		return nil
	}
	if id.wait(ctx, grace) {
		return nil
	}
	id.Signal(syscall.SIGKILL)
	if id.wait(ctx, 10*time.Second) {
		return nil
	}
	return fmt.Errorf("process %d survives SIGKILL", id.PID)
}

// wait waits until the process is gone, and returns false if it is still there after d.
func (id ID) wait(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for id.Alive() {
		select {
		case <-ctx.Done():
			return !id.Alive()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return true
}

// Daemon is one process that outlives the command that started it.
type Daemon struct {
	Name string   // of its pid file and log
	Args []string // with the program's path first
	Env  []string // added to a minimal environment
	// Enter is prepended to Args: the lab's own command, which joins cgroups and namespaces and
	// then executes the daemon. The pid stays the same.
	Enter  []string
	RunDir string // pid files
	LogDir string
	// Attr, or nil, sets more attributes of the process; Files are its descriptors from 3 on.
	Attr  *syscall.SysProcAttr
	Files []*os.File
}

// Record is the content of a pid file.
type Record struct {
	ID
	Name    string    `json:"name"`
	Args    []string  `json:"args"`
	Started time.Time `json:"started"`
}

func (d Daemon) pidFile() string { return filepath.Join(d.RunDir, d.Name+".json") }

// Running returns the daemon's record if it runs.
func (d Daemon) Running() (Record, bool) {
	r, err := Read(d.RunDir, d.Name)
	return r, err == nil && r.Alive()
}

// Read reads the record of a daemon that has been started.
func Read(runDir, name string) (Record, error) {
	var r Record
	data, err := os.ReadFile(filepath.Join(runDir, name+".json"))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}

// List reads the records of all daemons that were started and not forgotten.
func List(runDir string) ([]Record, error) {
	entries, err := os.ReadDir(runDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var records []Record
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			if r, err := Read(runDir, name); err == nil {
				records = append(records, r)
			}
		}
	}
	return records, nil
}

// Forget removes a daemon's pid file, because the daemon is no longer meant to run.
func Forget(runDir, name string) { _ = os.Remove(filepath.Join(runDir, name+".json")) }

// Ensure starts the daemon unless it runs. It reports whether it started it.
func (d Daemon) Ensure() (started bool, err error) {
	if _, ok := d.Running(); ok {
		return false, nil
	}
	for _, dir := range []string{d.RunDir, d.LogDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return false, err
		}
	}
	log, err := os.OpenFile(filepath.Join(d.LogDir, d.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return false, err
	}
	defer log.Close()

	cmd := d.command()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("start %s: %w", d.Name, err)
	}
	id, err := Identify(cmd.Process.Pid)
	go cmd.Wait() // reaped here while we live, and by init after that
	if err != nil {
		return false, fmt.Errorf("start %s: it ended at once, see %s", d.Name, log.Name())
	}
	return true, d.record(id).write(d.pidFile())
}

func (d Daemon) command() *exec.Cmd {
	args := append(append([]string{}, d.Enter...), d.Args...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = "/"
	cmd.Env = append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/",
	}, d.Env...)
	if len(d.Enter) > 0 {
		cmd.Env = append(cmd.Env, pidFileVar+"="+d.pidFile())
	}
	cmd.ExtraFiles = d.Files
	if cmd.SysProcAttr = d.Attr; d.Attr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	return cmd
}

func (d Daemon) record(id ID) Record {
	return Record{ID: id, Name: d.Name, Args: d.Args, Started: time.Now().UTC().Truncate(time.Second)}
}

// pidFileVar is the environment variable that names a daemon's pid file to the process that becomes it.
const pidFileVar = "BOWLINE_LAB_PID_FILE"

// Register writes the pid file of the calling process, if it is about to become a daemon that Ensure starts, and
// returns the daemon's environment. The command that started it writes the file too, but may be killed before: the
// next command would then start the daemon a second time.
func Register(args, env []string) ([]string, error) {
	i := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, pidFileVar+"=") })
	if i < 0 {
		return env, nil
	}
	path := strings.TrimPrefix(env[i], pidFileVar+"=")
	id, err := Identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	d := Daemon{Name: strings.TrimSuffix(filepath.Base(path), ".json"), Args: args}
	return slices.Delete(slices.Clone(env), i, i+1), d.record(id).write(path)
}

// KeepNothing makes the next exec close every descriptor but the first three. A process of the lab
// calls it before it becomes a daemon. Until then the process holds the lock of the command that
// started it, so that no command can remove a lab while one of its processes is on its way into its
// cgroup.
func KeepNothing() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// write replaces a pid file atomically, so that a reader never sees half of it. Two processes may write the same
// one.
func (r Record) write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.%d.tmp", path, os.Getpid())
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Tail returns the last lines of a daemon's log, for an error about it.
func Tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}
