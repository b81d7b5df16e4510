package critest

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func testContainerLife(s *suite, t *testing.T) {
	ctx, sandbox := t.Context(), s.sandboxConfig(t)
	sandboxID := s.runSandbox(t, sandbox)
	config := s.script("c", "out up", "wait")
	id := s.create(t, sandboxID, sandbox, config)
	again, err := s.Client.CreateContainer(ctx, sandboxID, config, sandbox)
	s.wantTaken(t, id, again, err)
	st := s.status(t, id)
	if st.State != runtimeapi.ContainerState_CONTAINER_CREATED || st.CreatedAt == 0 || st.StartedAt != 0 || st.FinishedAt != 0 {
		t.Errorf("created: %v", st)
	}
	if st.Metadata.GetName() != "c" || st.Metadata.GetAttempt() != 3 || !maps.Equal(st.Labels, config.Labels) || !maps.Equal(st.Annotations, config.Annotations) {
		t.Errorf("metadata %v, labels %v, annotations %v", st.Metadata, st.Labels, st.Annotations)
	}
	if want := filepath.Join(sandbox.LogDirectory, "c.log"); st.LogPath != want {
		t.Errorf("log path %q, want %q", st.LogPath, want)
	}
	if st.Image.GetImage() == "" || st.ImageRef == "" {
		t.Errorf("image %v, reference %q", st.Image, st.ImageRef)
	}
	if !s.CRIO { // CRI-O could not start it afterwards
		if err := s.Client.StopContainer(ctx, id, time.Second); err != nil {
			t.Errorf("stop of a container not started: %v", err)
		}
	}
	testutil.Must(t, s.Client.StartContainer(ctx, id))
	s.logHas(t, st.LogPath, "up")
	running := s.status(t, id)
	if running.State != runtimeapi.ContainerState_CONTAINER_RUNNING || running.StartedAt < running.CreatedAt || running.FinishedAt != 0 {
		t.Errorf("running: %v", running)
	}
	if err := s.Client.StartContainer(ctx, id); err == nil || cri.IsTransport(err) || cri.IsNotFound(err) {
		t.Errorf("a second start: %v, want a refusal", err)
	}
	for range 2 {
		testutil.Must(t, s.Client.StopContainer(ctx, id, 30*time.Second))
	}
	st = s.status(t, id)
	if st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 143 || st.StartedAt != running.StartedAt || st.FinishedAt < st.StartedAt {
		t.Errorf("stopped: %v", st)
	}
	for range 2 {
		testutil.Must(t, s.Client.RemoveContainer(ctx, id))
		if _, err := s.Client.ContainerStatus(ctx, id); !cri.IsNotFound(err) {
			t.Errorf("after the removal: %v, want not found", err)
		}
	}
	if err := s.Client.StopContainer(ctx, id, time.Second); err != nil {
		t.Errorf("stop of a removed container: %v", err)
	}
	if _, err := os.Stat(st.LogPath); err != nil {
		t.Errorf("the log went with the container: %v", err)
	}
}

