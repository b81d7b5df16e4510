package labtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/bowline-k8s/bowline/cri"
)

// Snapshot is everything that pods make on a machine: kind -> sorted names.
type Snapshot map[string][]string

// kubeletRoot is Bowline's root directory as seen in the host.
const kubeletRoot = "/var/lib/kubelet"

// Snapshot takes the snapshot of a host from outside.
func (l *Lab) Snapshot(ctx context.Context, runtime *cri.Client, host string) (Snapshot, error) {
	h := l.Host(host)
	s := Snapshot{}
	sandboxes, err := runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, sandbox := range sandboxes {
		s.add("sandboxes", fmt.Sprintf("%s %s/%s", sandbox.Id, sandbox.Metadata.GetNamespace(), sandbox.Metadata.GetName()))
	}
	containers, err := runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		s.add("containers", fmt.Sprintf("%s %s in %s", c.Id, c.Metadata.GetName(), c.PodSandboxId))
	}
	look := &looker{s: s, root: fmt.Sprintf("/proc/%d/root", h.PID), pid: h.PID}
	look.mounts()
	look.list("network namespaces", "/run/netns")
	look.list("pod directories", kubeletRoot+"/pods")
	look.list("pod records", kubeletRoot+"/bowline/pods")
	look.list("log directories", "/var/log/pods")
	look.list("log links", "/var/log/containers")
	look.list("addresses", "/var/lib/cni/networks/*")
	look.list("addresses", "/run/cni/*")
	look.list("network results", "/var/lib/cni/results")
	look.list("shims", "/run/containerd/io.containerd.runtime.v2.task/k8s.io")
	look.interfaces()
	look.cgroups()
	look.shims()
	if h.Runtime == "containerd" {
		look.containerd(ctx, h.OutsideSocket)
	}
	if look.err != nil {
		return nil, look.err
	}
	for _, names := range s {
		slices.Sort(names)
	}
	return s, nil
}

func (s Snapshot) add(kind, name string) { s[kind] = append(s[kind], name) }

// looker reads a host's files and keeps the first error.
type looker struct {
	s    Snapshot
	root string
	pid  int
	err  error
}

func (l *looker) fail(err error) {
	if l.err == nil && err != nil {
		l.err = fmt.Errorf("inspect the host: %w", err)
	}
}

// list names the entries of the directories that match pattern.
func (l *looker) list(kind, pattern string) {
	dirs, err := filepath.Glob(l.root + pattern)
	l.fail(err)
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		l.fail(err)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "last_reserved_ip") || e.Name() == "lock" {
				continue // the files of host-local itself
			}
			l.s.add(kind, strings.TrimPrefix(filepath.Join(dir, e.Name()), l.root))
		}
	}
}

// mounts lists the mount points of containerd and of pods alike.
func (l *looker) mounts() {
	f, err := os.Open("/proc/" + strconv.Itoa(l.pid) + "/mountinfo")
	if err != nil {
		l.fail(err)
		return
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			l.s.add("mounts", fields[4])
		}
	}
	l.fail(lines.Err())
}

func (l *looker) interfaces() {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(l.pid) + "/net/dev")
	l.fail(err)
	for _, line := range strings.Split(string(data), "\n") {
		name, _, ok := strings.Cut(strings.TrimSpace(line), ":")
		// The first pod creates the bridge, which stays, as with a kubelet.
		if ok && strings.HasPrefix(name, "veth") {
			l.s.add("interfaces", name)
		}
	}
}

// shims lists the shims in the host's mount namespace, known to containerd or not.
func (l *looker) shims() {
	namespace := func(pid string) string {
		link, _ := os.Readlink("/proc/" + pid + "/ns/mnt")
		return link
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	l.fail(err)
	for _, file := range lines {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		words := strings.Split(string(line), "\x00")
		if !strings.HasPrefix(filepath.Base(words[0]), "containerd-shim") || slices.Contains(words, "start") || slices.Contains(words, "delete") {
			continue
		}
		if namespace(filepath.Base(filepath.Dir(file))) != namespace(strconv.Itoa(l.pid)) {
			continue
		}
		if i := slices.Index(words, "-id"); i > 0 && i+1 < len(words) {
			l.s.add("shim processes", words[i+1])
		}
	}
}

// containerd lists containerd's own containers and tasks, independent of its CRI.
func (l *looker) containerd(ctx context.Context, socket string) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		l.fail(err)
		return
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	containers, err := containersapi.NewContainersClient(conn).List(ctx, &containersapi.ListContainersRequest{})
	l.fail(err)
	for _, c := range containers.GetContainers() {
		l.s.add("containerd's containers", c.ID)
	}
	tasks, err := tasksapi.NewTasksClient(conn).List(ctx, &tasksapi.ListTasksRequest{})
	l.fail(err)
	for _, t := range tasks.GetTasks() {
		l.s.add("containerd's tasks", t.ID)
	}
}

// cgroups lists the pods' cgroups in every hierarchy.
func (l *looker) cgroups() {
	base := l.root + "/sys/fs/cgroup"
	for _, pattern := range []string{"/kubepods*", "/*/kubepods*", "/k8s.io", "/*/k8s.io"} {
		roots, err := filepath.Glob(base + pattern)
		l.fail(err)
		for _, root := range roots {
			if info, err := os.Lstat(filepath.Dir(root)); err != nil || info.Mode()&fs.ModeSymlink != 0 {
				continue // a symbolic link: cpu is another name of cpu,cpuacct
			}
			l.fail(filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
				switch {
				case errors.Is(err, fs.ErrNotExist):
					return nil // removed in the meantime
				case err != nil:
					return err
				case e.IsDir() && !qosCgroup(e.Name()):
					l.s.add("cgroups", strings.TrimPrefix(path, l.root))
				}
				return nil
			}))
		}
	}
}

// qosCgroup reports whether the cgroup belongs to a QoS class. Those stay, as with a kubelet.
func qosCgroup(name string) bool {
	switch strings.TrimSuffix(name, ".slice") {
	case "kubepods", "burstable", "besteffort", "kubepods-burstable", "kubepods-besteffort", "k8s.io":
		return true
	}
	return false
}

// Diff lists the names that are only in after with a plus, and those only in before with a minus.
// Empty: nothing has changed.
func Diff(before, after Snapshot) []string {
	var lines []string
	kinds := map[string]bool{}
	for kind := range before {
		kinds[kind] = true
	}
	for kind := range after {
		kinds[kind] = true
	}
	for kind := range kinds {
		counts := map[string]int{}
		for _, name := range after[kind] {
			counts[name]++
		}
		for _, name := range before[kind] {
			counts[name]--
		}
		for name, n := range counts {
			switch {
			case n > 0:
				lines = append(lines, "+ "+kind+": "+name)
			case n < 0:
				lines = append(lines, "- "+kind+": "+name)
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// Counts returns the count of each kind, for a log line.
func (s Snapshot) Counts() string {
	var kinds []string
	for kind := range s {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, len(s[kind])))
	}
	slices.Sort(kinds)
	return strings.Join(kinds, ", ")
}
