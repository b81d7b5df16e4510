package stats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/kubeletmetrics"
	"github.com/bowline-k8s/bowline/wall/walltest"
)

// box is a fake host with its runtime.
type box struct {
	mu       sync.Mutex
	booted   time.Time
	sampled  int
	detailed int
	files    int // with open files
	measured int
	dirs     []string      // that were measured last
	cpu      time.Duration // that the pod has used
	err      error
	layerErr error
	duErr    error
	requests []host.SampleRequest
	hung     bool // the claim's file server does not answer
	down     bool // the link does not answer
	linkErr  error
	claimErr error
	asked    int // how often the claim was measured
	delay    time.Duration
}

var (
	podID   = strings.Repeat("ab", 32)
	sandbox = strings.Repeat("cd", 32)
)

const podCgroup = "/kubepods/burstable/pod11111111-2222-3333-4444-555555555555"

func (b *box) Sample(ctx context.Context, r host.SampleRequest) (host.Sampled, error) {
	if b.delay > 0 {
		time.Sleep(b.delay)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return host.Sampled{}, b.err
	}
	b.requests = append(b.requests, r)
	b.sampled++
	if r.Detail {
		b.detailed++
	}
	if r.OpenFiles {
		b.files++
	}
	c := host.UnknownSample()
	c.CPU.Usage, c.Memory.Usage, c.Memory.InactiveFile = b.cpu, 5<<20, 1<<20
	out := host.Sampled{Uptime: time.Since(b.booted), MemoryBytes: 1 << 30, Node: c, Cgroups: map[string]host.CgroupSample{
		"/kubepods": c, podCgroup: c, podCgroup + "/cri-containerd-" + podID + ".scope": c, podCgroup + "/" + sandbox: c,
	}}
	for range r.Paths {
		out.FileSystems = append(out.FileSystems, host.FileSystem{Bytes: 100, FreeBytes: 40, Inodes: 10, InodesFree: 3})
	}
	return out, nil
}

func (b *box) Measure(ctx context.Context, _ string, paths ...string) (host.Measured, error) {
	b.mu.Lock()
	claim := paths[0] == "/v/data"
	hung, err := b.down || b.hung && claim, b.linkErr
	if claim {
		b.asked++
		err = cmp.Or(err, b.claimErr)
	}
	b.mu.Unlock()
	if hung {
		<-ctx.Done()
		return host.Measured{}, ctx.Err()
	}
	if err != nil {
		return host.Measured{}, err
	}
	return host.Measured{FileSystems: []host.FileSystem{{Bytes: 1000, FreeBytes: 300}}}, nil
}

func (b *box) DiskUsage(_ context.Context, dirs ...string) (out []host.Usage, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.measured++
	b.dirs = dirs
	for range dirs {
		out = append(out, host.Usage{Bytes: 7, Inodes: 2})
	}
	return out, b.duErr
}

func (b *box) ListContainerStats(context.Context, string) ([]*runtimeapi.ContainerStats, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return []*runtimeapi.ContainerStats{{Attributes: &runtimeapi.ContainerAttributes{Id: podID},
		WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: &runtimeapi.UInt64Value{Value: 11}, InodesUsed: &runtimeapi.UInt64Value{Value: 3}}}}, b.layerErr
}

func (b *box) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/var/lib/images"}, UsedBytes: &runtimeapi.UInt64Value{Value: 99}, InodesUsed: &runtimeapi.UInt64Value{Value: 4},
	}}}, nil
}

func (b *box) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func (b *box) collector(t *testing.T) *Collector { return b.collectorOf(t, 0) }

func (b *box) collectorOf(t *testing.T, volumes time.Duration) *Collector {
	c, err := New(Config{VolumePeriod: volumes, Host: b, Runtime: b, RootDir: "/var/lib/kubelet", PodsTree: func() string { return "/kubepods" }, System: func() System { return System{} },
		Pods: func() []Pod {
			return []Pod{{Namespace: "default", Name: "web", UID: "11111111-2222-3333-4444-555555555555", SandboxID: sandbox, LogDir: "/logs/web",
				Containers: []Container{{ID: podID, Name: "main"}},
				Volumes:    []Volume{{Name: "data", Path: "/v/data", Claim: "data"}, {Name: "tmp", Path: "/v/tmp"}, {Name: "token", Path: "/v/token", Memory: true}}}}
		}})
	testutil.Must(t, err)
	return c
}

