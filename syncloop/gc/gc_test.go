package gc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/gc/gcpolicy"
)

// machine fakes a host, its runtime, its volumes and the loop's knowledge at once; tests inspect
// its fields.
type machine struct {
	files      map[string]host.FileInfo // by path
	cgroups    map[string]bool
	sandboxes  []gcpolicy.Sandbox
	containers []gcpolicy.Container
	known      map[types.UID]bool
	finished   map[types.UID]bool
	seen       bool
	fail       map[string]error // by the label of a call
	calls      []string
	onRemove   func(what string)
	onList     func(dir string)   // before a directory is listed
	young      map[types.UID]bool // pods whose remnants are too young to remove
}

const owner = "cluster/node"

func newMachine() *machine {
	return &machine{files: map[string]host.FileInfo{}, cgroups: map[string]bool{}, known: map[types.UID]bool{}, seen: true, fail: map[string]error{}}
}

func (m *machine) add(p string, mode fs.FileMode, target string) {
	m.files[p] = host.FileInfo{Name: path.Base(p), Mode: mode, Target: target}
}

// pod adds everything that a pod leaves on the host, with or without a record.
func (m *machine) pod(uid string, recorded bool) {
	if recorded {
		m.add("/root/bowline/pods/"+uid, 0o640, "")
	}
	m.add("/root/pods/"+uid, fs.ModeDir, "")
	m.add("/var/log/pods/ns_p_"+uid, fs.ModeDir, "")
	m.add("/var/log/pods/ns_p_"+uid+"/c/0.log", 0o640, "")
	m.add("/var/log/containers/p_ns_c-"+uid+"id.log", fs.ModeSymlink, "/var/log/pods/ns_p_"+uid+"/c/0.log")
	m.cgroups["/kubepods/besteffort/pod"+uid] = true
	m.sandboxes = append(m.sandboxes, gcpolicy.Sandbox{ID: uid + "box", UID: types.UID(uid), Owner: owner, CreatedAt: time.Now().Add(-time.Hour)})
	m.containers = append(m.containers, gcpolicy.Container{
		ID: uid + "id", Name: "c", UID: types.UID(uid), Owner: owner, SandboxID: uid + "box", CreatedAt: time.Now().Add(-time.Hour),
		LogPath: "/var/log/pods/ns_p_" + uid + "/c/0.log",
	})
}

func (m *machine) call(label, arg string) error {
	m.calls = append(m.calls, label+" "+arg)
	if strings.HasPrefix(label, "Remove") && m.onRemove != nil {
		m.onRemove(arg)
	}
	if label == "List" && m.onList != nil {
		m.onList(arg)
	}
	return m.fail[label]
}

