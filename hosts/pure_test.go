package hosts

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

const pin = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

func remoteHost(name string) *v1alpha1.Host {
	return &v1alpha1.Host{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name), Generation: 1},
		Spec: v1alpha1.HostSpec{
			Endpoint: "ssh://root@" + name + "/run/containerd/containerd.sock", HostKeys: []string{pin},
			CredentialsSecretRef: &v1alpha1.SecretRef{Name: name + "-key"},
		},
	}
}

// template parses a configuration, and returns its template.
func template(t *testing.T, lines ...string) *config.Host {
	t.Helper()
	c, err := config.Parse([]byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nkubeconfig: /etc/{nodeName}.kubeconfig\n" +
		"registerWithTaints: [{key: far, effect: NoSchedule}]\nhostObjects:\n  namespace: ours\n  template:\n    labels: {a: \"1\", b: \"1\"}\n" + strings.Join(lines, "\n")))
	testutil.Must(t, err)
	return &c.HostObjects.Template
}

func TestTranslate(t *testing.T) {
	h := remoteHost("box")
	pods := int32(7)
	h.Spec.MaxPods, h.Spec.Labels, h.Spec.NodeName = &pods, map[string]string{"b": "2"}, "box.lab"
	h.Spec.Taints = []v1.Taint{{Key: "own", Effect: v1.TaintEffectNoExecute}}
	h.Spec.Reserved = map[string]v1alpha1.Amount{"cpu": "100m"}
	h.Spec.LinkGrace = &metav1.Duration{Duration: time.Hour}
	from := template(t, "    ssh: {identityFile: /id, proxyJump: jump}")
	before := *from
	cfg, err := Translate(h, from, "ours", "/account")
	testutil.Must(t, err)
	got := map[string]any{
		"name": cfg.Name, "object": cfg.HostObject, "node": cfg.NodeName, "endpoint": cfg.Endpoint, "kubeconfig": cfg.Kubeconfig,
		"labels": cfg.Labels, "taints": len(cfg.Taints), "pods": cfg.MaxPods, "reserved": cfg.SystemReserved, "grace": cfg.LinkGrace.Duration,
		"pins": cfg.SSH.HostKeys, "secret": *cfg.SSH.Secret, "file": cfg.SSH.IdentityFile, "jump": cfg.SSH.ProxyJump, "root": cfg.RootDirectory,
	}
	want := map[string]any{
		"name": "box", "object": "box", "node": "box.lab", "endpoint": h.Spec.Endpoint, "kubeconfig": "/etc/box.lab.kubeconfig",
		"labels": map[string]string{"a": "1", "b": "2"}, "taints": 2, "pods": int32(7), "reserved": map[string]string{"cpu": "100m"}, "grace": time.Hour,
		"pins": []string{pin}, "secret": config.SSHSecret{Namespace: "ours", Name: "box-key", Kubeconfig: "/account"}, "file": "", "jump": "jump", "root": "/var/lib/kubelet",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	h.Spec.SSH = &v1alpha1.HostSSH{ProxyJump: []v1alpha1.Jump{{User: "j", Address: "gate", Port: 2222, HostKeys: []string{pin}}}}
	by, err := Translate(h, from, "ours", "/account")
	testutil.Must(t, err)
	if d := cmp.Diff([]config.SSHJump{{User: "j", Address: "gate", Port: 2222, HostKeys: []string{pin}}}, by.SSH.Jumps); d != "" || by.SSH.ProxyJump != "" {
		t.Errorf("jump %q and %s", by.SSH.ProxyJump, d)
	}
	h.Spec.SSH.ProxyJump[0].HostKeys = []string{"MD5:x"}
	if _, err := Translate(h, from, "ours", "/account"); err == nil || !strings.Contains(err.Error(), "spec.ssh.proxyJump[0]: ") {
		t.Errorf("a bad key of a jump: %v", err)
	}
	other := remoteHost("other")
	other.Spec.Endpoint = h.Spec.Endpoint
	if v := conflicting(other, []*v1alpha1.Host{h}); v != nil {
		t.Errorf("the same address behind a jump is taken for the same machine: %+v", v)
	}
	h.Spec.SSH = nil
	if v := conflicting(other, []*v1alpha1.Host{h}); v == nil || v.reason != ReasonHostTaken {
		t.Errorf("the same machine: %+v", v)
	}
	if d := cmp.Diff(&before, from); d != "" {
		t.Errorf("the template was changed: %s", d)
	}
	again, err := Translate(h, from, "ours", "/account")
	if d := cmp.Diff(cfg, again); err != nil || d != "" {
		t.Errorf("the same Host is another host the second time: %v %s", err, d)
	}
}

// An error names the fields of the object, and what to do.
func TestTranslateRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.Host)
		want   string
	}{
		"no login":      {func(h *v1alpha1.Host) { h.Spec.CredentialsSecretRef = nil }, "spec.credentialsSecretRef: Required value: set a Secret of the namespace ours"},
		"no pins":       {func(h *v1alpha1.Host) { h.Spec.HostKeys = nil }, "spec.hostKeys: Required value: pin the host keys"},
		"not a pin":     {func(h *v1alpha1.Host) { h.Spec.HostKeys = []string{"key"} }, "spec.hostKeys[0]: Invalid value"},
		"socket":        {func(h *v1alpha1.Host) { h.Spec.Endpoint = "ssh://root@box" }, "spec.endpoint: Invalid value"},
		"secret's name": {func(h *v1alpha1.Host) { h.Spec.CredentialsSecretRef.Name = "No" }, "spec.credentialsSecretRef.name: Invalid value"},
		"label":         {func(h *v1alpha1.Host) { h.Spec.Labels = map[string]string{"kubernetes.io/role": "x"} }, "a node may not set this label"},
		"address":       {func(h *v1alpha1.Host) { h.Spec.NodeIP = "box" }, "spec.nodeIP: Invalid value"},
		"reserved":      {func(h *v1alpha1.Host) { h.Spec.Reserved = map[string]v1alpha1.Amount{"cpu": "much"} }, "spec.reserved[cpu]: Invalid value"},
	} {
		h := remoteHost("box")
		c.change(h)
		if cfg, err := Translate(h, template(t), "ours", ""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, %v; want %s", name, cfg, err, c.want)
		}
	}
}

