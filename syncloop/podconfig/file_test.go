package podconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host"
)

// disk is a directory of files that counts its accesses.
type disk struct {
	mu    sync.Mutex
	files map[string]string
	times map[string]time.Time
	link  map[string]string
	err   error            // of every access
	read  map[string]error // of reading one file
	reads []string
	stats int
}

func newDisk() *disk {
	return &disk{files: map[string]string{}, times: map[string]time.Time{}, link: map[string]string{}, read: map[string]error{}}
}

func (d *disk) put(name, text string) { d.files[name], d.times[name] = text, time.Now() }

func (d *disk) info(name string) host.FileInfo {
	i := host.FileInfo{Name: path.Base(name), Size: int64(len(d.files[name])), Time: d.times[name].Truncate(time.Second)}
	if d.link[name] != "" {
		i.Mode, i.Target = fs.ModeSymlink, d.link[name]
	}
	return i
}

func (d *disk) Stat(_ context.Context, p string) (host.FileInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats++
	_, file := d.files[p]
	switch {
	case d.err != nil:
		return host.FileInfo{}, d.err
	case file || d.link[p] != "":
		return d.info(p), nil
	case p == "/m" && len(d.files) > 0:
		return host.FileInfo{Name: "m", Mode: fs.ModeDir}, nil
	}
	return host.FileInfo{}, fs.ErrNotExist
}

func (d *disk) List(_ context.Context, dir string) ([]host.FileInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []host.FileInfo
	for name := range d.files {
		if path.Dir(name) == dir {
			out = append(out, d.info(name))
		}
	}
	if out == nil {
		return nil, fmt.Errorf("%s: not a directory", dir)
	}
	return append(out, host.FileInfo{Name: "below", Mode: fs.ModeDir}), d.err
}

func (d *disk) ReadFile(_ context.Context, p string, _ int64) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads = append(d.reads, p)
	if to := d.link[p]; to != "" {
		p = to
	}
	text, there := d.files[p]
	switch {
	case d.err != nil || d.read[p] != nil:
		return nil, errors.Join(d.err, d.read[p])
	case !there:
		return nil, fs.ErrNotExist
	}
	return []byte(text), nil
}

func manifestOf(name, image string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: ns}\nspec: {containers: [{name: c, image: %s}]}\n", name, image)
}

