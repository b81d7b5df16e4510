package spec_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestHashNeverChanges: these hashes are on existing containers; the comments name their writers.
func TestHashNeverChanges(t *testing.T) {
	var sample v1.Container
	if err := json.Unmarshal([]byte(`{"name": "test_container", "image": "foo/image:v1", "command": ["/bin/testcmd"], "args": ["/bin/sh", "-c", "echo abc"],
		"ports": [{"containerPort": 8001}], "env": [{"name": "ENV_FOO", "value": "bar"},
		{"name": "ENV_BAR", "valueFrom": {"secretKeyRef": {"name": "foo", "key": "bar", "optional": true}}}],
		"resources": {"limits": {"foo": "1G"}, "requests": {"foo": "500M"}}}`), &sample); err != nil {
		t.Fatal(err)
	}
	app := v1.Container{Name: "app", Image: "registry.example/app:1"}
	for _, c := range []struct {
		of     v1.Container
		hash   string
		former bool
	}{
		{sample, "8e45cbd0", false}, // kubelet 1.31 to 1.37: in the kubelet's test of HashContainer
		{sample, "311670a", true},   // kubelet 1.15 to 1.30: in the kubelet's test TestConsistentHashContainer
		{app, "b188a4f6", true},     // Bowline before it wrote the kubelet's form
		{v1.Container{}, "50c5d1f", true},
	} {
		got := []string{spec.Hash(&c.of)}
		if c.former {
			got = spec.FormerHashes(&c.of)
		}
		if !slices.Contains(got, c.hash) {
			t.Errorf("hashes of %q, %q: %q, was %q", c.of.Name, c.of.Image, got, c.hash)
		}
	}
}

func TestHashCoversWhatNeedsARestart(t *testing.T) {
	base := spec.Hash(&v1.Container{Name: "a", Image: "i:1"})
	if spec.Hash(&v1.Container{Name: "a", Image: "i:2"}) == base {
		t.Error("another image has the same hash")
	}
	resized := requires(list("cpu", "1"), nil)
	resized.Name, resized.Image = "a", "i:1"
	if spec.Hash(&resized) != base {
		t.Error("a resize changes the hash, which would restart the container")
	}
}

func TestRunAsNonRoot(t *testing.T) {
	yes, zero, uid := true, int64(0), int64(7)
	numeric := func(v int64) spec.ImageUser { return spec.ImageUser{UID: &v} }
	for _, c := range []struct {
		name    string
		pod     *v1.PodSecurityContext
		c       *v1.SecurityContext
		image   spec.ImageUser
		refused string // part of the error; empty: allowed
	}{
		{"a numeric user", nil, &v1.SecurityContext{RunAsNonRoot: &yes}, numeric(5), ""},
		{"root by number", nil, &v1.SecurityContext{RunAsNonRoot: &yes}, numeric(0), "image will run as root"},
		{"no user", nil, &v1.SecurityContext{RunAsNonRoot: &yes}, spec.UserOf(&runtimeapi.Image{}), "image will run as root"},
		{"nothing known", nil, &v1.SecurityContext{RunAsNonRoot: &yes}, spec.UserOf(nil), "image will run as root"},
		{"a name", nil, &v1.SecurityContext{RunAsNonRoot: &yes}, spec.ImageUser{Name: "web"}, "non-numeric user (web)"},
		{"a name, but the spec has a number", nil, &v1.SecurityContext{RunAsNonRoot: &yes, RunAsUser: &uid}, spec.ImageUser{Name: "web"}, ""},
		{"root by the spec", nil, &v1.SecurityContext{RunAsNonRoot: &yes, RunAsUser: &zero}, numeric(5), "breaks non-root policy"},
		{"root by the pod", &v1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &zero}, nil, numeric(5), "breaks non-root policy"},
		{"the container overrides the pod", &v1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &zero}, &v1.SecurityContext{RunAsUser: &uid}, numeric(0), ""},
		{"too large a number", nil, &v1.SecurityContext{RunAsNonRoot: &yes}, numeric(1 << 40), "invalid user id"},
		{"not asked", nil, nil, spec.UserOf(nil), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &v1.Pod{Spec: v1.PodSpec{SecurityContext: c.pod}}
			container := &v1.Container{Name: "app", SecurityContext: c.c}
			_, err := spec.Container(p, container, spec.Machine{Owner: "o"}, spec.ContainerInput{ImageUser: c.image})
			if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("got %v, want %q", err, c.refused)
			}
		})
	}
}