func (m *machine) List(_ context.Context, dir string) ([]host.FileInfo, error) {
	if err := m.call("List", dir); err != nil {
		return nil, err
	}
	var list []host.FileInfo
	for p, f := range m.files {
		if path.Dir(p) == dir {
			list = append(list, f)
		}
	}
	if list == nil {
		return nil, fs.ErrNotExist
	}
	slices.SortFunc(list, func(a, b host.FileInfo) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (m *machine) Remove(_ context.Context, p string) error {
	if err := m.call("Remove", p); err != nil {
		return err
	}
	if _, ok := m.files[p]; !ok {
		return fs.ErrNotExist
	}
	delete(m.files, p)
	return nil
}

func (m *machine) RemoveTree(_ context.Context, p string, _ ...string) error {
	if err := m.call("RemoveTree", p); err != nil {
		return err
	}
	for f := range m.files {
		if f == p || strings.HasPrefix(f, p+"/") {
			delete(m.files, f)
		}
	}
	return nil
}

func (m *machine) ListCgroups(_ context.Context, parent string) ([]string, error) {
	if err := m.call("ListCgroups", parent); err != nil {
		return nil, err
	}
	var names []string
	for c := range m.cgroups {
		if path.Dir(c) == parent {
			names = append(names, path.Base(c))
		}
	}
	return names, nil
}

func (m *machine) RemoveCgroup(_ context.Context, p string, _ bool) error {
	if err := m.call("RemoveCgroup", p); err != nil {
		return err
	}
	delete(m.cgroups, p)
	return nil
}

// runtime and volumes are further interfaces of machine, because List has two meanings.
type runtime struct{ *machine }

func (c runtime) List(context.Context) ([]gcpolicy.Sandbox, []gcpolicy.Container, error) {
	err := c.call("cri/List", "")
	return slices.Clone(c.sandboxes), slices.Clone(c.containers), err
}

func (c runtime) RemoveContainer(_ context.Context, id string) error {
	if err := c.call("RemoveContainer", id); err != nil {
		return err
	}
	c.containers = slices.DeleteFunc(c.containers, func(x gcpolicy.Container) bool { return x.ID == id })
	c.machine.containers = c.containers
	return nil
}

func (c runtime) RemoveSandbox(_ context.Context, id string) error {
	if err := c.call("RemoveSandbox", id); err != nil {
		return err
	}
	c.machine.sandboxes = slices.DeleteFunc(c.machine.sandboxes, func(x gcpolicy.Sandbox) bool { return x.ID == id })
	return nil
}

func (c runtime) RemoveRemnants(_ context.Context, uid types.UID, minAge time.Duration) (bool, error) {
	if minAge != time.Minute {
		return false, fmt.Errorf("asked for those older than %v", minAge)
	}
	return c.young[uid], c.call("RemoveRemnants", string(uid))
}

type volumes struct{ *machine }

func (v volumes) Orphans(_ context.Context, records []host.FileInfo) ([]types.UID, error) {
	var uids []types.UID
	for p := range v.files {
		recorded := slices.ContainsFunc(records, func(f host.FileInfo) bool { return f.Name == path.Base(p) })
		if path.Dir(p) == "/root/pods" && recorded {
			uids = append(uids, types.UID(path.Base(p)))
		}
	}
	return uids, v.call("Orphans", "")
}

func (v volumes) Release(ctx context.Context, uid types.UID) error {
	if err := v.call("Release", string(uid)); err != nil {
		return err
	}
	return v.RemoveTree(ctx, "/root/pods/"+string(uid))
}

type pods struct{ *machine }

func (p pods) SourcesSeen() bool        { return p.seen }
func (p pods) Known(uid types.UID) bool { return p.known[uid] }
func (p pods) Finished(uid types.UID) bool {
	return p.finished[uid]
}

func (m *machine) sweeper(t *testing.T) *Sweeper {
	t.Helper()
	s, err := New(Config{
		Host: m, Runtime: runtime{m}, Volumes: volumes{m}, Pods: pods{m}, Owner: owner,
		RecordDir: "/root/bowline/pods", LogsRoot: "/var/log/pods", LinksDir: "/var/log/containers",
	})
	testutil.Must(t, err)
	return s
}

func (m *machine) left(uid string) []string {
	var list []string
	for p := range m.files {
		if strings.Contains(p, uid) {
			list = append(list, p)
		}
	}
	for c := range m.cgroups {
		if strings.Contains(c, uid) {
			list = append(list, c)
		}
	}
	for _, c := range m.containers {
		if string(c.UID) == uid {
			list = append(list, c.ID)
		}
	}
	for _, s := range m.sandboxes {
		if string(s.UID) == uid {
			list = append(list, s.ID)
		}
	}
	slices.Sort(list)
	return list
}

// A look takes long over a slow link. A pod creates its log directory after that list was read and
// is gone when the look ends. Its record must stay, so that the next sweep finds the directory.
func TestPodThatEndsDuringALook(t *testing.T) {
	m := newMachine()
	m.add("/root/bowline/pods/brief", 0o640, "")
	m.known["brief"] = true
	m.onList = func(dir string) {
		if dir == "/var/log/containers" {
			m.add("/var/log/pods/ns_p_brief", fs.ModeDir, "")
			delete(m.known, "brief")
		}
	}
	s := m.sweeper(t)
	for i, want := range []Result{{}, {LogDirs: 1}, {Records: 1}} {
		if got, err := s.Sweep(t.Context()); err != nil || got != want {
			t.Errorf("sweep %d: %+v, %v, want %+v", i, got, err, want)
		}
		m.onList = nil
	}
	if left := m.left("brief"); left != nil {
		t.Errorf("left: %v", left)
	}
}

func TestSweepLeavesNothingOfThePodsThatAreGone(t *testing.T) {
	m := newMachine()
	m.pod("gone", true)
	m.pod("known", true)
	m.known["known"] = true
	m.pod("foreign", false)
	for i := range m.sandboxes {
		if m.sandboxes[i].UID == "foreign" {
			m.sandboxes[i].Owner, m.containers[i].Owner = "", ""
		}
	}
	known, foreign := m.left("known"), m.left("foreign")
	s := m.sweeper(t)
	var swept []int
	s.cfg.Swept = func(pods, failed int) { swept = append(swept, pods, failed) }
	first, err := s.Sweep(t.Context())
	testutil.Must(t, err)
	if want := (Result{Containers: 1, Sandboxes: 1, PodDirs: 1, LogDirs: 1, Links: 1, Cgroups: 1, Foreign: 2}); first != want {
		t.Errorf("first sweep: %+v, want %+v", first, want)
	}
	second, err := s.Sweep(t.Context())
	if err != nil || second != (Result{Records: 1, Foreign: 2}) {
		t.Errorf("second sweep: %+v, %v", second, err)
	}
	if left := m.left("gone"); left != nil {
		t.Errorf("left: %v", left)
	}
	if got := m.left("known"); !slices.Equal(got, known) {
		t.Errorf("of the known pod is left %v of %v", got, known)
	}
	if got := m.left("foreign"); !slices.Equal(got, foreign) {
		t.Errorf("of the foreign pod is left %v of %v", got, foreign)
	}
	m.calls = nil
	if third, err := s.Sweep(t.Context()); err != nil || !third.Empty() || third.Records != 0 {
		t.Errorf("third sweep: %+v, %v", third, err)
	}
	for _, c := range m.calls {
		if strings.HasPrefix(c, "Remove") {
			t.Errorf("third sweep called %s", c)
		}
	}
	if !slices.Equal(swept, []int{1, 0, 0, 0, 0, 0}) {
		t.Errorf("pods and failures of the sweeps: %v", swept)
	}
}

// A process killed between creating a file and renaming it leaves the temporary name, which no
// later write removes.
func TestWhatACutOffWriteLeft(t *testing.T) {
	m := newMachine()
	m.pod("known", true)
	m.known["known"] = true
	record, link := "/root/bowline/pods/.u.bowline-7-1", "/var/log/containers/.c.log.bowline-7-2"
	m.add(record, 0o640, "")
	m.add(link, fs.ModeSymlink, "/var/log/pods/ns_p_u/c/0.log")
	m.add("/var/log/containers/.someone-elses", 0o640, "")
	s := m.sweeper(t)
	if first, err := s.Sweep(t.Context()); err != nil || first.CutOff != 0 {
		t.Errorf("it may be a write under way, and the first sweep took %d: %v", first.CutOff, err)
	}
	m.add("/root/bowline/.owner.bowline-7-3", 0o640, "")
	if second, err := s.Sweep(t.Context()); err != nil || second.CutOff != 2 {
		t.Errorf("the second sweep took %d, want 2: %v", second.CutOff, err)
	}
	if third, err := s.Sweep(t.Context()); err != nil || third.CutOff != 1 {
		t.Errorf("the third sweep took %d, want 1: %v", third.CutOff, err)
	}
	for _, file := range []string{"/var/log/containers/.someone-elses", "/root/bowline/pods/known"} {
		if _, ok := m.files[file]; !ok {
			t.Errorf("%s is gone", file)
		}
	}
}

func TestWhatWasNotSeenIsNotGone(t *testing.T) {
	for _, label := range []string{"List", "ListCgroups", "cri/List", "Orphans"} {
		m := newMachine()
		m.pod("gone", true)
		before := m.left("gone")
		m.fail[label] = host.ErrUnreachable
		if _, err := m.sweeper(t).Sweep(t.Context()); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("%s: err = %v", label, err)
		}
		if got := m.left("gone"); !slices.Equal(got, before) {
			t.Errorf("%s failed, and %v is left of %v", label, got, before)
		}
	}
}

func TestAContainerThatStaysKeepsItsPod(t *testing.T) {
	m := newMachine()
	m.pod("gone", true)
	before := m.left("gone")
	m.fail["RemoveContainer"] = errors.New("busy")
	if _, err := m.sweeper(t).Sweep(t.Context()); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Fatalf("err = %v", err)
	}
	if got := m.left("gone"); !slices.Equal(got, before) {
		t.Errorf("left %v of %v", got, before)
	}
}

