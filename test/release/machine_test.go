package release

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// box is a lab host made to look like an ordinary machine: its containerd reads
// /etc/containerd/config.toml, and systemctl restarts it.
type box struct {
	lab  *labtest.Lab
	name string

	mu         sync.Mutex
	containerd *exec.Cmd
	restarts   int
}

// file is a path of the host as seen from outside, only for directories that are the host's own.
func (b *box) file(path string) string { return filepath.Join(b.lab.Host(b.name).Root, path) }

const containerdConfig = "/etc/containerd/config.toml"

// newBox replaces the lab's containerd with one that is configured as on an ordinary machine.
func newBox(t *testing.T, lab *labtest.Lab, name string) *box {
	t.Helper()
	b := &box{lab: lab, name: name}
	testutil.Must(t, lab.StopProcess(t.Context(), name, "containerd"))
	config := testutil.ReadFile(t, filepath.Join(lab.Dir, "hosts", name, "containerd.toml"))
	testutil.Must(t, os.WriteFile(b.file(containerdConfig), config, 0o640))
	// This machine must not have the lab's own network.
	testutil.Must(t, os.Remove(b.file("/etc/cni/net.d/10-lab.conflist")))
	b.systemctl(t)
	testutil.Must(t, b.restart(t.Context()))
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		_ = b.stop()
	})
	return b
}

// systemctl installs a program of this name in the host. It forwards requests to the test.
func (b *box) systemctl(t *testing.T) {
	t.Helper()
	dir := filepath.Join(b.lab.Dir, b.name+"-sbin")
	request, reply := filepath.Join(dir, "request"), filepath.Join(dir, "reply")
	testutil.Must(t, os.Mkdir(dir, 0o755))
	testutil.Must(t, syscall.Mkfifo(request, 0o600))
	testutil.Must(t, syscall.Mkfifo(reply, 0o600))
	script := fmt.Sprintf("#!/bin/sh\nset -e\n[ \"$*\" = 'restart containerd' ]\necho restart >%s\nread -r r <%s\n[ \"$r\" = ok ] || { echo \"$r\" >&2; exit 1; }\n", request, reply)
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o755))
	b.in(t, "mount", "--bind", dir, "/usr/local/sbin")
	// Opened for both reading and writing, neither open waits for the other end.
	asked, err := os.OpenFile(request, os.O_RDWR, 0)
	testutil.Must(t, err)
	answer, err := os.OpenFile(reply, os.O_RDWR, 0)
	testutil.Must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(asked)
		for lines.Scan() {
			b.mu.Lock()
			b.restarts++
			b.mu.Unlock()
			word := "ok"
			if err := b.restart(context.Background()); err != nil {
				word = strings.ReplaceAll(err.Error(), "\n", " ")
			}
			fmt.Fprintln(answer, word)
		}
	}()
	t.Cleanup(func() { _ = asked.Close(); <-done; _ = answer.Close() })
}

// restart returns when containerd answers, as systemctl does.
func (b *box) restart(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.stop(); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(b.lab.Dir, b.name+"-containerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	// Processes in a host end with the lab.
	cmd := b.lab.Exec(context.Background(), b.name, labtest.Program("bowline-containerd"), "--config", containerdConfig)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(labtest.Program("x"))+":"+defaultPath)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	b.containerd = cmd
	return labtest.Until(ctx, 2*time.Minute, "containerd answers", func(context.Context) error {
		c, err := net.Dial("unix", b.lab.Host(b.name).OutsideSocket)
		if err == nil {
			c.Close()
		}
		return err
	})
}

func (b *box) stop() error {
	if b.containerd == nil {
		return nil
	}
	if err := b.containerd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = b.containerd.Wait()
	b.containerd = nil
	return nil
}

