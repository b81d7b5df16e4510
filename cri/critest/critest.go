// Package critest is the suite that every container runtime that Bowline manages must pass,
// including cri/fake. It tests the behavior that the layers above rely on.
package critest

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Target is the runtime under test.
type Target struct {
	Client *cri.Client
	// Image is the reference of a pullable image that has the test program (cri/fake/program) as
	// /bowline-test.
	Image string
	// Missing is a reference that its registry does not have.
	Missing string
	// Dir is a directory that has the same path for the runtime and for this process.
	Dir string
	// Dial dials from the runtime's host, for its streaming server.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// NoEvents: the runtime serves no events.
	NoEvents bool
	// CRIEvents: the events are the CRI's, which have no tasks.
	CRIEvents bool
	// CRIO: expect CRI-O's answers where they differ from containerd's and the layers above accept
	// both.
	CRIO bool
	// Planter creates the remains of an interrupted start; nil if the runtime is not containerd.
	Planter Planter
	// CgroupParent of the sandboxes; may be empty.
	CgroupParent string
}

// Run runs the suite. It changes only what it has created, and removes that.
func Run(t *testing.T, target Target) {
	s := &suite{Target: target}
	if _, err := s.Client.PullImage(t.Context(), s.spec(), nil, nil); err != nil {
		t.Fatalf("the suite's image: %v", err)
	}
	for _, c := range []struct {
		name string
		test func(*suite, *testing.T)
	}{
		{"Status", testStatus},
		{"SandboxLife", testSandboxLife},
		{"SandboxList", testSandboxList},
		{"SandboxHostNetwork", testSandboxHostNetwork},
		{"SandboxStopKills", testSandboxStopKills},
		{"SandboxRemoveTakesContainers", testSandboxRemove},
		{"ContainerLife", testContainerLife},
		{"ContainerList", testContainerList},
		{"ContainerRemoveRunning", testContainerRemoveRunning},
		{"ExitCodes", testExitCodes},
		{"StartFailure", testStartFailure},
		{"UnknownObjects", testUnknownObjects},
		{"StopGrace", testStopGrace},
		{"StopCutOff", testStopCutOff},
		{"EnvAndMounts", testEnvAndMounts},
		{"UpdateResources", testUpdateResources},
		{"Stats", testStats},
		{"ExecSync", testExecSync},
		{"Logs", testLogs},
		{"LogRotation", testLogRotation},
		{"StreamExec", testStreamExec},
		{"StreamPortForward", testStreamPortForward},
		{"Events", testEvents},
		{"Images", testImages},
		{"ForgottenTask", testForgottenTask},
		{"Remnants", testLeaked},
		{"Records", testRecords},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(s, t) })
	}
}

type suite struct {
	Target
	count int
}

// spec names the image as a pod does. CRI-O verifies signatures by that name, and creates no
// container without it.
func (s *suite) spec() *runtimeapi.ImageSpec {
	return &runtimeapi.ImageSpec{Image: s.Image, UserSpecifiedImage: s.Image}
}

// patience suffices for a loaded host; what works never waits that long.
const patience = 60 * time.Second

// sandboxConfig returns the config of a new sandbox, with a log directory.
func (s *suite) sandboxConfig(t *testing.T) *runtimeapi.PodSandboxConfig {
	t.Helper()
	s.count++
	name := fmt.Sprintf("critest-%d-%d", os.Getpid(), s.count)
	logs := filepath.Join(s.Dir, name)
	testutil.Must(t, os.MkdirAll(logs, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(logs) })
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "critest", Uid: name, Attempt: 2},
		Hostname: "critest", LogDirectory: logs,
		Labels:      map[string]string{"test": name, "suite": "critest"},
		Annotations: map[string]string{"note": "kept word for word"},
		Linux:       &runtimeapi.LinuxPodSandboxConfig{CgroupParent: s.CgroupParent},
	}
}

// runSandbox runs a sandbox, which is removed at the end of the test.
func (s *suite) runSandbox(t *testing.T, config *runtimeapi.PodSandboxConfig) string {
	t.Helper()
	id, err := s.Client.RunPodSandbox(t.Context(), config, "")
	testutil.Must(t, err)
	t.Cleanup(func() {
		ctx := context.Background()
		if err := s.Client.StopPodSandbox(ctx, id); err != nil {
			t.Error(err)
		}
		if err := s.Client.RemovePodSandbox(ctx, id); err != nil {
			t.Error(err)
		}
	})
	return id
}

// script returns the config of a container that runs the test program.
func (s *suite) script(name string, steps ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: 3}, Image: s.spec(),
		Command: []string{"/" + fake.TestImage}, Args: steps, LogPath: name + ".log",
		Labels: map[string]string{"container": name}, Annotations: map[string]string{"note": name},
		Linux: &runtimeapi.LinuxContainerConfig{},
	}
}

// create creates a container in a sandbox.
func (s *suite) create(t *testing.T, sandboxID string, sandbox *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) string {
	t.Helper()
	id, err := s.Client.CreateContainer(t.Context(), sandboxID, c, sandbox)
	testutil.Must(t, err)
	return id
}

// start creates and starts a container in a new sandbox.
func (s *suite) start(t *testing.T, c *runtimeapi.ContainerConfig) (id, sandboxID string, sandbox *runtimeapi.PodSandboxConfig) {
	t.Helper()
	sandbox = s.sandboxConfig(t)
	sandboxID = s.runSandbox(t, sandbox)
	id = s.create(t, sandboxID, sandbox, c)
	testutil.Must(t, s.Client.StartContainer(t.Context(), id))
	return id, sandboxID, sandbox
}

func (s *suite) status(t *testing.T, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	st, err := s.Client.ContainerStatus(t.Context(), id)
	testutil.Must(t, err)
	return st
}

// exited waits until the container has exited.
func (s *suite) exited(t *testing.T, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	var st *runtimeapi.ContainerStatus
	testutil.Eventually(t, "container "+id+" exits", func() bool {
		st = s.status(t, id)
		return st.State == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	return st
}

// logHas waits until the container's raw log contains the text.
func (s *suite) logHas(t *testing.T, path, text string) {
	t.Helper()
	testutil.Eventually(t, fmt.Sprintf("%q in the log", text), func() bool {
		data, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(data), text)
	})
}

// files is the part of a host that logs.Read needs, for a local directory.
type files struct{}

func (files) Open(_ context.Context, path string) (host.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return file{f}, nil
}

func (files) Stat(_ context.Context, path string) (host.FileInfo, error) {
	fi, err := os.Lstat(path)
	return info(fi, err)
}

func (files) List(_ context.Context, dir string) ([]host.FileInfo, error) {
	entries, err := os.ReadDir(dir)
	var infos []host.FileInfo
	for _, e := range entries {
		if i, err := info(e.Info()); err == nil {
			infos = append(infos, i)
		}
	}
	return infos, err
}

type file struct{ *os.File }

func (f file) Stat() (host.FileInfo, error) {
	fi, err := f.File.Stat()
	return info(fi, err)
}

func info(fi fs.FileInfo, err error) (host.FileInfo, error) {
	if err != nil {
		return host.FileInfo{}, err
	}
	st := fi.Sys().(*syscall.Stat_t)
	return host.FileInfo{Name: fi.Name(), Mode: fi.Mode(), Size: fi.Size(), Inode: st.Ino, Device: uint64(st.Dev), Time: fi.ModTime()}, nil
}