// The runtime's unlisted remnants of a pod go last, before only the record, which stays until they
// are gone.
func TestRemnantsKeepTheRecord(t *testing.T) {
	const record = "/root/bowline/pods/gone"
	m := newMachine()
	m.pod("gone", true)
	m.pod("lost", true)
	m.young = map[types.UID]bool{"gone": true}
	s := m.sweeper(t)
	after := 0
	s.cfg.AfterRemnants = func() { after++ }
	sweep := func(wantErr string, wantAfter int) {
		t.Helper()
		m.calls, after = nil, 0
		defer func() {
			if after != wantAfter {
				t.Errorf("told %d times that remnants were asked for, want %d", after, wantAfter)
			}
		}()
		_, err := s.Sweep(t.Context())
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("err = %v, want %q", err, wantErr)
		}
	}
	sweep("", 0)
	if slices.Contains(m.calls, "RemoveRemnants gone") {
		t.Error("asked for while the runtime listed some of the pod")
	}
	sweep("", 1)
	if got := m.left("gone"); !slices.Equal(got, []string{record}) {
		t.Errorf("too young: %v is left", got)
	}
	m.young, m.fail["RemoveRemnants"] = nil, errors.New("busy")
	sweep("remove what is left of pod gone in the runtime: busy", 1)
	if got := m.left("gone"); !slices.Equal(got, []string{record}) {
		t.Errorf("it failed: %v is left", got)
	}
	delete(m.fail, "RemoveRemnants")
	sweep("", 1)
	if got := m.left("gone"); len(got) != 0 {
		t.Errorf("%v is left", got)
	}
}

