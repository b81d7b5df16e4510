package hostadmin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func (w *world) theSecret() *v1.Secret {
	w.t.Helper()
	s, err := w.client.CoreV1().Secrets("bowline").Get(w.t.Context(), "box-1", metav1.GetOptions{})
	testutil.Must(w.t, err)
	return s
}

func (w *world) noHost() {
	w.t.Helper()
	if len(w.hosts.byName) != 0 {
		w.t.Errorf("there is a Host: %v", w.hosts.byName)
	}
}

func (w *world) noSecret() {
	w.t.Helper()
	if _, err := w.client.CoreV1().Secrets("bowline").Get(w.t.Context(), "box-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		w.t.Errorf("the Secret: %v", err)
	}
}

func TestAdd(t *testing.T) { inWorld(t, testAdd) }

func testAdd(t *testing.T, w *world) {
	w.answers = []bool{true, true}
	r := request()
	r.Labels, r.Taints, r.From = map[string]string{"gpu": "true"}, []v1.Taint{{Key: "lent", Effect: v1.TaintEffectNoSchedule}}, "192.0.2.10"
	if err := w.Add(w.ctx(), r); err != nil {
		t.Fatalf("%v\n%s", err, w.said.String())
	}
	golden(t, "add.txt", w.said.String())

	h, s := w.hosts.byName["box-1"], w.theSecret()
	if h.Spec.Endpoint != "ssh://root@10.0.0.7/run/containerd/containerd.sock" || h.Spec.CredentialsSecretRef.Name != "box-1" || h.Spec.NodeName != "" ||
		h.Spec.Labels["gpu"] != "true" || len(h.Spec.Taints) != 1 || len(h.Spec.HostKeys) != 1 || !known(h.Spec.HostKeys, w.machine.hostKey) {
		t.Errorf("the Host is %+v", h.Spec)
	}
	if s.Type != v1.SecretTypeSSHAuth || s.Labels[LabelHost] != "box-1" || len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != h.UID {
		t.Errorf("the Secret is %+v", s.ObjectMeta)
	}
	public, err := publicKey(s.Data[v1.SSHAuthPrivateKey])
	testutil.Must(t, err)
	if want := `restrict,port-forwarding,from="192.0.2.10" ` + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public))) + " bowline:box-1\n"; w.machine.authorized != want {
		t.Errorf("the line is\n%s, not\n%s", w.machine.authorized, want)
	}

	// A second call creates nothing, asks nothing, and does not use the machine.
	tries := w.machine.tries
	w.said.Reset()
	testutil.Must(t, w.Add(w.ctx(), r))
	golden(t, "add-again.txt", w.said.String())

	// Other jumps than those of the Host: the Host keeps its own, and the output says so.
	w.said.Reset()
	r.ProxyJump = []string{"root@Gate.example"}
	testutil.Must(t, w.Add(w.ctx(), r))
	if want := "Its jumps stay unchanged (none); use kubectl edit host box-1 to change them and their host keys.\n"; !strings.Contains(w.said.String(), want) {
		t.Errorf("it does not say %q:\n%s", want, w.said.String())
	}
	w.hosts.byName["box-1"].Spec.SSH = &v1alpha1.HostSSH{ProxyJump: []v1alpha1.Jump{{User: "root", Address: "gate.example", Port: 22}}}
	w.said.Reset()
	if err := w.Add(w.ctx(), r); err != nil || strings.Contains(w.said.String(), "jumps") {
		t.Errorf("of the jump that the Host has: %v\n%s", err, w.said.String())
	}
	w.hosts.byName["box-1"].Spec.SSH, r.ProxyJump = nil, nil
	w.said.Reset()
	r.Labels = nil
	if err := w.Add(w.ctx(), r); err != nil || !strings.Contains(w.said.String(), "stay unchanged") {
		t.Errorf("with other labels: %v\n%s", err, w.said.String())
	}
	if w.machine.tries != tries || len(w.hosts.byName) != 1 {
		t.Error("a second time did something to the machine")
	}
}

// TestAddExposed: a machine that shall listen for its node. The key may listen on that port, and
// the Host says so. A second call does not change the existing Host.
func TestAddExposed(t *testing.T) { inWorld(t, testAddExposed) }

