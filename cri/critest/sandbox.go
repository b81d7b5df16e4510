package critest

import (
	"maps"
	"net/netip"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func testStatus(s *suite, t *testing.T) {
	v, err := s.Client.Version(t.Context())
	if err != nil || v.RuntimeName == "" || v.RuntimeVersion == "" {
		t.Errorf("version %v, %v", v, err)
	}
	st, err := s.Client.Status(t.Context(), true)
	testutil.Must(t, err)
	for _, name := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		ready := false
		for _, c := range st.Status.GetConditions() {
			ready = ready || c.Type == name && c.Status
		}
		if !ready {
			t.Errorf("%s is not true: %v", name, st.Status)
		}
	}
	if len(st.Info) == 0 {
		t.Error("verbose status without information")
	}
	if _, err := s.Client.RuntimeConfig(t.Context()); err != nil && !cri.IsUnimplemented(err) {
		t.Error(err)
	}
}

func testSandboxLife(s *suite, t *testing.T) {
	ctx, config := t.Context(), s.sandboxConfig(t)
	id := s.runSandbox(t, config)
	again, err := s.Client.RunPodSandbox(ctx, config, "")
	s.wantTaken(t, id, again, err)
	st, err := s.Client.PodSandboxStatus(ctx, id)
	testutil.Must(t, err)
	if st.Id != id || st.State != runtimeapi.PodSandboxState_SANDBOX_READY || st.CreatedAt == 0 {
		t.Errorf("status %v", st)
	}
	if m := st.Metadata; m.GetName() != config.Metadata.Name || m.GetNamespace() != "critest" || m.GetUid() != config.Metadata.Uid || m.GetAttempt() != 2 {
		t.Errorf("metadata %v", m)
	}
	if !holds(st.Labels, config.Labels) || !holds(st.Annotations, config.Annotations) {
		t.Errorf("labels %v, annotations %v", st.Labels, st.Annotations)
	}
	if ip, err := netip.ParseAddr(st.GetNetwork().GetIp()); err != nil || ip.IsLoopback() {
		t.Errorf("address %q", st.GetNetwork().GetIp())
	}
	for range 2 { // the stop may be repeated
		testutil.Must(t, s.Client.StopPodSandbox(ctx, id))
		if st, err = s.Client.PodSandboxStatus(ctx, id); err != nil || st.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("after the stop: %v, %v", st, err)
		}
	}
	if _, err := s.Client.CreateContainer(ctx, id, s.script("late", "wait"), config); err == nil {
		t.Error("a container was made in a stopped sandbox")
	}
	for range 2 {
		testutil.Must(t, s.Client.RemovePodSandbox(ctx, id))
		if _, err := s.Client.PodSandboxStatus(ctx, id); !cri.IsNotFound(err) {
			t.Errorf("after the removal: %v, want not found", err)
		}
	}
	if err := s.Client.StopPodSandbox(ctx, id); err != nil {
		t.Errorf("stop of a removed sandbox: %v", err)
	}
	again, err = s.Client.RunPodSandbox(ctx, config, "")
	if err != nil {
		t.Fatalf("the name is not free after the removal: %v", err)
	}
	if err := s.Client.RemovePodSandbox(ctx, again); err != nil {
		t.Errorf("removal of a running sandbox: %v", err)
	}
}

func testSandboxList(s *suite, t *testing.T) {
	one, two := s.sandboxConfig(t), s.sandboxConfig(t)
	idOne, idTwo := s.runSandbox(t, one), s.runSandbox(t, two)
	testutil.Must(t, s.Client.StopPodSandbox(t.Context(), idTwo))
	state := func(st runtimeapi.PodSandboxState) *runtimeapi.PodSandboxStateValue {
		return &runtimeapi.PodSandboxStateValue{State: st}
	}
	mine := map[string]string{"suite": "critest"}
	for name, c := range map[string]struct {
		filter *runtimeapi.PodSandboxFilter
		want   []string
	}{
		"all":         {nil, []string{idOne, idTwo}},
		"ours":        {&runtimeapi.PodSandboxFilter{LabelSelector: mine}, []string{idOne, idTwo}},
		"by label":    {&runtimeapi.PodSandboxFilter{LabelSelector: one.Labels}, []string{idOne}},
		"other value": {&runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"suite": "other"}}, nil},
		"by ID":       {&runtimeapi.PodSandboxFilter{Id: idTwo}, []string{idTwo}},
		"unknown ID":  {&runtimeapi.PodSandboxFilter{Id: "none"}, nil},
		"ready":       {&runtimeapi.PodSandboxFilter{State: state(runtimeapi.PodSandboxState_SANDBOX_READY), LabelSelector: mine}, []string{idOne}},
		"not ready":   {&runtimeapi.PodSandboxFilter{State: state(runtimeapi.PodSandboxState_SANDBOX_NOTREADY), LabelSelector: mine}, []string{idTwo}},
	} {
		list, err := s.Client.ListPodSandbox(t.Context(), c.filter)
		testutil.Must(t, err)
		got := map[string]bool{}
		for _, sb := range list {
			if sb.Id == idOne || sb.Id == idTwo {
				got[sb.Id] = true
			} else if c.filter != nil && sb.Labels["suite"] != "critest" {
				t.Errorf("%s: a stranger: %v", name, sb)
			}
		}
		want := map[string]bool{}
		for _, id := range c.want {
			want[id] = true
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func testSandboxHostNetwork(s *suite, t *testing.T) {
	config := s.sandboxConfig(t)
	config.Hostname = ""
	config.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
	}
	id := s.runSandbox(t, config)
	st, err := s.Client.PodSandboxStatus(t.Context(), id)
	testutil.Must(t, err)
	if ip := st.GetNetwork().GetIp(); ip != "" {
		t.Errorf("address %q of a sandbox on the host's network", ip)
	}
	if n := st.GetLinux().GetNamespaces().GetOptions().GetNetwork(); n != runtimeapi.NamespaceMode_NODE {
		t.Errorf("network namespace %v", n)
	}
}

func testSandboxStopKills(s *suite, t *testing.T) {
	id, sandboxID, _ := s.start(t, s.script("c", "ignore-term", "wait"))
	testutil.Must(t, s.Client.StopPodSandbox(t.Context(), sandboxID))
	if st := s.exited(t, id); st.ExitCode != 137 {
		t.Errorf("exit code %d, want 137", st.ExitCode)
	}
}

func testSandboxRemove(s *suite, t *testing.T) {
	id, sandboxID, _ := s.start(t, s.script("c", "wait"))
	testutil.Must(t, s.Client.RemovePodSandbox(t.Context(), sandboxID))
	if _, err := s.Client.ContainerStatus(t.Context(), id); !cri.IsNotFound(err) {
		t.Errorf("the container of a removed sandbox: %v, want not found", err)
	}
}

// holds reports whether got has all of want. Runtimes add labels of their own.
func holds(got, want map[string]string) bool {
	for key, value := range want {
		if got[key] != value {
			return false
		}
	}
	return true
}

// wantTaken checks the result of creating a second sandbox or container with the same name and
// attempt: a refusal, or from CRI-O the ID of the first one.
func (s *suite) wantTaken(t *testing.T, id, again string, err error) {
	t.Helper()
	if s.CRIO && err == nil && again == id || !s.CRIO && cri.IsExists(err) {
		return
	}
	t.Errorf("a second one of this name and attempt: %q, %v, want the name to be taken", again, err)
}
