package hostadmin

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/hostcheck"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

var update = flag.Bool("update", false, "rewrite the goldens")

var hostsResource = schema.GroupResource{Group: "bowline.io", Resource: "hosts"}

// world is a cluster with a Bowline in it, a machine and a user.
type world struct {
	*Editor
	t       *testing.T
	hosts   *fakeHosts
	client  *fake.Clientset
	machine *fakeMachine
	// answers are the user's, one per question; when none is left, no one answers.
	answers []bool
	said    strings.Builder
}

// inWorld runs a test in virtual time.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t)) })
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, machine: newMachine(t), client: fake.NewClientset(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "bowline"}}, theAccount("bowline"))}
	w.client.PrependReactor("create", "subjectaccessreviews", w.authorize)
	w.hosts = &fakeHosts{w: w, byName: map[string]*v1alpha1.Host{}}
	w.hosts.script = w.becomesNode
	w.Editor = &Editor{Hosts: w.hosts, Client: w.client, Asker: w, Reporter: w, Command: "bowline", Poll: time.Second,
		Machine: func(raw string, _ []endpoint.Jump) Machine { w.machine.endpoint = raw; return w.machine }}
	return w
}

func request() Request {
	return Request{Name: "box-1", Namespace: "bowline", Login: "root@10.0.0.7", Socket: "/run/containerd/containerd.sock"}
}

func (w *world) Confirm(_ context.Context, question string) (bool, error) {
	if len(w.answers) == 0 {
		return false, ErrCannotAsk
	}
	yes := w.answers[0]
	w.answers = w.answers[1:]
	fmt.Fprintf(&w.said, "? %s %v\n", question, yes)
	return yes, nil
}

func (w *world) Step(text string)           { fmt.Fprintln(&w.said, text) }
func (w *world) Show(text string)           { fmt.Fprint(&w.said, text) }
func (w *world) Report(r *hostcheck.Report) { fmt.Fprintf(&w.said, "\n%s\n", r.Text(false)) }

// ctx bounds the waits of a test.
func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Minute)
	w.t.Cleanup(cancel)
	return ctx
}

// fails expects an error with these words, in its text or its hint.
func (w *world) fails(err error, words ...string) {
	w.t.Helper()
	if err == nil {
		w.t.Fatalf("no error; wanted one that says %q\n%s", words, w.said.String())
	}
	for _, word := range words {
		if !strings.Contains(err.Error()+"\n"+hint.Of(err), word) {
			w.t.Errorf("the error does not say %q: %v", word, err)
		}
	}
}

// node creates the Host's node.
func (w *world) node(h *v1alpha1.Host, ready v1.ConditionStatus) {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(h), Annotations: map[string]string{v1alpha1.HostAnnotation: h.Name, annotationDriver: "bowline"}}}
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}
	n.Status.NodeInfo.KubeletVersion = "v1.37.1"
	n.Status.Capacity = v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourcePods: resource.MustParse("110")}
	if err := w.client.Tracker().Add(n); err != nil {
		if err = w.client.Tracker().Update(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, n, ""); err != nil {
			w.t.Error(err)
		}
	}
}

// becomesNode plays a Bowline that makes a Host a node, look by look.
func (w *world) becomesNode(h *v1alpha1.Host, look int) {
	switch look {
	case 1:
		say(h, metav1.ConditionFalse, hosts.ReasonStarting, "acquiring the host")
	case 2:
		link(h, true)
		say(h, metav1.ConditionFalse, hosts.ReasonStarting, "acquiring the host")
	case 3:
		h.Status.Runtime = &v1alpha1.RuntimeStatus{Name: "containerd", Version: "v2.1.4"}
		w.node(h, v1.ConditionFalse)
		say(h, metav1.ConditionFalse, "KubeletNotReady", "the network is not ready")
	case 4:
		w.node(h, v1.ConditionTrue)
		say(h, metav1.ConditionTrue, hosts.ReasonNodeReady, "the node "+nodeName(h)+" is Ready")
	}
}

func say(h *v1alpha1.Host, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&h.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: message, ObservedGeneration: h.Generation})
}

func link(h *v1alpha1.Host, up bool) {
	c := metav1.Condition{Type: v1alpha1.ConditionLinkUp, Status: metav1.ConditionTrue, Reason: "LinkUp", ObservedGeneration: h.Generation}
	h.Status.Link = &v1alpha1.LinkStatus{State: v1alpha1.LinkUp, RoundTrip: "20ms"}
	if !up {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "LinkDown", "connection refused"
		h.Status.Link = &v1alpha1.LinkStatus{State: v1alpha1.LinkDown}
	}
	meta.SetStatusCondition(&h.Status.Conditions, c)
}

// fakeHosts keeps Hosts, and runs script at each Get of one.
type fakeHosts struct {
	w       *world
	mu      sync.Mutex
	byName  map[string]*v1alpha1.Host
	looks   int
	script  func(h *v1alpha1.Host, look int) // changes the Host at this look
	holds   int                              // looks for which a deleted Host stays
	version int
	failed  error // returned by every call
}