func testAddExposed(t *testing.T, w *world) {
	w.answers = []bool{true, true}
	r := request()
	r.Exposure = "machine"
	if err := w.Add(w.ctx(), r); err == nil || !strings.Contains(err.Error(), "--kubelet-exposure \"machine\": process or host") {
		t.Errorf("an exposure that is none: %v", err)
	}
	r.Exposure = v1alpha1.ExposureHost
	if err := w.Add(w.ctx(), r); err != nil {
		t.Fatalf("%v\n%s", err, w.said.String())
	}
	if e := w.hosts.byName["box-1"].Spec.KubeletExposure; e != v1alpha1.ExposureHost {
		t.Errorf("the Host has %q", e)
	}
	if !strings.HasPrefix(w.machine.authorized, `restrict,port-forwarding,permitlisten="10250" ssh-ed25519 `) {
		t.Errorf("the line is %s", w.machine.authorized)
	}
	w.said.Reset()
	r.Exposure = v1alpha1.ExposureProcess
	if err := w.Add(w.ctx(), r); err != nil || !strings.Contains(w.said.String(), "Its kubeletExposure stays host; use kubectl edit host box-1 to change it.") {
		t.Errorf("with another: %v\n%s", err, w.said.String())
	}
}

// TestAddLinkGrace: the Host gets the time that the user sets, and by default none. A second call
// does not change the existing Host.
func TestAddLinkGrace(t *testing.T) { inWorld(t, testAddLinkGrace) }

func testAddLinkGrace(t *testing.T, w *world) {
	if h := (&Request{}).host("ssh://root@h/s", nil); h.Spec.LinkGrace != nil {
		t.Errorf("by default the Host has %v", h.Spec.LinkGrace)
	}
	w.answers = []bool{true, true}
	r := request()
	r.LinkGrace = &metav1.Duration{Duration: 10 * time.Minute}
	if err := w.Add(w.ctx(), r); err != nil {
		t.Fatalf("%v\n%s", err, w.said.String())
	}
	if g := w.hosts.byName["box-1"].Spec.LinkGrace; g == nil || g.Duration != 10*time.Minute {
		t.Errorf("the Host has %v", g)
	}
	w.said.Reset()
	if err := w.Add(w.ctx(), r); err != nil || strings.Contains(w.said.String(), "linkGrace") {
		t.Errorf("with the same: %v\n%s", err, w.said.String())
	}
	r.LinkGrace = &metav1.Duration{Duration: time.Hour}
	if err := w.Add(w.ctx(), r); err != nil || !strings.Contains(w.said.String(), "Its linkGrace stays 10m0s; use kubectl edit host box-1 to change it.") {
		t.Errorf("with another: %v\n%s", err, w.said.String())
	}
	w.hosts.byName["box-1"].Spec.LinkGrace = nil
	if err := w.Add(w.ctx(), r); err != nil || !strings.Contains(w.said.String(), "Its linkGrace stays the default; ") {
		t.Errorf("of a Host with the default: %v\n%s", err, w.said.String())
	}
}

// TestAddContinues: after each failed step the next attempt continues, above all with the same
// key.
func TestAddContinues(t *testing.T) { inWorld(t, testAddContinues) }