func TestUserOf(t *testing.T) {
	run := func(u spec.ImageUser) *runtimeapi.LinuxContainerSecurityContext {
		config, err := spec.Container(&v1.Pod{}, &v1.Container{}, spec.Machine{}, spec.ContainerInput{ImageUser: u})
		testutil.Must(t, err)
		return config.Linux.SecurityContext
	}
	if sc := run(spec.UserOf(nil)); sc.RunAsUser != nil || sc.RunAsUsername != "" {
		t.Errorf("an unknown image must keep its own user, not run as %v %q", sc.RunAsUser, sc.RunAsUsername)
	}
	if sc := run(spec.UserOf(&runtimeapi.Image{})); sc.RunAsUser == nil || sc.RunAsUser.Value != 0 {
		t.Errorf("an image without a user runs as %v, want root", sc.RunAsUser)
	}
	if sc := run(spec.UserOf(&runtimeapi.Image{Username: "web"})); sc.RunAsUser != nil || sc.RunAsUsername != "web" {
		t.Errorf("got %v %q", sc.RunAsUser, sc.RunAsUsername)
	}
	if sc := run(spec.UserOf(&runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: 7}})); sc.RunAsUser.GetValue() != 7 {
		t.Errorf("got %v", sc.RunAsUser)
	}
}

func TestStopSignals(t *testing.T) {
	for name := range runtimeapi.Signal_value {
		short, ok := strings.CutPrefix(name, "SIGNAL_")
		if !ok || short == "RUNTIME_DEFAULT" {
			continue
		}
		signal := v1.Signal(strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(short))
		c := &v1.Container{Lifecycle: &v1.Lifecycle{StopSignal: &signal}}
		config, err := spec.Container(&v1.Pod{}, c, spec.Machine{}, spec.ContainerInput{})
		if err != nil || config.StopSignal.String() != name {
			t.Errorf("%s: %v, %v", signal, config.GetStopSignal(), err)
		}
		if back := spec.SignalName(config.GetStopSignal()); back != string(signal) {
			t.Errorf("%s is read back as %q", signal, back)
		}
	}
	for _, unknown := range []runtimeapi.Signal{runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT, 9999} {
		if name := spec.SignalName(unknown); name != "" {
			t.Errorf("the signal %d is %q", unknown, name)
		}
	}
}

