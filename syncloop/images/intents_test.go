package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// After a pod is deleted during its pull, an image that comes to the host by other means is open to
// all.
func TestCancelledPullLeavesNoIntent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &files{}
		r := &registry{present: map[string]bool{}, took: time.Hour}
		m, _ := manager(t, r, Config{Files: f, RecordPath: "/records"})
		ctx, deleted := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := m.Ensure(ctx, aPod("1"), container(private, v1.PullIfNotPresent), nil)
			done <- err
		}()
		synctest.Wait()
		if !strings.Contains(string(f.data), `"intents"`) {
			t.Fatalf("no pull is under way: %s", f.data)
		}
		deleted()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if strings.Contains(string(f.data), `"intents"`) {
			t.Errorf("the intent stays: %s", f.data)
		}
		r.mu.Lock()
		r.present[private] = true
		r.mu.Unlock()
		if result, err := m.Ensure(t.Context(), aPod("2"), container(private, v1.PullNever), nil); err != nil || result.Pulled {
			t.Errorf("an image that was loaded by hand: %+v, %v", result, err)
		}
	})
}

// The intent of a dead process goes at the next look. If the image is present then, it is open to
// no one, and its record goes when the image is removed.
func TestIntentOfADeadProcess(t *testing.T) {
	for name, there := range map[string]bool{"image is there": true, "image is not there": false} {
		f := &files{data: fmt.Appendf(nil, `{"salt":"s","intents":{%q:3}}`, private)}
		r := &registry{present: map[string]bool{private: there}}
		m, _ := manager(t, r, Config{Files: f, RecordPath: "/records"})
		if _, err := m.Ensure(t.Context(), aPod("1"), container(private, v1.PullNever), nil); err == nil {
			t.Errorf("%s: a pod uses it", name)
		}
		if strings.Contains(string(f.data), `"intents"`) || strings.Contains(string(f.data), "id-of-"+private) != there {
			t.Errorf("%s: recorded is %s", name, f.data)
		}
		r.present[private] = false
		testutil.Must(t, m.Prune(t.Context(), nil, time.Now().Add(time.Second)))
		r.present[private] = true
		if !usedBy(t, m, "2") {
			t.Errorf("%s: an image that was loaded by hand is refused: %s", name, f.data)
		}
	}
}

// If the records have too many intents or are too large to read, no pod may use an image without a
// pull.
func TestRecordsAreBounded(t *testing.T) {
	many := recordFile{Intents: map[string]int{}}
	for i := range maxIntents + 1 {
		many.Intents[fmt.Sprint("registry.example/ci:", i)] = 1
	}
	data, err := json.Marshal(many)
	testutil.Must(t, err)
	for name, f := range map[string]*files{"intents": {data: data}, "size": {data: data, large: true}} {
		r := newRecords(f, "/r")
		_ = r.locked(t.Context(), func(file *recordFile) bool {
			if !file.Lost || len(file.Intents) > 0 {
				t.Errorf("%s: lost %v, %d intents", name, file.Lost, len(file.Intents))
			}
			return false
		})
	}
}

// With the records of a newer Bowline no pod may use an image without a pull, and the file stays as
// it is. So does a file that is too large to read, whose version is unknown.
func TestNewerRecords(t *testing.T) {
	const newer = `{"schemaVersion":2,"images":{},"more":true}`
	for name, f := range map[string]*files{"newer": {data: []byte(newer)}, "too large": {data: []byte(newer), large: true}} {
		r := &registry{present: map[string]bool{private: true}}
		m, _ := manager(t, r, Config{Files: f, RecordPath: "/records"})
		if _, err := m.Ensure(t.Context(), aPod("1"), container(private, v1.PullNever), nil); err == nil {
			t.Errorf("%s: a pod uses an image though it is not known who may", name)
		}
		if _, err := m.Ensure(t.Context(), aPod("2"), container(private, v1.PullAlways), nil); err != nil {
			t.Errorf("%s: it is not pulled: %v", name, err)
		}
		if string(f.data) != newer || f.damaged != nil {
			t.Errorf("%s: the file was changed: %s", name, f.data)
		}
	}
}

