package stats

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// box is a fake host with its runtime.
type box struct {
	mu       sync.Mutex
	booted   time.Time
	sampled  int
	detailed int
	measured int
	cpu      time.Duration // that the pod has used
	err      error
	layerErr error
	requests []host.SampleRequest
	hung     bool // the claim's file server does not answer
	asked    int  // how often the claim was measured
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
	hung := b.hung
	b.asked++
	b.mu.Unlock()
	if hung {
		<-ctx.Done()
		return host.Measured{}, ctx.Err()
	}
	return host.Measured{FileSystems: []host.FileSystem{{Bytes: 1000, FreeBytes: 300}}}, nil
}

func (b *box) DiskUsage(_ context.Context, dirs ...string) (out []host.Usage, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.measured++
	for range dirs {
		out = append(out, host.Usage{Bytes: 7, Inodes: 2})
	}
	return out, nil
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

func (b *box) collector(t *testing.T) *Collector {
	c, err := New(Config{Host: b, Runtime: b, RootDir: "/var/lib/kubelet", PodsTree: func() string { return "/kubepods" }, System: func() System { return System{} },
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
		if b.sampled != 2 || b.detailed != 1 {
			t.Errorf("%d collections, %d with detail", b.sampled, b.detailed)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if b.sampled != 2 || b.measured != 0 {
			t.Errorf("%d collections without a caller", b.sampled-2)
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

// TestTimeline: whatever clocks and links do, times advance and are not in the future.
func TestTimeline(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		now, uptime := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Hour
		var line timeline
		var last time.Time
		for i := range 200 {
			passed := time.Duration(r.Int64N(int64(30 * time.Second)))
			now, uptime = now.Add(passed), uptime+passed
			if r.IntN(40) == 0 {
				uptime = time.Duration(r.Int64N(int64(time.Minute))) // a reboot
			}
			sent := now
			trip := time.Duration(r.Int64N(int64(2 * time.Second)))
			read := time.Duration(r.Int64N(int64(trip) + 1))
			now = now.Add(trip)
			at := line.at(uptime+read, sent, now)
			uptime += trip
			if at.After(now.Add(time.Millisecond)) || !at.After(last) || at.Before(sent.Add(-step-time.Millisecond)) {
				t.Fatalf("seed %d, step %d: %v for what was read between %v and %v, after %v", seed, i, at, sent, now, last)
			}
			last = at
		}
	}
	// The local clock is set back by an hour.
	var line timeline
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	line.at(time.Hour, now, now)
	back := now.Add(-time.Hour)
	if at := line.at(time.Hour+time.Second, back, back); at.After(back) {
		t.Errorf("%v is in the future of %v", at, back)
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