func testAddContinues(t *testing.T, w *world) {
	r := request()

	w.machine.scanErr = errors.New("scan 10.0.0.7:22: connection refused")
	w.fails(w.Add(w.ctx(), r), "connection refused", "check the address")
	w.machine.scanErr = nil
	w.noSecret()

	w.answers = []bool{false}
	w.fails(w.Add(w.ctx(), r), "not confirmed", "nothing was created")
	w.noSecret()
	w.fails(w.Add(w.ctx(), r), "not a terminal", "--host-key", "--yes")
	w.noSecret()

	r.HostKeys = []string{ssh.FingerprintSHA256(aPublicKey(t))}
	w.fails(w.Add(w.ctx(), r), "none of the keys of --host-key")
	w.noSecret()
	r.HostKeys = []string{ssh.FingerprintSHA256(w.machine.hostKey)}

	w.fails(w.Add(w.ctx(), r), "does not accept the key yet", "run the command again") // no one answers the question about the install
	key := string(w.theSecret().Data[v1.SSHAuthPrivateKey])
	w.machine.installErr = errors.New("write ~/.ssh/authorized_keys: No space left on device")
	w.answers = []bool{true}
	w.fails(w.Add(w.ctx(), r), "No space left", "by hand", "run the command again")
	w.machine.installErr = nil
	trusts := w.machine.trusts
	w.machine.trusts = func(ssh.PublicKey) bool { return false }
	w.answers = []bool{true}
	w.fails(w.Add(w.ctx(), r), "still refused", "authorizedkeysfile")
	w.machine.trusts = trusts

	w.machine.unfit, w.machine.flags = true, []string{"-i", "/keys/my key"}
	w.said.Reset()
	w.fails(w.Add(w.ctx(), r), "cannot be a node yet", "run the command again")
	if want := "\n  bowline host prepare -i '/keys/my key' --host-key " + ssh.FingerprintSHA256(w.machine.hostKey) + " --node-name box-1 ssh://root@10.0.0.7/run/containerd/containerd.sock\n"; !strings.Contains(w.said.String(), want) {
		t.Errorf("it does not show the next command, %q:\n%s", want, w.said.String())
	}
	golden(t, "unfit.txt", w.said.String())
	w.noHost()
	w.machine.unfit = false

	// Nothing sets the Host's status: the time ends.
	w.hosts.script = nil
	short, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	w.fails(w.Add(short, r), "node box-1 is not Ready", "no Bowline reads Hosts here", "run the command again")
	if !strings.Contains(w.said.String(), "No Bowline has read the Host yet") {
		t.Errorf("it does not say that no Bowline reads the Host:\n%s", w.said.String())
	}
	w.hosts.script, w.hosts.looks = w.becomesNode, 0
	testutil.Must(t, w.Add(w.ctx(), r))
	s := w.theSecret()
	if string(s.Data[v1.SSHAuthPrivateKey]) != key {
		t.Error("the key of the first try was given up")
	}
	if n := strings.Count(w.machine.authorized, "bowline:box-1"); n == 0 {
		t.Errorf("the line is there %d times", n)
	}
	if len(s.OwnerReferences) != 1 {
		t.Error("the Secret does not go with its Host")
	}
}

// TestAddKnownHost: no question about a machine that the user's known_hosts has. A changed key is
// refused as ssh does, also with --yes.
func TestAddKnownHost(t *testing.T) { inWorld(t, testAddKnownHost) }

func testAddKnownHost(t *testing.T, w *world) {
	w.machine.knownErr = &endpoint.HostKeyError{Host: "10.0.0.7:22", Problem: "changed", Known: []string{"ssh-ed25519 SHA256:old (known_hosts:3)"}}
	w.answers = []bool{true, true}
	w.fails(w.Add(w.ctx(), request()), "known_hosts:3", "nothing was created", "--host-key")
	w.noSecret()
	if len(w.answers) != 2 {
		t.Error("it was asked whether a changed key is the right one")
	}
	w.machine.knownErr = nil
	w.machine.known = []ssh.PublicKey{w.machine.hostKey}
	w.answers = []bool{true} // for the line in authorized_keys
	if err := w.Add(w.ctx(), request()); err != nil {
		t.Fatalf("%v\n%s", err, w.said.String())
	}
	if said := w.said.String(); strings.Contains(said, "Are you sure") || !strings.Contains(said, "The host key is in your known_hosts.") {
		t.Errorf("it said\n%s", said)
	}
	if pins := w.hosts.byName["box-1"].Spec.HostKeys; len(pins) != 1 || !known(pins, w.machine.hostKey) {
		t.Errorf("the Host pins %q", pins)
	}
}

// TestAddUnreadableKnownHosts: a known_hosts file that cannot be read counts as empty.
func TestAddUnreadableKnownHosts(t *testing.T) { inWorld(t, testAddUnreadableKnownHosts) }

func testAddUnreadableKnownHosts(t *testing.T, w *world) {
	w.machine.knownErr = errors.New("known_hosts: line 7")
	w.answers = []bool{true, true}
	if err := w.Add(w.ctx(), request()); err != nil || !strings.Contains(w.said.String(), "known_hosts files are not used: known_hosts: line 7") {
		t.Errorf("%v\n%s", err, w.said.String())
	}
}