// TestPolicy: what either of the Host and the template forbids is forbidden.
func TestPolicy(t *testing.T) {
	no, yes := false, true
	h := remoteHost("box")
	h.Spec.Policy = &v1alpha1.Policy{AllowPrivileged: &yes, AllowHostPath: &no, AllowNFS: &no}
	cfg, err := Translate(h, template(t, "    policy: {allowPrivileged: false}"), "ours", "")
	testutil.Must(t, err)
	if p := cfg.Policy; *p.AllowPrivileged || *p.AllowHostPath || !*p.AllowHostNetwork || *p.AllowNFS {
		t.Errorf("the policy allows: privileged %v, hostPath %v, hostNetwork %v, NFS %v", *p.AllowPrivileged, *p.AllowHostPath, *p.AllowHostNetwork, *p.AllowNFS)
	}
}

func TestLocalHost(t *testing.T) {
	h := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Spec: v1alpha1.HostSpec{Endpoint: "/run/x.sock"}}
	cfg, err := Translate(h, template(t, "    ssh: {identityFile: /id}", "    server: {publishedAddress: 10.0.0.1}"), "ours", "")
	testutil.Must(t, err)
	if cfg.Remote() || cfg.Endpoint != "unix:///run/x.sock" || cfg.Server.Port != 10250 {
		t.Errorf("it is %+v", cfg)
	}
}