// An image that is loaded by hand while a pull with a secret hangs is present when the pull is cut
// off. The credentials in flight may use it, whichever way it came. Pods without them may not, as
// the pull may have brought it, nor may credentials that had not been tried.
func TestLoadedByHandDuringAPullThatIsCutOff(t *testing.T) {
	secret := func(name string) []v1.Secret { return []v1.Secret{pullSecret(name, name, "1")} }
	lost := status.Error(codes.Unavailable, "the link is down")
	for name, c := range map[string]struct {
		pods    map[string][]v1.Secret // by UID; all begin before the image is there
		lost    bool                   // the link drops instead of the pods being deleted
		refused []string               // users that the registry refuses at once
		policy  Verification
		record  string // what is known of the image's ID before
		slots   int
		may     []string // of ann, bob and no one
	}{
		"one pod":                                        {pods: map[string][]v1.Secret{"1": secret("ann")}, may: []string{"ann"}},
		"one pod, over a link that drops":                {pods: map[string][]v1.Secret{"1": secret("ann")}, lost: true, may: []string{"ann"}},
		"two pods of one secret":                         {pods: map[string][]v1.Secret{"1": secret("ann"), "2": secret("ann")}, may: []string{"ann"}},
		"two pods of one secret, over a link that drops": {pods: map[string][]v1.Secret{"1": secret("ann"), "2": secret("ann")}, lost: true, may: []string{"ann"}},
		// Either pull may have brought it.
		"two secrets":                          {pods: map[string][]v1.Secret{"1": secret("ann"), "2": secret("bob")}},
		"two secrets, over a link that drops":  {pods: map[string][]v1.Secret{"1": secret("ann"), "2": secret("bob")}, lost: true},
		"two secrets, the first was refused":   {pods: map[string][]v1.Secret{"1": append(secret("ann"), secret("bob")...)}, refused: []string{"ann"}, may: []string{"bob"}},
		"every image is verified":              {pods: map[string][]v1.Secret{"1": secret("ann")}, policy: AlwaysVerify},
		"it belongs to another repository":     {pods: map[string][]v1.Secret{"1": secret("ann")}, record: `"images":{"id-of-x":{"registry.example/other":{}}}`},
		"a pull of an earlier process is open": {pods: map[string][]v1.Secret{"1": secret("ann")}, record: `"intents":{"` + strings.Replace(private, ":", ":other-", 1) + `":1}`},
		// Its pull had not begun, so it did not bring it.
		"it waits for a slot": {pods: map[string][]v1.Secret{"1": secret("ann")}, slots: 1, may: []string{"ann", "bob", "no one"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &files{data: []byte(`{"schemaVersion":1,"salt":"s"}`)}
				if c.record != "" {
					f.data = []byte(`{"schemaVersion":1,"salt":"s",` + c.record + `}`)
				}
				drop := make(chan struct{})
				r := &registry{present: map[string]bool{}, ids: map[string]string{private: "id-of-x"}, took: time.Hour}
				r.early = func(_ string, auth *runtimeapi.AuthConfig) error {
					if slices.Contains(c.refused, auth.GetUsername()) {
						return errors.New("denied")
					}
					return nil
				}
				r.drop = drop
				m, _ := manager(t, r, Config{Files: f, RecordPath: "/records", Verify: c.policy, MaxParallel: c.slots,
					Transport: func(err error) bool { return status.Code(err) == codes.Unavailable }})
				if c.slots > 0 {
					m.slots <- struct{}{}
				}
				ctx, deleted := context.WithCancel(t.Context())
				var pods sync.WaitGroup
				for uid, secrets := range c.pods {
					pods.Go(func() {
						_, err := m.Ensure(ctx, aPod(uid), container(private, v1.PullIfNotPresent), secrets)
						if c.lost && status.Code(err) != codes.Unavailable || !c.lost && !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				r.set(func() { r.present[private] = true })
				if c.lost {
					r.dropErr = lost
					close(drop)
				}
				if !c.lost {
					deleted()
				}
				pods.Wait()
				deleted()
				for _, life := range []string{"this", "the next"} {
					for _, who := range []string{"bob", "no one", "ann"} {
						var secrets []v1.Secret
						if who != "no one" {
							secrets = secret(who)
						}
						_, err := m.Ensure(t.Context(), aPod(who), container(private, v1.PullNever), secrets)
						if want := slices.Contains(c.may, who); (err == nil) != want {
							t.Errorf("in %s life %s may use it: %t; %s", life, who, err == nil, f.data)
						}
					}
					m, _ = manager(t, r, Config{Files: f, RecordPath: "/records", Verify: c.policy})
				}
			})
		})
	}
}

// An image that was absent before a pull is bound to the credential in flight only if it cannot
// have come by another pull.
func TestWhoMayHaveBroughtAnImage(t *testing.T) {
	const repository, digest = "registry.example/app", "registry.example/app@sha256:1"
	auth := &runtimeapi.AuthConfig{Username: "ann"}
	have := []Credential{{Auth: auth, secret: &secretID{Namespace: "shop", Name: "ann", UID: "1"}}}
	ours, other := &flight{}, &flight{}
	by := func(of *flight) pull { return pull{known: true, flight: of, inFlight: auth, have: have} }
	unseen := by(ours)
	unseen.known = false
	for name, c := range map[string]struct {
		image   string
		intents map[string]int
		joined  int64 // calls of our flight
		ended   []pull
		bound   bool
	}{
		"one":                             {private, map[string]int{private: 1}, 1, []pull{by(ours)}, true},
		"the first of two of one flight":  {private, map[string]int{private: 2}, 2, []pull{by(ours)}, true},
		"two of one flight":               {private, map[string]int{private: 2}, 2, []pull{by(ours), by(ours)}, true},
		"another flight's is under way":   {private, map[string]int{private: 2}, 1, []pull{by(ours)}, false},
		"another flight's ended, too":     {private, map[string]int{private: 2}, 1, []pull{by(ours), by(other)}, false},
		"an earlier process's ended, too": {private, map[string]int{private: 2}, 1, []pull{by(ours), {}}, false},
		"it may have been there before":   {private, map[string]int{private: 1}, 1, []pull{unseen}, false},
		"another tag":                     {private, map[string]int{private: 1, repository + ":2": 1}, 1, []pull{by(ours)}, false},
		"another repository":              {private, map[string]int{private: 1, "registry.example/b:1": 1}, 1, []pull{by(ours)}, true},
		"another repository, by digest":   {digest, map[string]int{digest: 1, "registry.example/b:1": 1}, 1, []pull{by(ours)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			ours.intents.Store(c.joined)
			r, file := newRecords(&files{}, "/records"), recordFile{Intents: c.intents}.clone()
			r.end(&file, c.image, repository, "id", c.ended)
			if a, ok := file.Images["id"][repository]; !ok || a.Everyone || (len(a.Secrets) == 1) != c.bound {
				t.Errorf("recorded %+v", file.Images)
			}
		})
	}
}

// The pull of the secret's pod brought the image, and the pod was deleted before the answer came:
// the image stays bound to the secret.
func TestAPullThatIsCutOffAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &files{}
		r := &registry{took: time.Hour}
		ctx, deleted := context.WithCancel(t.Context())
		r.pullErr = func(string, *runtimeapi.AuthConfig) error { deleted(); return nil }
		m, _ := manager(t, r, Config{Files: f, RecordPath: "/records"})
		ann := []v1.Secret{pullSecret("ann", "ann", "1")}
		if _, err := m.Ensure(ctx, aPod("1"), container(private, v1.PullIfNotPresent), ann); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if usedBy(t, m, "2") {
			t.Error("others may use it")
		}
		if _, err := m.Ensure(t.Context(), aPod("3"), container(private, v1.PullNever), ann); err != nil {
			t.Errorf("its own secret may not use it: %v; %s", err, f.data)
		}
	})
}