func TestSubPaths(t *testing.T) {
	c := &v1.Container{Name: "app", VolumeMounts: []v1.VolumeMount{
		{Name: "v", MountPath: "/whole"},
		{Name: "v", MountPath: "/part", SubPath: "a//b/./c"},
		{Name: "v", MountPath: "/expr", SubPathExpr: "$(N)/x"},
	}}
	env := []spec.EnvVar{{Name: "N", Value: "n"}}
	parts, err := spec.SubPaths(c, env)
	want := []spec.SubPath{{Index: 1, Volume: "v", Path: "a/b/c"}, {Index: 2, Volume: "v", Path: "n/x"}}
	if diff := cmp.Diff(want, parts); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	in := spec.ContainerInput{Env: env, Mounts: map[string]spec.VolumeMount{"v": {HostPath: "/vol"}}, SubPaths: map[int]string{1: "/proc/1/fd/9"}}
	config, err := spec.Container(&v1.Pod{}, c, spec.Machine{}, in)
	testutil.Must(t, err)
	var got []string
	for _, m := range config.Mounts {
		got = append(got, m.HostPath)
	}
	if diff := cmp.Diff([]string{"/vol", "/proc/1/fd/9", "/vol/n/x"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSubPathStaysInside: whatever the parts are, the joined path is inside the volume, or the
// mount is refused.
func TestSubPathStaysInside(t *testing.T) {
	part := rapid.SampledFrom([]string{"..", ".", "a", "", "...", "..a", "a..", "/"})
	rapid.Check(t, func(t *rapid.T) {
		sub := strings.Join(rapid.SliceOfN(part, 0, 6).Draw(t, "parts"), "/")
		c := &v1.Container{VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/x", SubPath: sub}}}
		in := spec.ContainerInput{Mounts: map[string]spec.VolumeMount{"v": {HostPath: "/vol/v"}}}
		config, err := spec.Container(&v1.Pod{}, c, spec.Machine{}, in)
		if err != nil {
			return
		}
		if got := config.Mounts[0].HostPath; got != "/vol/v" && !strings.HasPrefix(got, "/vol/v/") {
			t.Fatalf("subPath %q leads to %q", sub, got)
		}
	})
}

func TestHostsMount(t *testing.T) {
	own := []v1.VolumeMount{{Name: "v", MountPath: "/etc/hosts"}}
	for _, c := range []struct {
		name        string
		hostNetwork bool
		ips         []string
		mounts      []v1.VolumeMount
		want        bool
	}{
		{"with an address", false, []string{"10.0.0.1"}, nil, true},
		{"no address yet", false, nil, nil, false},
		{"host network", true, nil, nil, true},
		{"the container's own", false, []string{"10.0.0.1"}, own, false},
	} {
		p := &v1.Pod{Spec: v1.PodSpec{HostNetwork: c.hostNetwork}}
		if got := spec.ManagesHosts(p, &v1.Container{VolumeMounts: c.mounts}, c.ips); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestInputsAreNotChanged: many readers share the pod.
func TestInputsAreNotChanged(t *testing.T) {
	m, envIn := world(t)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}},
		Spec: v1.PodSpec{
			DNSConfig:       &v1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Options: []v1.PodDNSConfigOption{{Name: "x"}}},
			SecurityContext: &v1.PodSecurityContext{SupplementalGroups: append(make([]int64, 0, 9), 1)},
			Containers:      []v1.Container{{Name: "a", Image: "i", Env: []v1.EnvVar{{Name: "A", Value: "$(B)"}}}},
		},
	}
	before := p.DeepCopy()
	sandbox, err := spec.Sandbox(p, m, 0)
	testutil.Must(t, err)
	env, err := spec.Env(p, &p.Spec.Containers[0], envIn)
	testutil.Must(t, err)
	config, err := spec.Container(p, &p.Spec.Containers[0], m, spec.ContainerInput{Env: env, SupplementalGroups: []int64{5}})
	testutil.Must(t, err)
	sandbox.Annotations["x"], sandbox.Labels["x"] = "y", "y"
	config.Linux.SecurityContext.MaskedPaths[0] = "x"
	if !reflect.DeepEqual(before, p) {
		t.Errorf("the pod was changed: %s", cmp.Diff(before, p))
	}
	again, _ := spec.Container(p, &p.Spec.Containers[0], m, spec.ContainerInput{})
	if again.Linux.SecurityContext.MaskedPaths[0] == "x" {
		t.Error("two configs share the list of masked paths")
	}
	if groups := again.Linux.SecurityContext.SupplementalGroups; len(groups) != 1 {
		t.Errorf("groups %v leaked from another container", groups)
	}
}

func TestSandboxNeedsAnOwner(t *testing.T) {
	if _, err := spec.Sandbox(&v1.Pod{}, spec.Machine{}, 0); err == nil {
		t.Error("a sandbox without a stamp was made")
	}
}

func TestLogLink(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: strings.Repeat("p", 253)}}
	if got := spec.LogLink(p, "app", "id"); len(got) != 255 || !strings.HasSuffix(got, ".log") {
		t.Errorf("%d characters: %s", len(got), got)
	}
	p.Name = "web"
	if got := spec.LogLink(p, "app", "id"); got != "web_ns_app-id.log" {
		t.Error(got)
	}
}