func testContainerList(s *suite, t *testing.T) {
	one, sandboxOne, configOne := s.start(t, s.script("one", "wait"))
	two := s.create(t, sandboxOne, configOne, s.script("two", "exit 0"))
	three, _, _ := s.start(t, s.script("three", "exit 0"))
	s.exited(t, three)
	state := func(st runtimeapi.ContainerState) *runtimeapi.ContainerStateValue {
		return &runtimeapi.ContainerStateValue{State: st}
	}
	for name, c := range map[string]struct {
		filter *runtimeapi.ContainerFilter
		want   []string
	}{
		"all":        {nil, []string{one, two, three}},
		"by sandbox": {&runtimeapi.ContainerFilter{PodSandboxId: sandboxOne}, []string{one, two}},
		"by label":   {&runtimeapi.ContainerFilter{LabelSelector: map[string]string{"container": "two"}}, []string{two}},
		"by ID":      {&runtimeapi.ContainerFilter{Id: three}, []string{three}},
		"unknown ID": {&runtimeapi.ContainerFilter{Id: "none"}, nil},
		"created":    {&runtimeapi.ContainerFilter{State: state(runtimeapi.ContainerState_CONTAINER_CREATED)}, []string{two}},
		"running":    {&runtimeapi.ContainerFilter{State: state(runtimeapi.ContainerState_CONTAINER_RUNNING)}, []string{one}},
		"exited":     {&runtimeapi.ContainerFilter{State: state(runtimeapi.ContainerState_CONTAINER_EXITED)}, []string{three}},
		"together":   {&runtimeapi.ContainerFilter{PodSandboxId: sandboxOne, State: state(runtimeapi.ContainerState_CONTAINER_EXITED)}, nil},
	} {
		list, err := s.Client.ListContainers(t.Context(), c.filter)
		testutil.Must(t, err)
		got, want := map[string]bool{}, map[string]bool{}
		for _, l := range list {
			if l.Id == one || l.Id == two || l.Id == three {
				got[l.Id] = true
			}
			if l.Id == one && (l.PodSandboxId != sandboxOne || l.Metadata.GetName() != "one" || l.Annotations["note"] != "one") {
				t.Errorf("%s: %v", name, l)
			}
		}
		for _, id := range c.want {
			want[id] = true
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func testContainerRemoveRunning(s *suite, t *testing.T) {
	id, _, _ := s.start(t, s.script("c", "ignore-term", "wait"))
	testutil.Must(t, s.Client.RemoveContainer(t.Context(), id))
	if _, err := s.Client.ContainerStatus(t.Context(), id); !cri.IsNotFound(err) {
		t.Errorf("%v, want not found", err)
	}
}

func testExitCodes(s *suite, t *testing.T) {
	ctx, sandbox := t.Context(), s.sandboxConfig(t)
	sandboxID := s.runSandbox(t, sandbox)
	for name, c := range map[string]struct {
		step   string
		code   int32
		reason string
	}{"fine": {"exit 0", 0, "Completed"}, "bad": {"exit 3", 3, "Error"}, "most": {"exit 255", 255, "Error"}} {
		id := s.create(t, sandboxID, sandbox, s.script(name, c.step))
		testutil.Must(t, s.Client.StartContainer(ctx, id))
		st := s.exited(t, id)
		// containerd records the start time afterwards: a container that ends at once may have an
		// end time slightly before its start time.
		lasted := time.Duration(st.FinishedAt - st.StartedAt)
		if st.ExitCode != c.code || st.Reason != c.reason || lasted < -time.Second || st.StartedAt == 0 {
			t.Errorf("%s: %v", name, st)
		}
	}
}

func testStartFailure(s *suite, t *testing.T) {
	sandbox := s.sandboxConfig(t)
	sandboxID := s.runSandbox(t, sandbox)
	config := s.script("c")
	config.Command = []string{"/no-such-program"}
	if s.CRIO { // runc looks up the program when the container is created
		_, err := s.Client.CreateContainer(t.Context(), sandboxID, config, sandbox)
		if err == nil || cri.IsTransport(err) || !strings.Contains(err.Error(), "no-such-program") {
			t.Errorf("error %v, want the runtime's about the program", err)
		}
		return
	}
	id := s.create(t, sandboxID, sandbox, config)
	err := s.Client.StartContainer(t.Context(), id)
	if err == nil || cri.IsTransport(err) || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("error %v, want the runtime's about the program", err)
	}
	if st := s.exited(t, id); st.ExitCode != 128 || st.Reason != "StartError" || st.FinishedAt == 0 {
		t.Errorf("status %v", st)
	}
}

func testUnknownObjects(s *suite, t *testing.T) {
	ctx := t.Context()
	const none = "0123456789abcdef"
	for verb, err := range map[string]error{
		"StopPodSandbox":   s.Client.StopPodSandbox(ctx, none),
		"RemovePodSandbox": s.Client.RemovePodSandbox(ctx, none),
		"StopContainer":    s.Client.StopContainer(ctx, none, time.Second),
		"RemoveContainer":  s.Client.RemoveContainer(ctx, none),
	} {
		if err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
	_, statusErr := s.Client.ContainerStatus(ctx, none)
	_, sandboxErr := s.Client.PodSandboxStatus(ctx, none)
	_, createErr := s.Client.CreateContainer(ctx, none, s.script("c", "wait"), s.sandboxConfig(t))
	_, execErr := s.Client.ExecSync(ctx, none, []string{"x"}, time.Second)
	for verb, err := range map[string]error{
		"ContainerStatus": statusErr, "PodSandboxStatus": sandboxErr, "CreateContainer": createErr, "ExecSync": execErr,
		"StartContainer": s.Client.StartContainer(ctx, none),
	} {
		if s.CRIO && verb == "CreateContainer" && err != nil && !cri.IsTransport(err) {
			continue // CRI-O has no code for this error
		}
		if !cri.IsNotFound(err) {
			t.Errorf("%s: %v, want not found", verb, err)
		}
	}
}

func testStopGrace(s *suite, t *testing.T) {
	t.Run("TERM is enough", func(t *testing.T) {
		id, _, sandbox := s.start(t, s.script("c", "on-term 7", "out up", "wait"))
		s.logHas(t, filepath.Join(sandbox.LogDirectory, "c.log"), "up")
		began := time.Now()
		testutil.Must(t, s.Client.StopContainer(t.Context(), id, patience))
		if st := s.status(t, id); st.ExitCode != 7 || time.Since(began) > patience/2 {
			t.Errorf("exit code %d after %v, want 7 soon", st.ExitCode, time.Since(began))
		}
	})
	t.Run("KILL after the grace", func(t *testing.T) {
		id, _, sandbox := s.start(t, s.script("c", "ignore-term", "out up", "wait"))
		s.logHas(t, filepath.Join(sandbox.LogDirectory, "c.log"), "up")
		began := time.Now()
		testutil.Must(t, s.Client.StopContainer(t.Context(), id, 2*time.Second))
		if st := s.status(t, id); st.ExitCode != 137 || time.Since(began) < 2*time.Second {
			t.Errorf("exit code %d after %v, want 137 after 2 s", st.ExitCode, time.Since(began))
		}
		s.logHas(t, filepath.Join(sandbox.LogDirectory, "c.log"), "TERM")
	})
	t.Run("no grace, no TERM", func(t *testing.T) {
		if s.CRIO {
			t.Skip("CRI-O signals first all the same")
		}
		id, _, sandbox := s.start(t, s.script("c", "ignore-term", "out up", "wait"))
		s.logHas(t, filepath.Join(sandbox.LogDirectory, "c.log"), "up")
		testutil.Must(t, s.Client.StopContainer(t.Context(), id, 0))
		if st := s.status(t, id); st.ExitCode != 137 {
			t.Errorf("exit code %d, want 137", st.ExitCode)
		}
		if data, err := os.ReadFile(filepath.Join(sandbox.LogDirectory, "c.log")); err != nil || strings.Contains(string(data), "TERM") {
			t.Errorf("the log %q, %v", data, err)
		}
	})
}

// A stop that is cancelled during the grace period kills nothing, and its signal is not sent again.
// (CRI-O still kills at the end of the grace period.)
func testStopCutOff(s *suite, t *testing.T) {
	id, _, sandbox := s.start(t, s.script("c", "ignore-term", "out up", "wait"))
	log := filepath.Join(sandbox.LogDirectory, "c.log")
	s.logHas(t, log, "up")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.Client.StopContainer(ctx, id, 2*time.Second); !cri.IsTransport(err) {
		t.Fatalf("error %v, want a transport error", err)
	}
	s.logHas(t, log, "TERM")
	<-time.After(3 * time.Second) // beyond the grace period
	if s.CRIO {                   // it completes the stop
		if st := s.status(t, id); st.ExitCode != 137 {
			t.Errorf("exit code %d, want 137", st.ExitCode)
		}
		return
	}
	if st := s.status(t, id); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Fatalf("the container did not outlive the stop that was cut off: %v", st)
	}
	testutil.Must(t, s.Client.StopContainer(t.Context(), id, time.Second))
	if st := s.status(t, id); st.ExitCode != 137 {
		t.Errorf("exit code %d, want 137", st.ExitCode)
	}
	if data, _ := os.ReadFile(log); strings.Count(string(data), "TERM") != 1 {
		t.Errorf("the stop signal came %d times, want once", strings.Count(string(data), "TERM"))
	}
}

func testEnvAndMounts(s *suite, t *testing.T) {
	dir := filepath.Join(s.Dir, "mount")
	testutil.Must(t, os.MkdirAll(dir, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "given"), []byte("from the host\n"), 0o644))
	config := s.script("c", "env GREETING", "read /data/given", "append /data/made by the container")
	config.Envs = []*runtimeapi.KeyValue{{Key: "GREETING", Value: []byte("hello there")}}
	config.Mounts = []*runtimeapi.Mount{{HostPath: dir, ContainerPath: "/data"}}
	id, _, sandbox := s.start(t, config)
	if st := s.exited(t, id); st.ExitCode != 0 {
		t.Errorf("exit code %d", st.ExitCode)
	}
	log := filepath.Join(sandbox.LogDirectory, "c.log")
	s.logHas(t, log, "hello there")
	s.logHas(t, log, "from the host")
	if data, err := os.ReadFile(filepath.Join(dir, "made")); err != nil || string(data) != "by the container\n" {
		t.Errorf("%q, %v", data, err)
	}
}

func testUpdateResources(s *suite, t *testing.T) {
	config := s.script("c", "wait")
	config.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuShares: 128, MemoryLimitInBytes: 64 << 20}
	id, sandboxID, _ := s.start(t, config)
	stats, err := s.Client.ListContainerStats(t.Context(), sandboxID)
	if err != nil || len(stats) != 1 || stats[0].GetAttributes().GetId() != id || stats[0].GetMemory().GetUsageBytes() == nil {
		t.Errorf("stats of the sandbox: %v, %v", stats, err)
	}
	err = s.Client.UpdateContainerResources(t.Context(), id, &runtimeapi.ContainerResources{
		Linux: &runtimeapi.LinuxContainerResources{CpuShares: 256, MemoryLimitInBytes: 96 << 20},
	})
	testutil.Must(t, err)
	// containerd before 1.7 does not report resources.
	if r := s.status(t, id).GetResources().GetLinux(); r != nil && (r.CpuShares != 256 || r.MemoryLimitInBytes != 96<<20) {
		t.Errorf("resources %v", r)
	}
}