// pullThatHangs starts a pull of the private image by a pod with or without a secret. It hangs
// until end is called.
func pullThatHangs(t *testing.T, m *Manager, uid string, secrets ...v1.Secret) (end func()) {
	ctx, deleted := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := m.Ensure(ctx, aPod(uid), container(private, v1.PullAlways), secrets)
		done <- err
	}()
	synctest.Wait()
	return func() {
		deleted()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// usedBy reports whether a pod without secrets may use the private image without a pull.
func usedBy(t *testing.T, m *Manager, uid string) bool {
	_, err := m.Ensure(t.Context(), aPod(uid), container(private, v1.PullNever), nil)
	return err == nil
}

// An image that was present before a pull is cut off stays open to all. An image that the pull may
// have brought does not become so. The next process finds the same.
func TestCutOffPullOfAnImageThatIsThere(t *testing.T) {
	ann := pullSecret("ann", "ann", "1")
	for name, c := range map[string]struct {
		before, after string // IDs; empty: it is not there
		secrets       []v1.Secret
		open          bool
	}{
		"was there":                       {"old", "old", []v1.Secret{ann}, true},
		"was there, and no secret":        {"old", "old", nil, true},
		"came":                            {"", "new", []v1.Secret{ann}, false},
		"came without a secret":           {"", "new", nil, true},
		"became another":                  {"old", "new", []v1.Secret{ann}, false},
		"became another without a secret": {"old", "new", nil, true},
	} {
		for what, statErr := range map[string]error{"it is seen at once": nil, "it is seen later": errors.New("not now")} {
			t.Run(name+", "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := &files{}
					r := &registry{present: map[string]bool{private: c.before != ""}, ids: map[string]string{private: c.before}, took: time.Hour}
					m, _ := manager(t, r, Config{Files: f, RecordPath: "/records"})
					end := pullThatHangs(t, m, "1", c.secrets...)
					r.set(func() {
						r.present[private], r.ids[private], r.statErr = c.after != "", c.after, statErr
					})
					end()
					r.set(func() { r.statErr = nil })
					for _, life := range []string{"this", "the next"} {
						if got := usedBy(t, m, life); got != c.open {
							t.Errorf("in %s life others may use it: %t; %s", life, got, f.data)
						}
						m, _ = manager(t, r, Config{Files: f, RecordPath: "/records"})
					}
					if strings.Contains(string(f.data), `"intents"`) {
						t.Errorf("the intent stays: %s", f.data)
					}
				})
			})
		}
	}
}

