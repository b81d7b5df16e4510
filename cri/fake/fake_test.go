package fake_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// cri/critest tests what the fake shares with real runtimes; these tests cover the rest.

func client(t *testing.T, r *fake.Runtime) *cri.Client {
	t.Helper()
	c, err := cri.Connect(t.Context(), cri.Config{Dial: r.Dial})
	testutil.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func running(t *testing.T, r *fake.Runtime, c *cri.Client) (sandboxID, id string) {
	t.Helper()
	r.AddImage("app", fake.RegistryImage{})
	sandbox := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u"}}
	sandboxID, err := c.RunPodSandbox(t.Context(), sandbox, "")
	testutil.Must(t, err)
	id, err = c.CreateContainer(t.Context(), sandboxID, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "app"}}, sandbox)
	testutil.Must(t, err)
	testutil.Must(t, c.StartContainer(t.Context(), id))
	return sandboxID, id
}

func TestFaults(t *testing.T) {
	refused := status.Error(codes.Unknown, "refused")
	list := func(ctx context.Context, c *cri.Client) error { _, err := c.ListContainers(ctx, nil); return err }

	t.Run("before, a number of times", func(t *testing.T) {
		r := fake.Run(t, fake.Config{})
		c := client(t, r)
		r.Inject("ListContainers", fake.Fault{Before: refused, Times: 2})
		for i, want := range []bool{true, true, false} {
			if err := list(t.Context(), c); (err != nil) != want {
				t.Errorf("call %d: %v", i, err)
			}
		}
		if n := r.Calls("ListContainers"); n != 3 {
			t.Errorf("%d calls counted, want 3", n)
		}
	})
	t.Run("after: the call is done", func(t *testing.T) {
		r := fake.Run(t, fake.Config{})
		c := client(t, r)
		_, id := running(t, r, c)
		r.Inject("StopContainer", fake.Fault{After: refused})
		if err := c.StopContainer(t.Context(), id, time.Second); err == nil {
			t.Error("no error")
		}
		if n := r.Count(fake.OpExit, "c"); n != 1 {
			t.Errorf("%d exits, want 1", n)
		}
	})
	t.Run("hold", func(t *testing.T) {
		r := fake.Run(t, fake.Config{})
		c := client(t, r)
		hold := make(chan struct{})
		r.Inject("ListContainers", fake.Fault{Hold: hold})
		done := make(chan error, 1)
		go func() { done <- list(t.Context(), c) }()
		select {
		case err := <-done:
			t.Fatalf("it was not held: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		close(hold)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("hold the answer: the call is done", func(t *testing.T) {
		r := fake.Run(t, fake.Config{})
		c := client(t, r)
		_, id := running(t, r, c)
		hold := make(chan struct{})
		r.Inject("StopContainer", fake.Fault{HoldAnswer: hold})
		done := make(chan error, 1)
		go func() { done <- c.StopContainer(t.Context(), id, time.Minute) }()
		for r.Count(fake.OpExit, "c") == 0 {
			select {
			case err := <-done:
				t.Fatalf("the answer was not held: %v", err)
			case <-time.After(time.Millisecond):
			}
		}
		close(hold)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("only what matches, until cleared", func(t *testing.T) {
		r := fake.Run(t, fake.Config{})
		c := client(t, r)
		r.Inject("ContainerStatus", fake.Fault{Before: refused, Times: -1, Match: func(req any) bool {
			return req.(*runtimeapi.ContainerStatusRequest).ContainerId == "this"
		}})
		_, other := c.ContainerStatus(t.Context(), "other")
		_, this := c.ContainerStatus(t.Context(), "this")
		r.ClearFaults()
		_, cleared := c.ContainerStatus(t.Context(), "this")
		if !cri.IsNotFound(other) || cri.IsNotFound(this) || !cri.IsNotFound(cleared) {
			t.Errorf("%v; %v; %v", other, this, cleared)
		}
	})
}

func TestWhatHappensToContainers(t *testing.T) {
	for name, c := range map[string]struct {
		do     func(r *fake.Runtime, sandboxID, id string) error
		state  runtimeapi.ContainerState
		code   int32
		reason string
	}{
		"exit": {func(r *fake.Runtime, _, id string) error { return r.Exit(id, 42) }, runtimeapi.ContainerState_CONTAINER_EXITED, 42, "Error"},
		"OOM":  {func(r *fake.Runtime, _, id string) error { return r.OOMKill(id) }, runtimeapi.ContainerState_CONTAINER_EXITED, 137, "OOMKilled"},
		"lost": {func(r *fake.Runtime, _, id string) error { return r.Lose(id) }, runtimeapi.ContainerState_CONTAINER_UNKNOWN, 0, ""},
		"sandbox fails": {func(r *fake.Runtime, sb, _ string) error { return r.FailSandbox(sb) },
			runtimeapi.ContainerState_CONTAINER_RUNNING, 0, ""},
		"daemon restarts": {func(r *fake.Runtime, _, _ string) error { r.Stop(); return r.Serve() },
			runtimeapi.ContainerState_CONTAINER_RUNNING, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := fake.Run(t, fake.Config{})
			sandboxID, id := running(t, r, client(t, r))
			testutil.Must(t, c.do(r, sandboxID, id))
			st, err := client(t, r).ContainerStatus(t.Context(), id)
			if err != nil || st.State != c.state || st.ExitCode != c.code || st.Reason != c.reason {
				t.Errorf("%v, %v", st, err)
			}
		})
	}
}

func TestPrograms(t *testing.T) {
	r := fake.Run(t, fake.Config{Programs: func(c *runtimeapi.ContainerConfig) fake.Program {
		return func(ctx context.Context, p *fake.Process) int {
			if p.Exec {
				return len(p.Args)
			}
			<-ctx.Done()
			return 0
		}
	}})
	c := client(t, r)
	_, id := running(t, r, c)
	res, err := c.ExecSync(t.Context(), id, []string{"a", "b", "c"}, time.Second)
	if err != nil || res.ExitCode != 3 {
		t.Errorf("%v, %v", res, err)
	}
}

func TestRegistry(t *testing.T) {
	broken := errors.New("broken")
	r := fake.Run(t, fake.Config{Registry: map[string]fake.RegistryImage{
		"docker.io/library/open:latest": {Size: 77},
		"quay.io/a/shut:v2":             {Password: "secret"},
		"docker.io/library/bad:latest":  {Err: status.Error(codes.Unknown, broken.Error())},
		"docker.io/library/slow:latest": {Delay: time.Hour},
	}})
	c := client(t, r)
	pull := func(ctx context.Context, ref, password string) error {
		_, err := c.PullImage(ctx, &runtimeapi.ImageSpec{Image: ref}, &runtimeapi.AuthConfig{Password: password}, nil)
		return err
	}
	if err := pull(t.Context(), "open", ""); err != nil {
		t.Error(err)
	}
	if img, err := c.ImageStatus(t.Context(), &runtimeapi.ImageSpec{Image: "docker.io/library/open"}); err != nil || img.GetSize() != 77 {
		t.Errorf("%v, %v", img, err)
	}
	if err := pull(t.Context(), "quay.io/a/shut:v2", "wrong"); err == nil || cri.IsTransport(err) {
		t.Errorf("wrong password: %v", err)
	}
	if err := pull(t.Context(), "quay.io/a/shut:v2", "secret"); err != nil {
		t.Error(err)
	}
	if err := pull(t.Context(), "bad", ""); err == nil || cri.IsNotFound(err) {
		t.Errorf("bad: %v", err)
	}
	if err := pull(t.Context(), "nowhere", ""); !cri.IsNotFound(err) {
		t.Errorf("nowhere: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := pull(ctx, "slow", ""); !cri.IsTransport(err) {
		t.Errorf("slow: %v", err)
	}
}

func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{
		"nginx":             "docker.io/library/nginx:latest",
		"a/b:1":             "docker.io/a/b:1",
		"localhost/x":       "localhost/x:latest",
		"127.0.0.1:5000/x":  "127.0.0.1:5000/x:latest",
		"quay.io/x@sha256:": "quay.io/x@sha256:",
	} {
		if got := fake.Normalize(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