func get(t *testing.T, c *Collector, need Need) *Snapshot {
	t.Helper()
	s, err := c.Get(t.Context(), need)
	testutil.Must(t, err)
	return s
}

func TestManyCallersShareACollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{booted: time.Now().Add(-time.Hour), delay: 50 * time.Millisecond}
		c := b.collector(t)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { get(t, c, Need{}) })
		}
		all.Wait()
		if b.sampled != 1 || b.detailed != 0 {
			t.Errorf("20 callers cost %d collections, %d with detail", b.sampled, b.detailed)
		}
		get(t, c, Need{Detail: true})
		get(t, c, Need{Detail: true})
		get(t, c, Need{}) // that with detail has it all
		if b.sampled != 2 || b.detailed != 1 || b.files != 0 {
			t.Errorf("%d collections, %d with detail, %d with open files", b.sampled, b.detailed, b.files)
		}
		get(t, c, Need{Files: true})
		get(t, c, Need{Files: true})
		get(t, c, Need{Detail: true}) // that with open files has it all
		if b.sampled != 3 || b.detailed != 2 || b.files != 1 {
			t.Errorf("%d collections, %d with detail, %d with open files", b.sampled, b.detailed, b.files)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if b.sampled != 3 || b.measured != 0 {
			t.Errorf("%d collections without a caller", b.sampled-3)
		}
	})
}

// TestACallerThatGivesUp does not end the collection of the others.
func TestACallerThatGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{booted: time.Now().Add(-time.Hour), delay: time.Second}
		c := b.collector(t)
		ctx, cancel := context.WithCancel(t.Context())
		var first, second error
		var all sync.WaitGroup
		all.Go(func() { _, first = c.Get(ctx, Need{}) })
		synctest.Wait()
		all.Go(func() { _, second = c.Get(t.Context(), Need{}) })
		synctest.Wait()
		cancel()
		all.Wait()
		if !errors.Is(first, context.Canceled) || second != nil || b.sampled != 1 {
			t.Errorf("the first %v, the second %v, %d collections", first, second, b.sampled)
		}
	})
}

// TestNoOldNumbers: if the host does not answer, there is no snapshot, although there was one.
func TestNoOldNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{booted: time.Now().Add(-time.Hour)}
		c := b.collector(t)
		before := get(t, c, Need{})
		b.change(func() { b.err = host.ErrUnreachable })
		if s := get(t, c, Need{}); s.Time != before.Time {
			t.Errorf("at %v, want the fresh one of %v", s.Time, before.Time)
		}
		time.Sleep(fresh + time.Millisecond)
		if s, err := c.Get(t.Context(), Need{}); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("got %+v, %v", s, err)
		}
		b.change(func() { b.err = nil })
		if s := get(t, c, Need{}); !s.Time.After(before.Time) {
			t.Errorf("at %v, before at %v", s.Time, before.Time)
		}
	})
}

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{booted: time.Now().Add(-time.Hour), cpu: time.Minute}
		c := b.collector(t)
		if s := get(t, c, Need{}); s.usage != nil {
			t.Errorf("a CPU use from one collection: %v", s.usage)
		}
		time.Sleep(20 * time.Second)
		b.change(func() { b.cpu += 5 * time.Second })
		s := get(t, c, Need{Rates: true})
		if n, ok := s.UsageNanoCores(podCgroup); !ok || n != 250_000_000 {
			t.Errorf("the pod uses %d nanocores, %v", n, ok)
		}
		if n, ok := s.UsageNanoCores(""); !ok || n != 250_000_000 {
			t.Errorf("the node uses %d nanocores, %v", n, ok)
		}
		// After a long pause, and after a restart of the container, no use is made up.
		b.change(func() { b.cpu = 0 })
		time.Sleep(20 * time.Second)
		if n, ok := get(t, c, Need{}).UsageNanoCores(podCgroup); ok {
			t.Errorf("after a restart: %d", n)
		}
		time.Sleep(time.Hour)
		began := time.Now()
		s = get(t, c, Need{Rates: true})
		if n, ok := s.UsageNanoCores(podCgroup); !ok || n != 0 || time.Since(began) < rateWindow {
			t.Errorf("after an hour, within %v: %d nanocores, %v", time.Since(began), n, ok)
		}
	})
}

func TestStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{booted: time.Now().Add(-time.Hour)}
		c := b.collector(t)
		s := get(t, c, Need{Detail: true, Storage: true})
		if s.Storage == nil || s.Storage.Layers[podID] != (host.Usage{Bytes: 11, Inodes: 3}) || s.Storage.Claims["/v/data"].Bytes != 1000 || len(s.Storage.Dirs) != 3 {
			t.Fatalf("storage %+v", s.Storage)
		}
		if r := b.requests[0]; len(r.Paths) != 2 || r.Paths[0] != "/var/lib/kubelet" || r.Paths[1] != "/var/lib/images" {
			t.Errorf("measured are the file systems of %q", r.Paths)
		}
		for range 5 {
			time.Sleep(fresh + time.Second)
			get(t, c, Need{Detail: true, Storage: true})
		}
		if b.measured != 1 {
			t.Errorf("directories were measured %d times in a minute", b.measured)
		}
		// A failure leaves what is known, with its time.
		b.change(func() { b.layerErr = errors.New("no") })
		time.Sleep(storageFresh)
		if got := get(t, c, Need{Detail: true, Storage: true}); got.Storage == nil || !got.Storage.Time.Equal(s.Storage.Time) {
			t.Errorf("storage after a failure: %+v", got.Storage)
		}
		b.change(func() { b.layerErr = nil })
		if got := get(t, c, Need{Detail: true, Storage: true}); !got.Storage.Time.After(s.Storage.Time) {
			t.Errorf("storage after that: %+v", got.Storage)
		}
	})
}

// TestVolumePeriod: a longer period spares the host the walks through volumes, but not those through logs; a
// shorter one measures all more often, and a negative one no volumes.
func TestVolumePeriod(t *testing.T) {
	storage := Need{Detail: true, Storage: true}
	synctest.Test(t, func(t *testing.T) {
		b := &box{booted: time.Now().Add(-time.Hour)}
		c := b.collectorOf(t, time.Hour)
		first := get(t, c, storage).Storage
		time.Sleep(storageFresh + time.Second)
		again := get(t, c, storage).Storage
		if b.measured != 2 || !slices.Equal(b.dirs, []string{"/logs/web/main"}) || b.asked != 1 {
			t.Errorf("%d walks, the last through %q, and %d questions about the claim", b.measured, b.dirs, b.asked)
		}
		if len(again.Dirs) != 3 || !again.VolumesAt.Equal(first.VolumesAt) || !again.Time.After(first.Time) {
			t.Errorf("after a minute: %+v", again)
		}
		time.Sleep(time.Hour)
		if s := get(t, c, storage).Storage; len(b.dirs) != 3 || !s.VolumesAt.Equal(s.Time) || b.asked != 2 {
			t.Errorf("after an hour: %+v", s)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := &box{booted: time.Now().Add(-time.Hour)}
		c := b.collectorOf(t, 20*time.Second)
		get(t, c, storage)
		time.Sleep(21 * time.Second)
		if get(t, c, storage); b.measured != 2 || len(b.dirs) != 3 || b.asked != 2 {
			t.Errorf("after a shorter period: %d walks, the last through %q, %d questions about the claim", b.measured, b.dirs, b.asked)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := &box{booted: time.Now().Add(-time.Hour)}
		s := &Server{Collector: b.collectorOf(t, -1), Node: "n1"}
		got := get(t, s.Collector, storage).Storage
		if len(got.Dirs) != 1 || got.Claims != nil || len(s.Claims(t.Context())) != 0 || b.asked != 0 || got.Layers[podID].Bytes != 11 {
			t.Errorf("volumes that are not measured: %+v, %d questions about the claim", got, b.asked)
		}
	})
}

// TestLogs: what logs use is measured at most once a minute, and by itself only if no one has just measured
// all storage.
func TestLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{booted: time.Now().Add(-time.Hour)}
		s := &Server{Collector: b.collector(t), Node: "n1"}
		want := kubeletmetrics.Log{UID: "11111111-2222-3333-4444-555555555555", Namespace: "default", Pod: "web", Container: "main"}
		check := func(measured int) {
			t.Helper()
			if got := s.Logs(t.Context()); len(got) != 1 || got[want] != 7 || b.measured != measured || b.sampled > 1 {
				t.Errorf("logs %v after %d walks and %d collections, want %d walks", got, b.measured, b.sampled, measured)
			}
		}
		check(1)
		time.Sleep(storageFresh)
		check(1)
		time.Sleep(time.Second)
		get(t, s.Collector, Need{Detail: true, Storage: true})
		check(2)
		time.Sleep(2 * storageFresh)
		b.change(func() { b.duErr = host.ErrUnreachable })
		check(3) // what is known is older than a minute, and younger than storageOldest
		time.Sleep(storageOldest)
		if got := s.Logs(t.Context()); len(got) != 0 {
			t.Errorf("logs of long ago: %v", got)
		}
	})
}