// A connection lost while two pods pull one image leaves no intent, whether the image was present
// before or is absent afterwards.
func TestLostPullsOfTwoPods(t *testing.T) {
	for name, there := range map[string]bool{"it was there": true, "it is not there": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, ann := &files{}, []v1.Secret{pullSecret("ann", "ann", "1")}
				r := &registry{present: map[string]bool{private: there}, took: time.Minute, pullErr: func(string, *runtimeapi.AuthConfig) error {
					return status.Error(codes.Unavailable, "the link is down")
				}}
				m, _ := manager(t, r, Config{Files: f, RecordPath: "/records", Transport: func(err error) bool { return status.Code(err) == codes.Unavailable }})
				var pods sync.WaitGroup
				for _, uid := range []string{"1", "2"} {
					pods.Go(func() {
						if _, err := m.Ensure(t.Context(), aPod(uid), container(private, v1.PullAlways), ann); status.Code(err) != codes.Unavailable {
							t.Error(err)
						}
					})
				}
				pods.Wait()
				if !strings.Contains(string(f.data), `"intents"`) {
					t.Fatalf("the pulls are forgotten: %s", f.data)
				}
				if got := usedBy(t, m, "3"); got != there {
					t.Errorf("it is used: %t", got)
				}
				if strings.Contains(string(f.data), `"intents"`) {
					t.Errorf("an intent stays: %s", f.data)
				}
				r.set(func() { r.present[private] = true })
				if !usedBy(t, m, "4") {
					t.Errorf("an image that was loaded by hand is refused: %s", f.data)
				}
			})
		})
	}
}

// No pod needs the image of a pod that was deleted while the host was unreachable: Prune finds the
// outcome of its pull.
func TestPruneFindsTheEndOfALostPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &files{}
		r := &registry{took: time.Hour}
		m, _ := manager(t, r, Config{Files: f, RecordPath: "/records"})
		end := pullThatHangs(t, m, "1", pullSecret("ann", "ann", "1"))
		r.set(func() { r.statErr = errors.New("not now") })
		end()
		for _, statErr := range []error{errors.New("not yet"), nil} {
			r.set(func() { r.statErr = statErr })
			testutil.Must(t, m.Prune(t.Context(), nil, time.Now()))
			if got := strings.Contains(string(f.data), `"intents"`); got != (statErr != nil) {
				t.Errorf("%v: an intent is recorded: %t", statErr, got)
			}
		}
		r.set(func() { r.present[private] = true })
		if !usedBy(t, m, "2") {
			t.Errorf("an image that was loaded by hand is refused: %s", f.data)
		}
	})
}

// A look that began before a pull ended says nothing about that pull.
func TestALookBeforeTheEndTellsNothing(t *testing.T) {
	f := &files{}
	r := newRecords(f, "/records")
	testutil.Must(t, r.begin(t.Context(), private))
	early := r.look()
	r.leave(private, pull{known: true})
	late := r.look()
	testutil.Must(t, r.seen(t.Context(), early, private, "registry.example/app", ""))
	if !strings.Contains(string(f.data), `"intents"`) {
		t.Errorf("an older look ended it: %s", f.data)
	}
	f.err = host.ErrUnreachable
	if err := r.seen(t.Context(), late, private, "registry.example/app", ""); !errors.Is(err, host.ErrUnreachable) {
		t.Fatal(err)
	}
	f.err = nil
	testutil.Must(t, r.seen(t.Context(), late, private, "registry.example/app", ""))
	if strings.Contains(string(f.data), `"intents"`) {
		t.Errorf("a look that could not be written down is not repeated: %s", f.data)
	}
}

// If the outcome of a pull could not be written, the next look at the image finds it.
func TestAnEndThatCannotBeWrittenDown(t *testing.T) {
	for name, pullErr := range map[string]error{"it failed": errors.New("500"), "it succeeded": nil} {
		f := &files{}
		r := &registry{present: map[string]bool{private: true}, ids: map[string]string{private: "old"}}
		r.pullErr = func(string, *runtimeapi.AuthConfig) error {
			f.fail(errors.New("no space left"))
			return pullErr
		}
		m, _ := manager(t, r, Config{Files: f, RecordPath: "/records"})
		_, _ = m.Ensure(t.Context(), aPod("1"), container(private, v1.PullAlways), []v1.Secret{pullSecret("ann", "ann", "1")})
		f.fail(nil)
		if !usedBy(t, m, "2") || strings.Contains(string(f.data), `"intents"`) {
			t.Errorf("%s: %s", name, f.data)
		}
	}
}