func TestVolumesThatStayKeepTheLogs(t *testing.T) {
	m := newMachine()
	m.pod("gone", true)
	m.fail["Release"] = errors.New("still mounted")
	s := m.sweeper(t)
	var swept []int
	s.cfg.Swept = func(pods, failed int) { swept = append(swept, pods, failed) }
	if _, err := s.Sweep(t.Context()); err == nil || !slices.Equal(swept, []int{1, 1}) {
		t.Fatalf("error %v, pods and failures %v", err, swept)
	}
	left := m.left("gone")
	for _, p := range []string{"/root/pods/gone", "/root/bowline/pods/gone", "/var/log/pods/ns_p_gone", "/kubepods/besteffort/podgone"} {
		if !slices.Contains(left, p) {
			t.Errorf("%s went", p)
		}
	}
}

func TestAStaticPodThatComesBackMeanwhile(t *testing.T) {
	m := newMachine()
	m.pod("static", true)
	m.onRemove = func(what string) {
		if what == "staticbox" {
			m.known["static"] = true
		}
	}
	if _, err := m.sweeper(t).Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	left := m.left("static")
	for _, p := range []string{"/root/pods/static", "/var/log/pods/ns_p_static", "/kubepods/besteffort/podstatic"} {
		if !slices.Contains(left, p) {
			t.Errorf("%s went", p)
		}
	}
}