// watched runs a file source over the disk in virtual time.
func watched(t *testing.T, at string, test func(d *disk, c *PodConfig, recorded *[]string, changed chan struct{})) {
	synctest.Test(t, func(t *testing.T) {
		d, c, recorded, changed := newDisk(), New(SourceAPI, SourceFile), &[]string{}, make(chan struct{})
		f := NewFile(c, FileConfig{Files: d, Path: at, NodeName: "n", Period: 20 * time.Second, Changed: changed,
			Event: func(reason, message string) { *recorded = append(*recorded, reason+" "+message) }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.Run(ctx) }()
		synctest.Wait()
		test(d, c, recorded, changed)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// look waits for the next look at what the test has changed. mu is the disk's, which it holds
// during each access.
func look(mu *sync.Mutex) {
	func() { mu.Lock(); defer mu.Unlock() }() // makes the test's changes visible to the next holder of mu
	time.Sleep(20 * time.Second)
	synctest.Wait()
}

// names lists the static pods as name=image.
func names(c *PodConfig) string {
	static, _ := c.StaticPods()
	var out []string
	for _, p := range static {
		out = append(out, p.Name+"="+p.Spec.Containers[0].Image)
	}
	return strings.Join(out, " ")
}

func TestFileSource(t *testing.T) {
	watched(t, "/m", func(d *disk, c *PodConfig, recorded *[]string, changed chan struct{}) {
		want := func(what, pods string, events int) {
			t.Helper()
			if got := names(c); got != pods || len(*recorded) != events {
				t.Errorf("%s: pods %q and events %q; want %q and %d events", what, got, *recorded, pods, events)
			}
		}
		want("nothing there", "", 0)
		if !c.SeenBy(SourceFile) {
			t.Error("a path where nothing is has been seen")
		}
		d.put("/m/b.yaml", manifestOf("b", "one"))
		d.put("/m/.hidden.yaml", manifestOf("hidden", "x"))
		d.put("/m/a.yaml", "kind: {")
		look(&d.mu)
		want("a good one, a hidden one, a broken one", "b-n=one", 1)
		look(&d.mu)
		want("nothing new", "b-n=one", 1)
		d.put("/m/b.yaml", "kind: Pod\napiVersion: v1\n")
		look(&d.mu)
		want("the good one breaks", "b-n=one", 2)
		if !strings.Contains((*recorded)[1], "/m/b.yaml is invalid, the pod keeps its last version: metadata.name is missing") {
			t.Errorf("recorded %q", (*recorded)[1])
		}
		d.put("/m/b.yaml", manifestOf("b", "two"))
		d.put("/m/a.yaml", manifestOf("a", "one"))
		look(&d.mu)
		want("both fixed", "a-n=one b-n=two", 2)
		d.put("/m/c.yaml", manifestOf("b", "three"))
		look(&d.mu)
		want("a second file with one pod", "a-n=one b-n=three", 3)
		delete(d.files, "/m/c.yaml")
		look(&d.mu)
		want("it is removed", "a-n=one b-n=two", 3)
		d.err = fmt.Errorf("the link: %w", host.ErrUnreachable)
		delete(d.files, "/m/a.yaml")
		look(&d.mu)
		want("no one can look", "a-n=one b-n=two", 3)
		d.err = errors.New("permission denied")
		look(&d.mu)
		look(&d.mu)
		want("no one may look", "a-n=one b-n=two", 4)
		d.err = nil
		d.read["/m/b.yaml"] = fmt.Errorf("cut off: %w", host.ErrUnreachable)
		d.put("/m/b.yaml", manifestOf("b", "four"))
		look(&d.mu)
		want("one cannot be read", "a-n=one b-n=two", 4)
		d.read = map[string]error{"/m/b.yaml": errors.New("permission denied")}
		look(&d.mu)
		want("one may not be read", "b-n=two", 5)
		d.read = map[string]error{}
		changed <- struct{}{}
		time.Sleep(gather)
		synctest.Wait()
		want("notified of a change", "b-n=four", 5)
		clear(d.files)
		look(&d.mu)
		want("all removed", "", 5)
	})
}

// TestEventOfADuplicate: the pod that another manifest's replaces has a kubelet's event, once.
func TestEventOfADuplicate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, c := newDisk(), New(SourceAPI, SourceFile)
		d.put("/m/a.yaml", manifestOf("web", "one"))
		d.put("/m/b.yaml", manifestOf("web", "two"))
		var got []string
		f := NewFile(c, FileConfig{Files: d, Path: "/m", NodeName: "n", Period: time.Second, Event: func(string, string) {},
			PodEvent: func(p *v1.Pod, reason, message string) {
				if want := "the pod of static pod manifest /m/a.yaml is not used: /m/b.yaml has a pod of the same name"; message != want {
					t.Errorf("%q, want %q", message, want)
				}
				got = append(got, reason+" "+p.Spec.Containers[0].Image)
			}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := f.Run(ctx); err != nil {
			t.Error(err)
		}
		if len(got) != 1 || got[0] != "FailedValidation one" {
			t.Errorf("events %q", got)
		}
	})
}

// A file that has looked the same for a while is not re-read. One that changed within the
// resolution of its times is.
func TestFilesAreReadAgainWhenTheyMayHaveChanged(t *testing.T) {
	watched(t, "/m", func(d *disk, c *PodConfig, _ *[]string, changed chan struct{}) {
		d.put("/m/a.yaml", manifestOf("a", "one"))
		d.put("/m/l.yaml", "")
		d.link["/m/l.yaml"] = "/elsewhere"
		d.files["/elsewhere"] = manifestOf("l", "one")
		changed <- struct{}{}
		time.Sleep(gather + 100*time.Millisecond)
		synctest.Wait()
		d.put("/m/a.yaml", manifestOf("a", "two")) // the same size, in the same second
		changed <- struct{}{}
		time.Sleep(gather)
		synctest.Wait()
		if got := names(c); got != "a-n=two l-n=one" {
			t.Errorf("pods %q", got)
		}
		look(&d.mu)
		look(&d.mu)
		d.reads = nil
		d.files["/elsewhere"] = manifestOf("l", "two") // a link's own attributes do not change with its target
		look(&d.mu)
		if got := names(c); !slices.Equal(d.reads, []string{"/m/l.yaml"}) || got != "a-n=two l-n=two" {
			t.Errorf("read %q, pods %q", d.reads, got)
		}
	})
}

func TestOneFile(t *testing.T) {
	for what, at := range map[string]string{"a file": "/pod.yaml", "a link to one": "/link.yaml"} {
		t.Run(what, func(t *testing.T) {
			watched(t, at, func(d *disk, c *PodConfig, recorded *[]string, _ chan struct{}) {
				d.put("/pod.yaml", manifestOf("a", "one"))
				if at != "/pod.yaml" {
					d.link[at] = "/pod.yaml"
				}
				look(&d.mu)
				if got := names(c); got != "a-n=one" || len(*recorded) > 0 {
					t.Errorf("pods %q, recorded %q", got, *recorded)
				}
				clear(d.files)
				look(&d.mu)
				if got := names(c); got != "" || len(*recorded) > 0 {
					t.Errorf("pods %q, recorded %q", got, *recorded)
				}
			})
		})
	}
}

// Until the host was read once, it does not count as empty.
func TestUnreadIsNotEmpty(t *testing.T) {
	for what, err := range map[string]error{"unreachable": host.ErrUnreachable, "refused": errors.New("permission denied")} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, c := newDisk(), New(SourceFile)
				d.err = err
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() {
					done <- NewFile(c, FileConfig{Files: d, Path: "/m", Period: time.Second, Event: func(string, string) {}}).Run(ctx)
				}()
				time.Sleep(time.Minute)
				synctest.Wait()
				if c.AllSeen() {
					t.Error("it counts as seen")
				}
				d.err = nil
				look(&d.mu)
				if !c.AllSeen() {
					t.Error("it has been read, and does not count as seen")
				}
				cancel()
				<-done
			})
		})
	}
}

