package lab

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/lab/internal/testutil"
	"github.com/bowline-k8s/bowline/lab/layout"
)

// inHost runs a command in a host with bowline-lab exec.
func inHost(c Config, host string, argv ...string) (stdout string, code int) {
	cmd := exec.Command(c.Tools.Self, append([]string{"--dir", c.Dir, "exec", host, "--"}, argv...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err.Error(), -1
	}
	return strings.TrimSpace(out.String()), cmd.ProcessState.ExitCode()
}

func testExec(t *testing.T, c Config) {
	if out, code := inHost(c, "host2", "sh", "-c", "hostname; exit 7"); out != "host2" || code != 7 {
		t.Errorf("says %q with %d", out, code)
	}
	if out, code := inHost(c, "host3", "true"); code != 1 || !strings.Contains(out, "host3") {
		t.Errorf("a host that is not there: %q with %d", out, code)
	}
	if out, code := inHost(c, "host1", "cat", "/proc/self/cgroup"); code != 0 || strings.Contains(out, "bowline-lab") || strings.Contains(out, "..") {
		t.Errorf("the host's cgroup is not its root: %q", out)
	}
}

func testIsolation(t *testing.T, c Config, s *Status) {
	for _, dir := range []string{"/run", "/etc/cni", "/var/lib/cni", "/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods", "/var/log/containers", "/sys/fs/cgroup"} {
		if out, code := inHost(c, "host1", "sh", "-c", "test -d "+dir+" && stat -c %d:%i "+dir); code != 0 {
			t.Errorf("%s: %s", dir, out)
		} else if other, _ := inHost(c, "host2", "stat", "-c", "%d:%i", dir); other == out {
			t.Errorf("the hosts share %s", dir)
		} else if ours, err := exec.Command("stat", "-c", "%d:%i", dir).Output(); err == nil && strings.TrimSpace(string(ours)) == out {
			t.Errorf("host1 shares %s with the machine", dir)
		}
	}
	first, _ := inHost(c, "host1", "cat", "/etc/machine-id")
	second, _ := inHost(c, "host2", "cat", "/etc/machine-id")
	if len(first) != 32 || first == second {
		t.Errorf("machine IDs %q and %q", first, second)
	}
	// The hosts reach each other, the API server and the registry.
	if out, code := inHost(c, "host1", "curl", "-sk", "-m", "5", s.Cluster.APIURL+"/livez"); out != "ok" {
		t.Errorf("the API server: %q with %d", out, code)
	}
	if out, code := inHost(c, "host1", "curl", "-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", "http://"+s.Cluster.RegistryAddress+"/v2/web/manifests/v1"); out != "200" {
		t.Errorf("the registry: %q with %d", out, code)
	}
	ssh := exec.Command("ssh", "-i", s.Hosts[1].SSH.Key, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "root@"+s.Hosts[1].IP, "hostname")
	if out, err := ssh.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "host2" {
		t.Errorf("ssh: %v %s", err, out)
	}
}

// testPod is a pod that the test made over the CRI.
type testPod struct {
	sandbox, container, ip string
}

func dial(t *testing.T, h HostStatus) *grpc.ClientConn {
	t.Helper()
	conn, err := DialRuntime(h.PID, h.Runtime)
	testutil.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func runPod(t *testing.T, c Config, h HostStatus) testPod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn := dial(t, h)
	runtime, images := runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
	image := &runtimeapi.ImageSpec{Image: layout.Registry + "/web:v1"}
	if _, err := images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: image}); err != nil {
		t.Fatal(err)
	}
	sandboxConfig := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "canary", Namespace: "lab", Uid: "1"},
		LogDirectory: "/var/log/pods/lab_canary_1",
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/kubepods/pod1"},
	}
	if out, code := inHost(c, h.Name, "mkdir", "-p", sandboxConfig.LogDirectory); code != 0 {
		t.Fatal(out)
	}
	sandbox, err := runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandboxConfig})
	testutil.Must(t, err)
	container, err := runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox.PodSandboxId, SandboxConfig: sandboxConfig,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "web"}, Image: image, LogPath: "web.log",
			Envs:  []*runtimeapi.KeyValue{{Key: "POD_NAME", Value: []byte("canary")}},
			Linux: &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, OomScoreAdj: 100}},
		}})
	testutil.Must(t, err)
	if _, err := runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: container.ContainerId}); err != nil {
		t.Fatal(err)
	}
	status, err := runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox.PodSandboxId})
	testutil.Must(t, err)
	return testPod{sandbox.PodSandboxId, container.ContainerId, status.Status.Network.GetIp()}
}

func (p testPod) test(t *testing.T, c Config, s *Status) {
	url := "http://" + p.ip + ":8080/"
	if err := poll(t.Context(), 10*time.Second, func() error {
		return exec.Command("curl", "-sf", "-m", "2", url).Run()
	}); err != nil {
		t.Errorf("from the machine: %v", err)
	}
	for _, h := range s.Hosts {
		if out, code := inHost(c, h.Name, "curl", "-sf", "-m", "5", url); code != 0 || !strings.HasPrefix(out, "canary\n") {
			t.Errorf("from %s: %q with %d", h.Name, out, code)
		}
	}
	if out, code := inHost(c, "host1", "cat", "/var/log/pods/lab_canary_1/web.log"); code != 0 || !strings.Contains(out, "canary serves version v1") {
		t.Errorf("its log: %q", out)
	}
	// Below the host's cgroup, not beside it.
	if out, code := inHost(c, "host1", "sh", "-c", "find /sys/fs/cgroup -path '*/kubepods/pod1/"+p.container+"' | grep -c ."); code != 0 || out == "0" {
		t.Errorf("its cgroup: %q", out)
	}
}

// stillRuns checks that the container has neither ended nor been replaced.
func (p testPod) stillRuns(t *testing.T, h HostStatus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := runtimeapi.NewRuntimeServiceClient(dial(t, h)).ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: p.container})
	if err != nil {
		t.Error(err)
	} else if resp.Status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the pod's container is %s", resp.Status.State)
	}
}