// setCRI writes the configuration with or without the CRI plugin, and restarts containerd.
func (b *box) setCRI(t *testing.T, on bool) {
	t.Helper()
	const disabled = "disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"
	data := testutil.ReadFile(t, b.file(containerdConfig))
	text := strings.Replace(string(data), disabled, "", 1)
	if !on {
		text = strings.Replace(text, "version = 3\n", "version = 3\n"+disabled, 1)
	}
	testutil.Must(t, os.WriteFile(b.file(containerdConfig), []byte(text), 0o640))
	testutil.Must(t, b.restart(t.Context()))
}

// serves waits until the CRI serves: its socket opens before that.
func serves(t *testing.T, runtime *cri.Client) {
	t.Helper()
	testutil.Must(t, labtest.Until(t.Context(), 2*time.Minute, "the CRI serves", func(ctx context.Context) error {
		_, err := runtime.ListContainers(ctx, nil)
		return err
	}))
}

// in runs a command in the host and returns its output.
func (b *box) in(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := labtest.Capture(b.lab.Exec(t.Context(), b.name, argv...))
	testutil.Must(t, err)
	if out.Code != 0 {
		t.Fatalf("%q in %s: exit code %d: %s%s", argv, b.name, out.Code, out.Stdout, out.Stderr)
	}
	return out.Stdout
}

// state is everything that a node, or its preparation, may change on a machine and that no list of
// pods shows: files with their content, links, settings, rules.
func (b *box) state(t *testing.T) string {
	t.Helper()
	return b.in(t, "sh", "-c", `
find /etc/containerd /etc/cni /etc/sysctl.d /etc/modules-load.d /var/lib/kubelet /var/lib/cni /var/log/pods /var/log/containers /run/bowline 2>/dev/null |
	grep -v -e /canary -e /default_canary -e ca9a4100 | LC_ALL=C sort | while read -r f; do
	stat -c '%n %A %U' "$f"
	[ ! -f "$f" ] || sha256sum <"$f"
done
ls /sys/class/net
cat /proc/sys/net/ipv4/ip_forward
[ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || cat /proc/sys/net/bridge/bridge-nf-call-iptables
iptables-save | grep -i -e cni- -e bowline || true`)
}

// canary is a pod that does not belong to Bowline, as crictl makes it, on the machine's own
// network.
type canary struct {
	runtime   *cri.Client
	container string
	started   int64
}

const image = "registry.lab/toolbox:lab"

func newCanary(t *testing.T, runtime *cri.Client) *canary {
	t.Helper()
	const uid = "ca9a4100-0000-4000-8000-000000000001"
	ctx := t.Context()
	options := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_CONTAINER}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "canary", Namespace: "default", Uid: uid},
		LogDirectory: "/var/log/pods/default_canary_" + uid,
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/kubepods/besteffort/pod" + uid,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: options}},
	}
	ref, err := runtime.PullImage(ctx, &runtimeapi.ImageSpec{Image: image}, nil, sandbox)
	testutil.Must(t, err)
	id, err := runtime.RunPodSandbox(ctx, sandbox, "")
	testutil.Must(t, err)
	c := &canary{runtime: runtime}
	c.container, err = runtime.CreateContainer(ctx, id, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: ref},
		Command: []string{"sleep", "36000"}, LogPath: "main.log",
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: options}},
	}, sandbox)
	testutil.Must(t, err)
	testutil.Must(t, runtime.StartContainer(ctx, c.container))
	st, err := runtime.ContainerStatus(ctx, c.container)
	testutil.Must(t, err)
	c.started = st.StartedAt
	return c
}

// unharmed checks that it runs, and has run all the time.
func (c *canary) unharmed(t *testing.T, when string) {
	t.Helper()
	st, err := c.runtime.ContainerStatus(t.Context(), c.container)
	if err != nil || st.State != runtimeapi.ContainerState_CONTAINER_RUNNING || st.StartedAt != c.started {
		t.Errorf("%s: someone else's pod: %v, %v", when, st, err)
	}
}