func testExecSync(s *suite, t *testing.T) {
	ctx := t.Context()
	id, _, _ := s.start(t, s.script("c", "wait"))
	run := func(timeout time.Duration, steps ...string) (cri.ExecResult, error) {
		return s.Client.ExecSync(ctx, id, append([]string{"/bowline-test"}, steps...), timeout)
	}
	r, err := run(0, "out hello", "err oops", "exit 5")
	if err != nil || string(r.Stdout) != "hello\n" || string(r.Stderr) != "oops\n" || r.ExitCode != 5 {
		t.Errorf("stdout %q, stderr %q, exit %d, %v", r.Stdout, r.Stderr, r.ExitCode, err)
	}
	if r, err = run(patience, "lines 2000 of output"); err != nil || len(r.Stdout) < 20000 || r.ExitCode != 0 {
		t.Errorf("%d bytes, exit %d, %v", len(r.Stdout), r.ExitCode, err)
	}
	began := time.Now()
	if r, err = run(time.Second, "wait"); s.CRIO && err == nil && r.ExitCode == -1 {
		// No command exits with -1: a probe or hook fails on it.
	} else if !cri.IsTimeout(err) || time.Since(began) > patience/2 {
		t.Errorf("error %v after %v, want a time-out after 1 s", err, time.Since(began))
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err = s.Client.ExecSync(short, id, []string{"/bowline-test", "wait"}, time.Minute); !cri.IsTransport(err) {
		t.Errorf("error %v under a context that ends, want a transport error", err)
	}
	if st := s.status(t, id); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container ended with its command: %v", st)
	}
	testutil.Must(t, s.Client.StopContainer(ctx, id, 0))
	if _, err = run(time.Second, "out x"); err == nil || cri.IsTransport(err) || cri.IsTimeout(err) {
		t.Errorf("exec in a container that has exited: %v, want a refusal", err)
	}
}
