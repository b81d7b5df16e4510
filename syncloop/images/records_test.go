package images

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// files is a fake Files in memory.
type files struct {
	mu      sync.Mutex
	data    []byte
	damaged []byte // the copy of a damaged file
	writes  int
	err     error
	large   bool // the file is larger than what may be read
}

func (f *files) ReadFile(context.Context, string, int64) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.err != nil:
		return nil, f.err
	case f.data == nil:
		return nil, fs.ErrNotExist
	case f.large:
		return nil, host.ErrTooLarge
	}
	return f.data, nil
}

func (f *files) WriteFile(_ context.Context, path string, data []byte, _ fs.FileMode) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	if strings.HasSuffix(path, ".damaged") {
		f.damaged = data
		return nil
	}
	f.data = data
	f.writes++
	return nil
}

// fail makes every call fail, or none.
func (f *files) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func pullSecret(name, user, password string) v1.Secret {
	return v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}, Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths":{"registry.example":{"username":"` + user + `","password":"` + password + `"}}}`)},
	}
}

const private = "registry.example/app:1"

// onlyFor is a registry that accepts only this user.
func onlyFor(user, password string) func(string, *runtimeapi.AuthConfig) error {
	return func(image string, auth *runtimeapi.AuthConfig) error {
		if strings.HasPrefix(image, "registry.example/") && (auth.GetUsername() != user || auth.GetPassword() != password) {
			return errors.New("401 Unauthorized")
		}
		return nil
	}
}

// An image that a secret pulled is open to pods with that secret or the same credentials, and to
// pods that pull it themselves; also after a restart of Bowline.
func TestWhoMayUseAnImage(t *testing.T) {
	r, f := &registry{pullErr: onlyFor("ann", "1")}, &files{}
	node := func() *Manager {
		m, _ := manager(t, r, Config{Files: f, RecordPath: "/records"})
		return m
	}
	m := node()
	use := func(policy v1.PullPolicy, image string, secrets ...v1.Secret) (pulled bool, reason string) {
		t.Helper()
		before := r.pulls()
		_, err := m.Ensure(t.Context(), aPod(strings.Repeat("x", r.pulls()+1)+string(policy)), container(image, policy), secrets)
		var fault *Error
		if err != nil && !errors.As(err, &fault) {
			t.Fatal(err)
		}
		if fault != nil {
			reason = fault.Reason
		}
		return r.pulls() > before, reason
	}
	check := func(what string, gotPulled bool, gotReason string, pulled bool, reason string) {
		t.Helper()
		if gotPulled != pulled || gotReason != reason {
			t.Errorf("%s: pulled %v, %q", what, gotPulled, gotReason)
		}
	}
	ann, bob := pullSecret("ann", "ann", "1"), pullSecret("bob", "bob", "2")
	p, e := use(v1.PullIfNotPresent, private, ann)
	check("the first", p, e, true, "")
	for _, life := range []string{"in the same life", "in the next life"} {
		p, e = use(v1.PullIfNotPresent, private, ann)
		check("who pulled it, "+life, p, e, false, "")
		p, e = use(v1.PullNever, private, ann)
		check("who pulled it and never pulls, "+life, p, e, false, "")
		p, e = use(v1.PullIfNotPresent, private)
		check("who has nothing, "+life, p, e, true, ReasonPull)
		p, e = use(v1.PullIfNotPresent, private, bob)
		check("who has other credentials, "+life, p, e, true, ReasonPull)
		p, e = use(v1.PullNever, private, bob)
		check("who has others and never pulls, "+life, p, e, false, ReasonNeverPull)
		m = node()
	}
	p, e = use(v1.PullIfNotPresent, private, pullSecret("same", "ann", "1"))
	check("the same credentials in another secret", p, e, false, "")
	changed := pullSecret("ann", "ann", "3")
	p, e = use(v1.PullIfNotPresent, private, changed)
	check("the same secret with another password", p, e, false, "")

	// An image that needed no credentials is open to all.
	p, e = use(v1.PullIfNotPresent, "public.example/app:1")
	check("a public image", p, e, true, "")
	p, e = use(v1.PullIfNotPresent, "public.example/app:1", bob)
	check("a public image, again", p, e, false, "")
	r.present["registry.example/loaded:1"] = true
	p, e = use(v1.PullIfNotPresent, "registry.example/loaded:1")
	check("an image that others brought", p, e, false, "")
	for _, word := range []string{"\"1\"", "ann\",\"password"} {
		if strings.Contains(string(f.data), word) {
			t.Errorf("the record holds a credential: %s", f.data)
		}
	}
}