func TestLogsOfASurplusContainerGoWithIt(t *testing.T) {
	m := newMachine()
	m.pod("u", true)
	m.known["u"] = true
	c := m.containers[0]
	c.ID, c.CreatedAt, c.LogPath = "newer", c.CreatedAt.Add(time.Minute), "/var/log/pods/ns_p_u/c/1.log"
	m.containers = append(m.containers, c)
	for _, name := range []string{"0.log.20260101-000000", "0.log.20260101-000000.gz", "1.log", "1.log.20260101-000000", "10.log"} {
		m.add("/var/log/pods/ns_p_u/c/"+name, 0o640, "")
	}
	if _, err := m.sweeper(t).Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	var left []string
	for p := range m.files {
		if path.Dir(p) == "/var/log/pods/ns_p_u/c" {
			left = append(left, path.Base(p))
		}
	}
	slices.Sort(left)
	if want := []string{"1.log", "1.log.20260101-000000", "10.log"}; !slices.Equal(left, want) {
		t.Errorf("logs left: %v, want %v", left, want)
	}
}

func TestALogPathElsewhereIsNotTouched(t *testing.T) {
	for _, p := range []string{"/etc/passwd", "/var/log/pods/ns_p_other/c/0.log", "/var/log/pods/../x/ns_p_u/0.log", ""} {
		m := newMachine()
		m.pod("u", true)
		m.known["u"] = true
		old := m.containers[0]
		old.ID, old.CreatedAt, old.LogPath = "older", old.CreatedAt.Add(-time.Minute), p
		m.containers = append(m.containers, old)
		m.add(path.Clean("/"+p), 0o640, "")
		before := len(m.files)
		result, err := m.sweeper(t).Sweep(t.Context())
		if err != nil || result.Containers != 1 {
			t.Fatalf("%+v, %v", result, err)
		}
		if len(m.files) != before {
			t.Errorf("%q: %d files of %d left", p, len(m.files), before)
		}
	}
}

func TestRunSweepsEachMinute(t *testing.T) {
	for after, swept := range map[time.Duration]bool{59 * time.Second: false, 179 * time.Second: true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine()
			m.pod("gone", true)
			s := m.sweeper(t)
			stop := testutil.Go(t.Context(), s.Run)
			time.Sleep(after)
			if err := stop(); err != nil {
				t.Error(err)
			}
			if left := m.left("gone"); (left == nil) != swept {
				t.Errorf("left after %v: %v", after, left)
			}
		})
	}
}