func (f *fakeHosts) Get(ctx context.Context, name string) (*v1alpha1.Host, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(ctx.Err(), f.failed); err != nil {
		return nil, err
	}
	h := f.byName[name]
	if h == nil {
		return nil, apierrors.NewNotFound(hostsResource, name)
	}
	if f.looks++; f.script != nil {
		f.script(h, f.looks)
	}
	if h.DeletionTimestamp != nil {
		if f.holds--; f.holds < 0 {
			delete(f.byName, name)
			return nil, apierrors.NewNotFound(hostsResource, name)
		}
	}
	return h.DeepCopy(), nil
}

func (f *fakeHosts) List(ctx context.Context, _ metav1.ListOptions) (*v1alpha1.HostList, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(ctx.Err(), f.failed); err != nil {
		return nil, err
	}
	list := &v1alpha1.HostList{}
	for _, h := range f.byName {
		list.Items = append(list.Items, *h.DeepCopy())
	}
	return list, nil
}

func (f *fakeHosts) Create(_ context.Context, h *v1alpha1.Host) (*v1alpha1.Host, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byName[h.Name] != nil {
		return nil, apierrors.NewAlreadyExists(hostsResource, h.Name)
	}
	h = h.DeepCopy()
	f.version++
	h.UID, h.Generation = types.UID("uid-"+strconv.Itoa(f.version)), 1
	f.byName[h.Name] = h
	return h.DeepCopy(), nil
}

func (f *fakeHosts) Patch(_ context.Context, name string, body []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return json.Unmarshal(body, f.byName[name])
}

func (f *fakeHosts) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.byName[name]
	if h == nil {
		return apierrors.NewNotFound(hostsResource, name)
	}
	if o.Preconditions == nil || *o.Preconditions.UID != h.UID {
		return apierrors.NewConflict(hostsResource, name, errors.New("of another UID"))
	}
	h.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	return nil
}

// fakeMachine accepts the keys in its authorized_keys.
type fakeMachine struct {
	endpoint   string
	hostKey    ssh.PublicKey
	authorized string // the authorized_keys file
	own        string // the user's access
	flags      []string
	known      []ssh.PublicKey // in the user's known_hosts
	knownErr   error
	unfit      bool
	scanErr    error
	installErr error
	tries      int
	trusts     func(key ssh.PublicKey) bool
}

func newMachine(t *testing.T) *fakeMachine {
	m := &fakeMachine{own: "your ssh-agent", hostKey: aPublicKey(t)}
	m.trusts = func(key ssh.PublicKey) bool {
		return strings.Contains(m.authorized, strings.Fields(string(ssh.MarshalAuthorizedKey(key)))[1])
	}
	return m
}

func aPublicKey(t *testing.T) ssh.PublicKey {
	t.Helper()
	private, err := newKey("any")
	testutil.Must(t, err)
	key, err := publicKey(private)
	testutil.Must(t, err)
	return key
}

func (m *fakeMachine) Scan(context.Context) ([]ssh.PublicKey, error) {
	return []ssh.PublicKey{m.hostKey}, m.scanErr
}

func (m *fakeMachine) Try(_ context.Context, key []byte, hostKeys []string) error {
	m.tries++
	public, err := publicKey(key)
	switch {
	case err != nil:
		return err
	case !known(hostKeys, m.hostKey):
		return &endpoint.HostKeyError{Problem: "unknown"}
	case !m.trusts(public):
		return endpoint.NewAuthError("refuses the login", "")
	}
	return nil
}

func (m *fakeMachine) Own() string     { return m.own }
func (m *fakeMachine) Flags() []string { return m.flags }

func (m *fakeMachine) Known([]ssh.PublicKey) ([]ssh.PublicKey, error) { return m.known, m.knownErr }

func (m *fakeMachine) Install(_ context.Context, line string, _ []string) (bool, error) {
	if m.installErr != nil {
		return false, m.installErr
	}
	m.authorized += line + "\n"
	return true, nil
}

func (m *fakeMachine) Check(context.Context, []byte, []string) (*hostcheck.Report, error) {
	r := &hostcheck.Report{Endpoint: m.endpoint, Fit: !m.unfit, Lines: []hostcheck.Line{
		{Level: hostcheck.OK, Subject: hostcheck.Login, Found: "as root"}, {Level: hostcheck.OK, Subject: hostcheck.Runtime, Found: "containerd v2.1.4"}}}
	if m.unfit {
		r.Lines[1] = hostcheck.Line{Level: hostcheck.Failure, Subject: hostcheck.Runtime, Found: "there is no socket", Fix: "install containerd"}
	}
	return r, nil
}

var (
	keyData     = regexp.MustCompile(`AAAA[A-Za-z0-9+/=]+`)
	fingerprint = regexp.MustCompile(`SHA256:[A-Za-z0-9+/]{43}`)
)

// golden compares output with a file; it masks keys, which are new in each run.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = fingerprint.ReplaceAllString(keyData.ReplaceAllString(got, "AAAA…"), "SHA256:…")
	file := filepath.Join("testdata", name)
	if *update {
		testutil.Must(t, os.MkdirAll("testdata", 0o755))
		testutil.Must(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	want := testutil.ReadFile(t, file)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; go test -update rewrites it):\n%s", file, diff)
	}
}