// A record that a power cut emptied, or that is damaged otherwise, opens no image: an image pulled
// with a secret does not pass for one that was preloaded.
func TestADamagedRecordOpensNothing(t *testing.T) {
	for name, damaged := range map[string][]byte{"empty": {}, "zeros": make([]byte, 512), "cut": []byte(`{"salt":"1","images":{`)} {
		r, f := &registry{pullErr: onlyFor("ann", "1")}, &files{}
		use := func(secrets ...v1.Secret) error {
			m, _ := manager(t, r, Config{Files: f, RecordPath: "/records"}) // each in a process of its own
			_, err := m.Ensure(t.Context(), aPod(strings.Repeat("x", r.pulls()+1)), container(private, v1.PullIfNotPresent), secrets)
			return err
		}
		ann := pullSecret("ann", "ann", "1")
		testutil.Must(t, use(ann))
		f.data = damaged
		for range 2 {
			if err := use(); err == nil {
				t.Errorf("%s: a pod without the secret may use the image", name)
			}
		}
		if string(f.damaged) != string(damaged) {
			t.Errorf("%s: what was set aside is %q", name, f.damaged)
		}
		if err := use(ann); err != nil { // it pulls again
			t.Errorf("%s: %v", name, err)
		}
		pulls := r.pulls()
		if err := use(ann); err != nil || r.pulls() != pulls {
			t.Errorf("%s: it pulls once more, %v", name, err)
		}
	}
}

// A pull with an unknown outcome opens the image to no one; a failed one leaves no trace.
func TestPullWithoutAnEnd(t *testing.T) {
	r, f := &registry{present: map[string]bool{}, pullErr: onlyFor("ann", "1")}, &files{}
	m, _ := manager(t, r, Config{Files: f, RecordPath: "/records"})
	testutil.Must(t, m.records.begin(t.Context(), private))
	r.present[private] = true // the runtime finished the pull after our process died
	m, _ = manager(t, r, Config{Files: f, RecordPath: "/records"})
	if _, err := m.Ensure(t.Context(), aPod("1"), container(private, v1.PullIfNotPresent), nil); err == nil {
		t.Error("a pod without a secret uses what a pull without an end has brought")
	}
	if _, err := m.Ensure(t.Context(), aPod("2"), container(private, v1.PullNever), nil); err == nil {
		t.Error("a second pod does, after the first one's pull has failed")
	}
	if _, err := m.Ensure(t.Context(), aPod("3"), container(private, v1.PullIfNotPresent), []v1.Secret{pullSecret("ann", "ann", "1")}); err != nil {
		t.Error(err)
	}
	if strings.Contains(string(f.data), `"intents"`) {
		t.Errorf("the image is there and its intent stays: %s", f.data)
	}
	// A failed pull of an absent image is forgotten.
	if _, err := m.Ensure(t.Context(), aPod("4"), container("registry.example/other:1", v1.PullIfNotPresent), nil); err == nil {
		t.Error("it was let in without a secret")
	}
	if strings.Contains(string(f.data), `"intents"`) {
		t.Errorf("the intent of a pull that failed stays: %s", f.data)
	}
}

// While the host is unreachable nothing is decided.
func TestRecordsOutOfReach(t *testing.T) {
	r, f := &registry{present: map[string]bool{private: true}}, &files{err: host.ErrUnreachable}
	m, events := manager(t, r, Config{Files: f, RecordPath: "/records"})
	var fault *Error
	if _, err := m.Ensure(t.Context(), aPod("1"), container(private, v1.PullIfNotPresent), nil); !errors.Is(err, host.ErrUnreachable) || errors.As(err, &fault) {
		t.Errorf("%v", err)
	}
	if got := events.take(); len(got) != 0 || r.pulls() != 0 {
		t.Errorf("%q, %d pulls", got, r.pulls())
	}
	f.err = nil
	if _, err := m.Ensure(t.Context(), aPod("1"), container(private, v1.PullIfNotPresent), nil); err != nil {
		t.Error(err)
	}
}

// An image's record goes with the image; one that came after the look stays.
func TestRecordsArePruned(t *testing.T) {
	f := &files{}
	r := newRecords(f, "/r")
	ids := func() string {
		var file recordFile
		testutil.Must(t, json.Unmarshal(f.data, &file))
		return strings.Join(slices.Sorted(maps.Keys(file.Images)), " ")
	}
	pull := func(id string) {
		testutil.Must(t, r.pulled(t.Context(), "registry.example/"+id, "registry.example/"+id, id, nil, nil, pull{}))
	}
	pull("old")
	pull("kept")
	r = newRecords(f, "/r") // after a restart
	looked := time.Now()
	pull("new")
	if err := r.prune(t.Context(), []string{"kept"}, looked); err != nil || ids() != "kept new" {
		t.Errorf("recorded are %q: %v", ids(), err)
	}
	writes := f.writes
	if err := r.prune(t.Context(), []string{"kept"}, looked); err != nil || f.writes != writes {
		t.Errorf("nothing changed, and it was written: %v", err)
	}
	if err := r.prune(t.Context(), []string{"kept"}, time.Now().Add(time.Second)); err != nil || ids() != "kept" {
		t.Errorf("recorded are %q: %v", ids(), err)
	}
	f.err = host.ErrUnreachable
	if err := r.prune(t.Context(), nil, time.Now().Add(time.Second)); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("a machine that is away: %v", err)
	}
	if _, there := r.file.Images["kept"]; !there {
		t.Error("what could not be written is believed")
	}
}