// TestExposedHost: a machine that listens for its node does not use this process's own address,
// which a template may name for the other hosts.
func TestExposedHost(t *testing.T) {
	h := remoteHost("box")
	from := template(t, "    server: {address: 10.0.0.1, publishedAddress: 10.0.0.2}")
	cfg, err := Translate(h, from, "ours", "")
	if err != nil || cfg.Exposed() || cfg.Server.Port != 0 || cfg.Server.PublishedAddress != "10.0.0.2" {
		t.Errorf("by the process: %+v, %v", cfg, err)
	}
	h.Spec.KubeletExposure, h.Spec.NodeIP = v1alpha1.ExposureHost, "10.0.0.7"
	cfg, err = Translate(h, from, "ours", "")
	if err != nil || !cfg.Exposed() || cfg.NodeIP != "10.0.0.7" || cfg.Server != (config.Server{Address: "0.0.0.0", Port: 10250}) {
		t.Errorf("by the machine: %+v, %v", cfg, err)
	}
	h.Spec = v1alpha1.HostSpec{Endpoint: "unix:///run/x.sock", KubeletExposure: v1alpha1.ExposureHost}
	if cfg, err = Translate(h, from, "ours", ""); err != nil || cfg.Exposed() || cfg.Server.Address != "10.0.0.1" {
		t.Errorf("on this machine: %+v, %v", cfg, err)
	}
}

func TestConflicting(t *testing.T) {
	at := func(name, node, endpoint string, sec int64) *v1alpha1.Host {
		h := remoteHost(name)
		h.CreationTimestamp, h.Spec.NodeName, h.Spec.Endpoint = metav1.Unix(sec, 0), node, endpoint
		return h
	}
	old, node, machine, other := at("old", "n", "e", 1), at("a", "n", "f", 2), at("b", "m", "e", 2), at("c", "old", "g", 2)
	all := []*v1alpha1.Host{machine, other, node, old}
	for h, want := range map[*v1alpha1.Host]string{old: "", node: "the Host old already has the node name n", machine: "the Host old has the same endpoint", other: ""} {
		v := conflicting(h, all)
		switch {
		case want == "" && v != nil:
			t.Errorf("%s is refused: %s", h.Name, v.message)
		case want != "" && (v == nil || v.reason != ReasonHostTaken || !strings.Contains(v.message, want)):
			t.Errorf("%s: %+v", h.Name, v)
		}
	}
	// Of two that were created in the same second, the order must not depend on who asks.
	twin := at("d", "n", "h", 1)
	if older(old, twin) == older(twin, old) {
		t.Error("neither of two, or both, are the older one")
	}
}

func TestCoarse(t *testing.T) {
	for _, c := range []struct {
		before string
		rtt    time.Duration
		want   string
	}{
		{"", 0, ""}, {"", 100 * time.Microsecond, "1ms"}, {"", 3 * time.Millisecond, "2ms"}, {"", 4 * time.Millisecond, "5ms"},
		{"", 18 * time.Millisecond, "20ms"}, {"20ms", 39 * time.Millisecond, "20ms"}, {"20ms", 11 * time.Millisecond, "20ms"},
		{"20ms", 41 * time.Millisecond, "50ms"}, {"20ms", 9 * time.Millisecond, "10ms"}, {"", 3 * time.Second, "2s"}, {"1ms", 0, "1ms"},
	} {
		if got := coarse(c.before, c.rtt); got != c.want {
			t.Errorf("coarse(%q, %s) = %q, want %q", c.before, c.rtt, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		rtt := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Minute)).Draw(t, "rtt"))
		shown := coarse("", rtt)
		// The value must stay when the round-trip time moves by a quarter.
		for _, near := range []time.Duration{rtt, rtt * 5 / 4, rtt*4/5 + 1} {
			if got := coarse(shown, near); got != shown {
				t.Fatalf("%s was shown as %s, %s as %s", rtt, shown, near, got)
			}
		}
	})
}

// TestNext: from every state, the steps lead to the end, and no step would lose something.
func TestNext(t *testing.T) {
	bools := []bool{false, true}
	for _, policy := range []v1alpha1.DeletionPolicy{v1alpha1.DeletionDrain, v1alpha1.DeletionDetach, ""} {
		for _, was := range bools {
			for _, node := range bools {
				for _, cordoned := range bools {
					for _, pods := range []int{0, 2} {
						for _, managed := range bools {
							for _, released := range bools {
								if node && !was {
									continue // impossible: remove sets was if there is a node
								}
								walk(t, removal{policy, was, node, cordoned, pods, managed, released})
							}
						}
					}
				}
			}
		}
	}
}

