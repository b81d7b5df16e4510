// Package node makes and finds lab hosts. A lab host is a set of mount, UTS, network and cgroup
// namespaces on this machine, kept alive by a process that only waits, with a container runtime, a
// kube-proxy and an sshd inside.
package node

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/bowline-k8s/bowline/lab/cgroups"
	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/proc"
)

// Tools are the programs that hosts are made of.
type Tools struct {
	Self string // bowline-lab
	Bin  string // directory of the lab's built programs
	// First is a directory of programs, for example another runc, that a host's runtime finds
	// before the machine's own. Empty means none.
	First string
	// Runtime is the CRI runtime of the hosts.
	Runtime layout.Runtime
}

// path is the PATH of a host's runtime.
func (t Tools) path() string {
	path := t.Bin
	if t.First != "" {
		path += ":" + t.First
	}
	return "PATH=" + path + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

// Keeper is the name of the waiting process in pid files.
const Keeper = "keeper"

// Pid returns a process in the host's namespaces: the keeper, or another if the keeper has been
// killed. ok is false if the host does not exist.
func Pid(h layout.Host) (pid int, ok bool) {
	want, err := readIdentity(h)
	if err != nil {
		return 0, false
	}
	if r, err := proc.Read(h.Lab.Path("run"), h.Process(Keeper)); err == nil && r.Alive() && inside(r.PID, want) {
		return r.PID, true
	}
	pids, err := cgroups.Processes(h.Cgroup())
	if err != nil {
		return 0, false
	}
	for _, pid := range pids {
		if inside(pid, want) {
			return pid, true
		}
	}
	return 0, false
}

func inside(pid int, want map[string]string) bool {
	got, err := identity(pid)
	return err == nil && maps.Equal(got, want)
}

func readIdentity(h layout.Host) (map[string]string, error) {
	data, err := os.ReadFile(h.Path("namespaces.json"))
	if err != nil {
		return nil, err
	}
	ids := map[string]string{}
	return ids, json.Unmarshal(data, &ids)
}

// Ensure makes the host unless it exists, and starts its keeper unless it runs. hosts is the number
// of hosts in the lab. made reports whether the host is new.
func Ensure(ctx context.Context, t Tools, h layout.Host, hosts int) (made bool, err error) {
	keeper := proc.Daemon{
		Name: h.Process(Keeper), RunDir: h.Lab.Path("run"), LogDir: h.Lab.Path("logs"),
	}
	if pid, ok := Pid(h); ok {
		keeper.Enter = Command(t, h, pid)
		keeper.Args = []string{t.Bin + "/pause", h.Name()}
		_, err := keeper.Ensure()
		return false, err
	}
	// The remains of an earlier host can no longer be entered.
	if err := cgroups.Kill(ctx, h.Cgroup()); err != nil {
		return false, err
	}
	if err := cgroups.Remove(ctx, h.Cgroup()); err != nil {
		return false, err
	}
	_ = exec.CommandContext(ctx, "ip", "link", "del", h.Link()).Run() // usually it does not exist
	_ = os.Remove(h.Path("namespaces.json"))
	return true, create(ctx, t, h, hosts, keeper)
}

func create(ctx context.Context, t Tools, h layout.Host, hosts int, keeper proc.Daemon) error {
	for _, b := range h.Binds() {
		if err := os.MkdirAll(b.Source, 0o755); err != nil {
			return err
		}
	}
	reportR, reportW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reportR.Close()
	goR, goW, err := os.Pipe()
	if err != nil {
		reportW.Close()
		return err
	}
	defer goW.Close()

	keeper.Args = []string{t.Self, "_host", h.Lab.Dir, strconv.Itoa(h.Lab.Index),
		strconv.Itoa(h.Number), strconv.Itoa(hosts), t.Bin + "/pause"}
	keeper.Attr = &syscall.SysProcAttr{Cloneflags: CloneFlags}
	keeper.Files = []*os.File{reportW, goR}
	_, err = keeper.Ensure()
	reportW.Close()
	goR.Close()
	if err != nil {
		return err
	}
	record, err := proc.Read(keeper.RunDir, keeper.Name)
	if err != nil {
		return err
	}
	if err := join(ctx, h, record.PID, goW, reportR); err != nil {
		record.Signal(syscall.SIGKILL)
		return fmt.Errorf("make %s: %w", h.Name(), err)
	}
	ids, err := identity(record.PID)
	if err != nil {
		return err
	}
	data, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	return os.WriteFile(h.Path("namespaces.json"), data, 0o644)
}

// join connects the new host to the bridge and waits for its report.
func join(ctx context.Context, h layout.Host, pid int, goW, reportR *os.File) error {
	if err := IP([]string{
		"link add " + h.Link() + " type veth peer name " + h.PeerLink(),
		"link set " + h.Link() + " master " + h.Lab.Bridge() + " up",
		"link set " + h.PeerLink() + " netns " + strconv.Itoa(pid),
		"route replace " + h.PodCIDR().String() + " via " + h.IP().String() + " dev " + h.Lab.Bridge(),
	}); err != nil {
		return err
	}
	if _, err := goW.Write([]byte{1}); err != nil {
		return fmt.Errorf("its first process has ended, see %s", h.Lab.Log(h.Process(Keeper)))
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = reportR.SetReadDeadline(deadline)
	} else {
		_ = reportR.SetReadDeadline(time.Now().Add(15 * time.Second))
	}
	line, err := bufio.NewReader(reportR).ReadString('\n')
	line = strings.TrimSpace(line)
	switch {
	case line == "ok":
		return nil
	case line != "":
		return fmt.Errorf("%s", line)
	default:
		return fmt.Errorf("its first process does not report (%v), see %s", err, h.Lab.Log(h.Process(Keeper)))
	}
}

// Command is the prefix of a command that runs it inside the host, where pid is a process. The
// lab's own program executes the command: pid, exit code and terminal are the command's own.
func Command(t Tools, h layout.Host, pid int) []string {
	return []string{t.Self, "_enter", "--cgroup", h.SystemCgroup(), "--pid", strconv.Itoa(pid), "--"}
}