// TestQuietHost: Run skips every second sweep of a host on which nothing changes, once the last sweep
// saw no garbage, and no garbage can have been too young for it.
func TestQuietHost(t *testing.T) {
	for _, test := range []struct {
		name    string
		change  func(*machine, *Sweeper)
		minutes []int // with a sweep
	}{
		{"quiet", func(*machine, *Sweeper) {}, []int{1, 2, 4, 6, 8}},
		{"it is not known", func(_ *machine, s *Sweeper) { s.cfg.Quiet = nil }, []int{1, 2, 3, 4, 5, 6, 7, 8}},
		{"changes", func(_ *machine, s *Sweeper) { s.cfg.Quiet = func(time.Time) bool { return false } }, []int{1, 2, 3, 4, 5, 6, 7, 8}},
		{"a change in minute 4", func(_ *machine, s *Sweeper) {
			change := time.Now().Add(4*Period + time.Second)
			s.cfg.Quiet = func(since time.Time) bool { return time.Now().Before(change) || change.Before(since) }
		}, []int{1, 2, 4, 5, 6, 8}},
		{"garbage at first", func(m *machine, _ *Sweeper) { m.pod("gone", true) }, []int{1, 2, 3, 5, 7}},
		{"errors", func(m *machine, _ *Sweeper) { m.fail["List"] = errors.New("no such device") }, []int{1, 2, 3, 4, 5, 6, 7, 8}},
		{"what a write left", func(m *machine, _ *Sweeper) { m.add("/root/bowline/"+".x"+host.TemporaryMark+"1", 0o640, "") }, []int{1, 2, 3, 5, 7}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine()
				s := m.sweeper(t)
				s.cfg.Quiet = func(time.Time) bool { return true }
				test.change(m, s)
				start := time.Now()
				swept := map[int]bool{}
				m.onList = func(string) { swept[int(time.Since(start)/Period)] = true }
				stop := testutil.Go(t.Context(), s.Run)
				time.Sleep(8*Period + time.Second)
				testutil.Must(t, stop())
				if got := slices.Sorted(maps.Keys(swept)); !slices.Equal(got, test.minutes) {
					t.Errorf("swept in the minutes %v, want %v", got, test.minutes)
				}
			})
		})
	}
}

// TestEventOfAFailedSweep: each failed sweep has a kubelet's event, but not one that could not reach the
// host.
func TestEventOfAFailedSweep(t *testing.T) {
	for why, want := range map[error][]string{
		errors.New("no such device"): {"Warning ContainerGCFailed collect garbage: ", "Warning ContainerGCFailed collect garbage: "},
		host.ErrUnreachable:          nil,
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine()
			m.pod("gone", true)
			m.fail["List"] = why
			s := m.sweeper(t)
			var got []string
			s.cfg.Event = func(kind, reason, message string) {
				if !strings.Contains(message, why.Error()) {
					t.Error(message)
				}
				got = append(got, kind+" "+reason+" "+message[:len("collect garbage: ")])
			}
			stop := testutil.Go(t.Context(), s.Run)
			time.Sleep(2*Period + time.Second)
			if err := stop(); err != nil {
				t.Error(err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v: %q, want %q", why, got, want)
			}
		})
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	_, err := New(Config{})
	for _, field := range []string{"Host", "Runtime", "Volumes", "Pods", "Owner", "RecordDir", "LogsRoot", "LinksDir"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named in %v", field, err)
		}
	}
}

// Under disk pressure, pods that have ended keep no containers. What runs, what may run again, and
// everything while the pods are not known, stays.
func TestRemoveFinished(t *testing.T) {
	m := newMachine()
	for _, uid := range []string{"ended", "runs", "waits"} {
		m.pod(uid, true)
		m.known[types.UID(uid)] = true
	}
	m.finished = map[types.UID]bool{"ended": true, "runs": true} // a running pod is not believed to be finished
	for i := range m.containers {
		if m.containers[i].UID == "runs" {
			m.containers[i].State, m.sandboxes[i].State = gcpolicy.Running, gcpolicy.Running
		}
	}
	left := func() string {
		var out []string
		for _, c := range m.containers {
			out = append(out, c.ID)
		}
		for _, s := range m.sandboxes {
			out = append(out, s.ID)
		}
		return strings.Join(out, " ")
	}
	all := left()
	s := m.sweeper(t)
	m.seen = false
	if err := s.RemoveFinished(t.Context()); err != nil || left() != all {
		t.Errorf("before the pods are known there is left %s: %v", left(), err)
	}
	m.seen = true
	if err := s.RemoveFinished(t.Context()); err != nil || left() != "runsid waitsid runsbox waitsbox" {
		t.Errorf("there is left %s: %v", left(), err)
	}
	if _, there := m.files["/var/log/pods/ns_p_ended"]; !there {
		t.Error("the directory of its logs has gone, which is its pod's")
	}
}