func walk(t *testing.T, r removal) {
	t.Helper()
	began := r
	detaches := r.policy == v1alpha1.DeletionDetach
	for range 10 {
		due := next(r)
		if detaches && (due == stepCordon || due == stepEvict || due == stepRelease) {
			t.Errorf("%+v: a detach does %s", r, due)
		}
		if !r.was && due != stepEnd && due != stepDone {
			t.Errorf("%+v: what never was a node has %s", r, due)
		}
		switch due {
		case stepCordon:
			r.cordoned = true
		case stepEvict:
			if !r.cordoned {
				t.Errorf("%+v: evicted while new pods come", r)
			}
			r.pods = 0
		case stepEnd:
			r.managed = false
		case stepRelease:
			if r.managed || r.node && r.pods > 0 {
				t.Errorf("%+v: the machine is emptied under a driver, or its pods", r)
			}
			r.released = true
		case stepForget:
			if r.managed || !detaches && !r.released {
				t.Errorf("%+v: the node is forgotten too early", r)
			}
			r.node = false
		case stepDone:
			if r.managed || r.node || r.was && !detaches && !r.released {
				t.Errorf("%+v is done", r)
			}
			return
		}
	}
	t.Errorf("%+v comes to no end", began)
}

func TestStatus(t *testing.T) {
	cfg, other := &config.Host{Name: "box"}, &config.Host{Name: "box", NodeName: "changed"}
	up := &Link{Up: true, Message: "connected", RTT: 18 * time.Millisecond}
	good := Report{Config: cfg, NodeName: "box", Link: up, RuntimeName: "containerd", RuntimeVersion: "2.2", Pods: 3, Ready: true}
	with := func(change func(*Report)) *Report { r := good; change(&r); return &r }
	for name, c := range map[string]struct {
		verdict         *notReady
		wanted          *config.Host
		report          *Report
		status          metav1.ConditionStatus
		reason, message string
	}{
		"refused":         {verdict: notReadyf(ReasonInvalid, "words"), status: metav1.ConditionFalse, reason: ReasonInvalid, message: "words"},
		"not yet":         {wanted: cfg, status: metav1.ConditionFalse, reason: ReasonStarting},
		"managed":         {wanted: cfg, report: &good, status: metav1.ConditionTrue, reason: ReasonNodeReady},
		"of before":       {wanted: other, report: &good, status: metav1.ConditionFalse, reason: ReasonChanged},
		"of before, sick": {wanted: other, report: with(func(r *Report) { r.Err = errors.New("no") }), status: metav1.ConditionFalse, reason: ReasonChanged},
		"failed":          {wanted: cfg, report: &Report{Config: cfg, Err: errors.New("no route")}, status: metav1.ConditionFalse, reason: ReasonFailed, message: "no route"},
		"quarantined": {wanted: cfg, report: &Report{Config: cfg, Err: errors.New("budget Items of 5 exceeded"), Quarantined: time.Unix(60, 0)}, status: metav1.ConditionFalse,
			reason: ReasonQuarantined, message: "the host is quarantined until 1970-01-01T00:01:00Z: budget Items of 5 exceeded"},
		"another machine": {wanted: cfg, report: &Report{Config: cfg, Err: fmt.Errorf("manage: %w", &OtherMachineError{Host: "box"})}, status: metav1.ConditionFalse,
			reason: ReasonOtherMachine, message: "found another machine than the recorded one"},
		"not held yet":   {wanted: cfg, report: &Report{Config: cfg}, status: metav1.ConditionFalse, reason: ReasonStarting},
		"in its grace":   {wanted: cfg, report: with(func(r *Report) { r.Link = &Link{Message: "cut"} }), status: metav1.ConditionTrue, reason: ReasonLinkGrace, message: "cut"},
		"node not ready": {wanted: cfg, report: with(func(r *Report) { r.Ready, r.Reason, r.Message = false, "LinkDown", "for long" }), status: metav1.ConditionFalse, reason: "LinkDown", message: "for long"},
		"no reason":      {wanted: cfg, report: with(func(r *Report) { r.Ready = false }), status: metav1.ConditionFalse, reason: "NotReady"},
	} {
		h := remoteHost("box")
		h.Generation = 4
		st := statusOf(h, c.verdict, c.wanted, c.report, time.Unix(100, 5))
		ready := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Status != c.status || ready.Reason != c.reason || !strings.Contains(ready.Message, c.message) || ready.ObservedGeneration != 4 || st.ObservedGeneration != 4 {
			t.Errorf("%s: %+v", name, ready)
		}
		if c.report != nil && c.report.Err != nil && st.LastError != hint.Text(c.report.Err) {
			t.Errorf("%s: the last error is %q", name, st.LastError)
		}
	}

	h := remoteHost("box")
	h.Status = *statusOf(h, nil, cfg, &good, time.Unix(100, 5))
	link := meta.FindStatusCondition(h.Status.Conditions, v1alpha1.ConditionLinkUp)
	if link == nil || link.Status != metav1.ConditionTrue || h.Status.Link.RoundTrip != "20ms" || *h.Status.Pods != 3 || h.Status.Runtime.Name != "containerd" || h.Status.NodeName != "box" {
		t.Errorf("the status is %+v", h.Status)
	}
	exposed := with(func(r *Report) { r.Exposed = &Exposed{metav1.ConditionFalse, "LoopbackOnly", "set it"} })
	shown := remoteHost("box")
	shown.Status = *statusOf(shown, nil, cfg, exposed, time.Unix(100, 5))
	if c := meta.FindStatusCondition(shown.Status.Conditions, v1alpha1.ConditionKubeletExposed); c == nil || c.Status != metav1.ConditionFalse || c.Reason != "LoopbackOnly" || c.Message != "set it" {
		t.Errorf("a machine that does not listen is shown as %+v", c)
	}
	if ready := meta.FindStatusCondition(shown.Status.Conditions, v1alpha1.ConditionReady); ready.Status != metav1.ConditionTrue {
		t.Errorf("its node is shown as %+v", ready)
	}
	if c := meta.FindStatusCondition(statusOf(shown, nil, cfg, &good, time.Unix(100, 5)).Conditions, v1alpha1.ConditionKubeletExposed); c != nil {
		t.Errorf("one that is not to listen is shown as %+v", c)
	}
	for name, c := range map[string]struct {
		report         *Report
		differs, minor bool
	}{
		"it listens":        {exposed, true, false},
		"the same, later":   {&good, false, false},
		"a little slower":   {with(func(r *Report) { r.Link = &Link{true, "connected", 30 * time.Millisecond} }), false, false},
		"a lot slower":      {with(func(r *Report) { r.Link = &Link{true, "connected", 300 * time.Millisecond} }), true, true},
		"another pod":       {with(func(r *Report) { r.Pods = 4 }), true, true},
		"the link is down":  {with(func(r *Report) { r.Link = &Link{Message: "cut"} }), true, false},
		"it failed":         {&Report{Config: cfg, Err: errors.New("no")}, true, false},
		"not Ready and pod": {with(func(r *Report) { r.Ready, r.Pods = false, 9 }), true, false},
	} {
		differs, minor := difference(&h.Status, statusOf(h, nil, cfg, c.report, time.Unix(9000, 0)))
		if differs != c.differs || minor != c.minor {
			t.Errorf("%s: differs %v, minor %v", name, differs, minor)
		}
	}
	// A driver that failed does not update what it cannot see; the node keeps its name.
	failed := statusOf(h, nil, cfg, &Report{Config: cfg, Err: errors.New("no")}, time.Unix(200, 0))
	if failed.NodeName != "box" || failed.Link != nil || failed.Runtime == nil || failed.Pods != nil || meta.FindStatusCondition(failed.Conditions, v1alpha1.ConditionLinkUp) != nil {
		t.Errorf("after a failure it is %+v", failed)
	}
	if got := short(strings.Repeat("ü", 3000)); len(got) > longest+4 {
		t.Errorf("a message of %d bytes", len(got))
	}
}