// TestAddAfterRemoval: the Secret of a Host that is gone is deleted, not reused.
func TestAddAfterRemoval(t *testing.T) { inWorld(t, testAddAfterRemoval) }

func testAddAfterRemoval(t *testing.T, w *world) {
	w.added()
	key := string(w.theSecret().Data[v1.SSHAuthPrivateKey])
	delete(w.hosts.byName, "box-1")
	testutil.Must(t, w.client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("nodes"), "", "box-1"))
	w.added()
	s := w.theSecret()
	if string(s.Data[v1.SSHAuthPrivateKey]) == key || s.OwnerReferences[0].UID != w.hosts.byName["box-1"].UID {
		t.Errorf("the Secret is that of before: %+v", s.ObjectMeta)
	}
}

func TestAddByHand(t *testing.T) { inWorld(t, testAddByHand) }

func testAddByHand(t *testing.T, w *world) {
	w.machine.own = ""
	w.answers = []bool{true, false}
	w.fails(w.Add(w.ctx(), request()), "add the line above")
	for line := range strings.Lines(w.said.String()) {
		if strings.HasPrefix(line, "restrict,") {
			w.machine.authorized = line // as if the user had copied it
		}
	}
	w.answers = []bool{true}
	if err := w.Add(w.ctx(), request()); err != nil {
		t.Fatalf("%v\n%s", err, w.said.String())
	}
	golden(t, "add-by-hand.txt", w.said.String())
}

func TestAddWithAKey(t *testing.T) { inWorld(t, testAddWithAKey) }

func testAddWithAKey(t *testing.T, w *world) {
	r := request()
	var err error
	if r.Key, err = newKey("mine"); err != nil {
		t.Fatal(err)
	}
	w.machine.trusts = func(ssh.PublicKey) bool { return true }
	w.machine.unfit = true
	w.answers = []bool{true}
	w.fails(w.Add(w.ctx(), r), "cannot be a node yet")
	other := r
	if other.Key, err = newKey("another"); err != nil {
		t.Fatal(err)
	}
	w.answers = []bool{true}
	w.fails(w.Add(w.ctx(), other), "another key, from an earlier attempt", "kubectl delete secret -n bowline box-1")
	w.machine.unfit = false

	w.answers = []bool{true}
	testutil.Must(t, w.Add(w.ctx(), r))
	if string(w.theSecret().Data[v1.SSHAuthPrivateKey]) != string(r.Key) {
		t.Error("the Secret has another key")
	}
	if w.machine.authorized != "" {
		t.Error("a key that is taken was put there again")
	}
}