// TestOldClaims: the metrics of claims have no time, so an old value would look like a new one.
func TestOldClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{booted: time.Now().Add(-time.Hour)}
		s := &Server{Collector: b.collector(t), Node: "n1"}
		for _, c := range []struct {
			pause time.Duration
			down  bool
			want  int
		}{{0, false, 1}, {2 * storageFresh, true, 1}, {storageOldest, true, 0}, {0, false, 1}} {
			time.Sleep(c.pause)
			b.change(func() { b.down = c.down })
			if got := s.Claims(t.Context()); len(got) != c.want {
				t.Errorf("%v later, down %v: claims %v, want %d", c.pause, c.down, got, c.want)
			}
			time.Sleep(2 * claimTimeout)
		}
	})
}

// TestAFileServerThatHangs costs one question, then ever fewer.
func TestAFileServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{booted: time.Now().Add(-time.Hour), hung: true}
		c := b.collector(t)
		for range 60 {
			began := time.Now()
			s := get(t, c, Need{Detail: true, Storage: true})
			if time.Since(began) > storagePatience || s.Storage == nil || len(s.Storage.Claims) > 0 || len(s.Storage.Dirs) != 3 {
				t.Fatalf("after %v: %+v", time.Since(began), s.Storage)
			}
			time.Sleep(time.Minute)
		}
		if b.asked < 3 || b.asked > 5 {
			t.Errorf("the file server was asked %d times in an hour", b.asked)
		}
		b.change(func() { b.hung = false })
		time.Sleep(longestPause)
		if s := get(t, c, Need{Detail: true, Storage: true}); len(s.Storage.Claims) != 1 {
			t.Errorf("claims %v", s.Storage.Claims)
		}
	})
}

// TestClaimsAfterTheLinkWasDown: a claim is measured as soon as the link is back, however it was down, and
// what could not be measured is not shown as measured.
func TestClaimsAfterTheLinkWasDown(t *testing.T) {
	for what, change := range map[string]func(b *box, down bool){
		"unreachable": func(b *box, down bool) {
			if b.linkErr = nil; down {
				b.linkErr = fmt.Errorf("measure: %w", host.ErrUnreachable)
			}
		},
		"no answer": func(b *box, down bool) { b.down = down },
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &box{booted: time.Now().Add(-time.Hour)}
			s := &Server{Collector: b.collector(t), Node: "n1"}
			b.change(func() { change(b, true) })
			if got := s.Claims(t.Context()); len(got) != 0 {
				t.Errorf("%s: claims %v", what, got)
			}
			synctest.Wait()
			time.Sleep(2 * claimTimeout)
			b.change(func() { change(b, false) })
			if got := s.Claims(t.Context()); len(got) != 1 {
				t.Errorf("%s: claims %v after the link was down", what, got)
			}
		})
	}
}

// TestAClaimWithAnError is asked ever less often, like one that hangs.
func TestAClaimWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{booted: time.Now().Add(-time.Hour), claimErr: errors.New("stale file handle")}
		s := &Server{Collector: b.collector(t), Node: "n1"}
		for range 60 {
			s.Claims(t.Context())
			time.Sleep(time.Minute + time.Second)
		}
		if b.asked < 3 || b.asked > 5 {
			t.Errorf("the claim was asked %d times in an hour", b.asked)
		}
	})
}