// A manifest that was never usable since the start may belong to a running pod.
func TestWithheld(t *testing.T) {
	watched(t, "/m", func(d *disk, c *PodConfig, _ *[]string, _ chan struct{}) {
		at := func(file string) map[string]string {
			return map[string]string{"kubernetes.io/config.source": "file", "bowline.io/manifest": file}
		}
		d.put("/m/a.yaml", "kind: {")
		d.put("/m/b.yaml", manifestOf("b", "one"))
		look(&d.mu)
		d.put("/m/b.yaml", "kind: {")
		look(&d.mu)
		got := []bool{c.Withheld(at("/m/a.yaml")), c.Withheld(at("/m/b.yaml")), c.Withheld(at("/m/c.yaml")), c.Withheld(nil)}
		if diff := cmp.Diff([]bool{true, false, false, false}, got); diff != "" {
			t.Error(diff)
		}
		d.put("/m/a.yaml", manifestOf("a", "one"))
		look(&d.mu)
		if c.Withheld(at("/m/a.yaml")) {
			t.Error("it is whole")
		}
	})
}

// Hints in quick succession cause one look, and endless hints a few looks per second.
func TestHintsAreGathered(t *testing.T) {
	watched(t, "/m", func(d *disk, c *PodConfig, recorded *[]string, changed chan struct{}) {
		looks := func() int {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.stats
		}
		d.mu.Lock()
		d.put("/m/a.yaml", manifestOf("a", "one"))
		d.mu.Unlock()
		before := looks()
		begin := time.Now()
		for time.Since(begin) < 10*time.Second {
			select {
			case changed <- struct{}{}:
			case <-time.After(time.Millisecond):
			}
		}
		if n := looks() - before; n < 10 || n > 60 {
			t.Errorf("%d looks in ten seconds of hints", n)
		}
		if got := names(c); got == "" {
			t.Error("the pod was not found")
		}
	})
}