func TestAddRefuses(t *testing.T) {
	existing := func(change func(*v1alpha1.Host)) func(*world, *Request) {
		return func(w *world, _ *Request) {
			r := request()
			h := r.host("ssh://root@10.0.0.7/run/containerd/containerd.sock", nil)
			change(h)
			w.hosts.byName[h.Name] = h
		}
	}
	for name, c := range map[string]struct {
		given func(*world, *Request)
		words []string
	}{
		"no DNS label":       {func(_ *world, r *Request) { r.Name = "Box_1" }, []string{`NAME "Box_1"`, "lower case"}},
		"node name":          {func(_ *world, r *Request) { r.NodeName = "Box 1" }, []string{"--node-name"}},
		"no login":           {func(_ *world, r *Request) { r.Login = "" }, []string{"--ssh", "user@host"}},
		"no user":            {func(_ *world, r *Request) { r.Login = "10.0.0.7" }, []string{"has no user", "root@10.0.0.7"}},
		"a path":             {func(_ *world, r *Request) { r.Login = "root@10.0.0.7/run" }, []string{"--socket"}},
		"a password":         {func(_ *world, r *Request) { r.Login = "root:hunter2@10.0.0.7" }, []string{"password"}},
		"socket":             {func(_ *world, r *Request) { r.Socket = "/run/../x" }, []string{"--socket", "/x"}},
		"label":              {func(_ *world, r *Request) { r.Labels = map[string]string{"a b": "c"} }, []string{"--label a b=c"}},
		"from":               {func(_ *world, r *Request) { r.From = `1.2.3.4",command="x` }, []string{"--from"}},
		"host key":           {func(_ *world, r *Request) { r.HostKeys = []string{"SHA256:short"} }, []string{"--host-key"}},
		"not a private key":  {func(_ *world, r *Request) { r.Key = []byte("what") }, []string{"--key"}},
		"another machine":    {existing(func(h *v1alpha1.Host) { h.Spec.Endpoint = "ssh://root@other/s" }), []string{"the Host box-1 exists already", "ssh://root@other/s"}},
		"another node":       {existing(func(h *v1alpha1.Host) { h.Spec.NodeName = "other" }), []string{"the node name other", "cannot change"}},
		"being removed":      {existing(func(h *v1alpha1.Host) { h.DeletionTimestamp = &metav1.Time{Time: time.Now()} }), []string{"being removed"}},
		"the same machine":   {existing(func(h *v1alpha1.Host) { h.Name = "box-2" }), []string{"the Host box-2 already has the address ssh://"}},
		"the same node":      {existing(func(h *v1alpha1.Host) { h.Name, h.Spec.Endpoint, h.Spec.NodeName = "box-2", "ssh://a@b/s", "box-1" }), []string{"the Host box-2 already has the node name box-1"}},
		"no such resource":   {func(w *world, _ *Request) { w.hosts.failed = apierrors.NewNotFound(hostsResource, "") }, []string{"has no Host resource", "crds"}},
		"an API that is not": {func(w *world, _ *Request) { w.hosts.failed = errors.New("connection refused") }, []string{"list the Hosts", "connection refused"}},
		"namespace":          {func(_ *world, r *Request) { r.Namespace = "elsewhere" }, []string{"the namespace elsewhere for the key does not exist", "--namespace"}},
		"someone's node": {func(w *world, _ *Request) {
			testutil.Must(w.t, w.client.Tracker().Add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "box-1"}}))
		}, []string{"the node box-1 exists already", "--node-name"}},
		"someone's Secret": {func(w *world, _ *Request) {
			testutil.Must(w.t, w.client.Tracker().Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "box-1", Namespace: "bowline"}}))
		}, []string{"the Secret bowline/box-1 exists, and this command did not create it"}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				r := request()
				c.given(w, &r)
				before := len(w.hosts.byName)
				w.fails(w.Add(w.ctx(), r), c.words...)
				if strings.Contains(w.said.String(), "hunter2") || len(w.hosts.byName) != before || w.machine.tries > 0 {
					t.Errorf("it said or did something first:\n%s", w.said.String())
				}
			})
		})
	}
}

// TestAddIsNoNode: a permanent failure ends the wait, a temporary one does not.
func TestAddIsNoNode(t *testing.T) { inWorld(t, testAddIsNoNode) }

func testAddIsNoNode(t *testing.T, w *world) {
	w.answers = []bool{true, true}
	w.hosts.script = func(h *v1alpha1.Host, _ int) {
		say(h, metav1.ConditionFalse, hosts.ReasonNodeTaken, "the node box-1 exists and does not belong to this Host")
	}
	w.fails(w.Add(w.ctx(), request()), "cannot be a node (NodeTaken)", "host remove box-1")

	w.hosts.script = func(h *v1alpha1.Host, look int) {
		say(h, metav1.ConditionFalse, hosts.ReasonCredentials, "the Secret bowline/box-1 cannot be read")
		h.Status.LastError = "it may not"
	}
	short, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	w.fails(w.Add(short, request()), "node box-1 is not Ready", "Credentials: the Secret bowline/box-1 cannot be read", "it may not")
	stopped, stop := context.WithCancel(t.Context())
	stop()
	err := w.wait(stopped, w.hosts.byName["box-1"].DeepCopy())
	w.fails(err, "interrupted", "host remove box-1")

	w.hosts.script = func(_ *v1alpha1.Host, _ int) { delete(w.hosts.byName, "box-1") }
	h := w.hosts.byName["box-1"].DeepCopy()
	w.hosts.looks = 0
	_, _ = w.hosts.Get(t.Context(), "box-1")
	w.fails(w.wait(w.ctx(), h), "was deleted in the meantime")
}