// TestTimeline: whatever the clocks and the link do, no time is in the future of the local clock, and
// times advance unless the local clock is set back. The local times have a monotonic reading, which does not
// follow when the clock is set.
func TestTimeline(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		now, uptime := time.Now(), time.Hour
		set := func() bool {
			if r.IntN(40) > 0 {
				return false
			}
			by := time.Duration(r.Int64N(7200)-3600) * time.Second
			now = walltest.Slept(now, by)
			return by < 0
		}
		var line timeline
		var last time.Time
		for i := range 200 {
			back := set()
			passed := time.Duration(r.Int64N(int64(30 * time.Second)))
			now, uptime = now.Add(passed), uptime+passed
			if r.IntN(40) == 0 {
				uptime = time.Duration(r.Int64N(int64(time.Minute))) // a reboot
			}
			sent := now
			trip := time.Duration(r.Int64N(int64(2*time.Second))) + time.Millisecond
			read := time.Duration(r.Int64N(int64(trip) + 1))
			back = set() || back // during the call
			now = now.Add(trip)
			at := line.at(uptime+read, sent, now)
			uptime += trip
			local := now.Round(0)
			if at.After(local) || !back && !at.After(last) || at.Before(local.Add(-trip-step)) && !at.Equal(last.Add(time.Millisecond)) {
				t.Fatalf("seed %d, step %d: %v for what was read within %v before %v, after %v", seed, i, at, trip, local, last)
			}
			last = at
		}
	}
}

// TestTimelineAfterTheClockWasSet: the next time is that of the clock, and it advances from there.
func TestTimelineAfterTheClockWasSet(t *testing.T) {
	for _, by := range []time.Duration{-time.Hour, -2 * time.Second, 2 * time.Second, time.Hour} {
		var line timeline
		now := time.Now()
		line.at(time.Hour, now, now)
		last := time.Time{}
		for i := range 5 {
			passed := time.Duration(i+1) * time.Second
			set := walltest.Slept(now, by).Add(passed)
			at := line.at(time.Hour+passed, set, set)
			if off := set.Round(0).Sub(at); off < 0 || off > step || !at.After(last) {
				t.Errorf("set by %v: %v at %v, after %v", by, at, set, last)
			}
			last = at
		}
	}
}

// TestTheLocalClockIsSetBack: what was read before then is not shown, because its time is in the future.
func TestTheLocalClockIsSetBack(t *testing.T) {
	for _, by := range []time.Duration{-time.Hour, -5 * time.Second} {
		b := &box{booted: time.Now().Add(-time.Hour)}
		c := b.collector(t)
		get(t, c, Need{Detail: true, Storage: true})
		c.now = func() time.Time { return walltest.Slept(time.Now(), by) }
		b.change(func() { b.layerErr = errors.New("no") })
		s := get(t, c, Need{Detail: true, Storage: true})
		if now := c.now().Round(0); s.Time.After(now) || s.BootTime.After(now) || now.Sub(s.Time) > step || s.Storage != nil {
			t.Errorf("set by %v: %v at %v, storage %+v", by, s.Time, now, s.Storage)
		}
		if began := time.Now(); get(t, c, Need{Rates: true}).usage == nil || time.Since(began) > 2*rateWindow {
			t.Errorf("set by %v: no rates within %v", by, time.Since(began))
		}
		b.change(func() { b.layerErr = nil })
		if s = get(t, c, Need{Detail: true, Storage: true}); s.Storage == nil || s.Storage.Time.Round(0).After(c.now().Round(0)) {
			t.Errorf("set by %v: storage %+v at %v", by, s.Storage, c.now())
		}
	}
}

// TestSteadyTimes: a link whose delay varies does not bend the rates.
func TestSteadyTimes(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var line timeline
	first := time.Time{}
	for i := range 100 {
		uptime := time.Hour + time.Duration(i)*15*time.Second
		trip := time.Duration(r.Int64N(int64(900 * time.Millisecond)))
		read := now.Add(time.Duration(i) * 15 * time.Second)
		at := line.at(uptime, read.Add(-trip/3), read.Add(trip-trip/3))
		if i == 0 {
			first = at
		}
		if drift := at.Sub(first) - time.Duration(i)*15*time.Second; drift.Abs() > 400*time.Millisecond {
			t.Errorf("after %d collections the time is off by %v", i, drift)
		}
	}
}

func TestContainerID(t *testing.T) {
	for name, want := range map[string]string{
		podID: podID, "cri-containerd-" + podID + ".scope": podID, "crio-" + podID: podID, "crio-" + podID + ".scope": podID,
		"crio-conmon-" + podID + ".scope": "", "kubepods-burstable.slice": "", "burstable": "", "pod11111111-2222-3333-4444-555555555555": "", "init.scope": "",
	} {
		if got, ok := containerID(name); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %q, %v", name, got, ok)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	if c, err := New(Config{}); err == nil {
		t.Error(fmt.Sprint(c))
	}
}
