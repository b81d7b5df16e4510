package eviction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// box is a fake host, its runtime and its pods.
type box struct {
	mu sync.Mutex

	free     int64 // bytes of 1000, on the one file system
	memory   int64 // bytes available, of 1000
	podsHave int64 // bytes of memory that pods use, of 500 in their cgroup
	own      bool  // images have a file system of their own
	err      error
	pods     []*v1.Pod
	uses     map[string]uint64 // memory by pod
	dirs     map[string]int64  // bytes by directory
	walks    int
	measured int // how often Measured was called
	decided  []string
	reclaims int
	gives    int64         // what removing images frees
	lasts    time.Duration // how long an evicted pod takes to end
	over     map[string]time.Time
	said     []string
}

func (b *box) Measure(_ context.Context, cgroup string, paths ...string) (host.Measured, error) {
	defer b.lock()()
	if b.err != nil {
		return host.Measured{}, b.err
	}
	if !slices.Equal(paths, []string{"/root", "/images"}) || cgroup != "/kubepods" {
		return host.Measured{}, fmt.Errorf("measured are %v and %q", paths, cgroup)
	}
	fs := host.FileSystem{Device: 1, Bytes: 1000, FreeBytes: b.free, Inodes: 1000, InodesFree: 900}
	images := fs
	if b.own {
		images = host.FileSystem{Device: 2, Bytes: 1000, FreeBytes: 900, Inodes: 1000, InodesFree: 900}
	}
	return host.Measured{MemoryBytes: 1000, WorkingSetBytes: 1000 - b.memory, PidsMax: 100, Pids: 10,
		CgroupBytes: 500, CgroupWorkingSetBytes: b.podsHave, FileSystems: []host.FileSystem{fs, images}}, nil
}

func (b *box) DiskUsage(_ context.Context, dirs ...string) ([]host.Usage, error) {
	defer b.lock()()
	b.walks++
	var out []host.Usage
	for _, d := range dirs {
		out = append(out, host.Usage{Bytes: b.dirs[d], Inodes: 1})
	}
	return out, b.err
}

func (b *box) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	defer b.lock()()
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/images"}}}}, b.err
}

func (b *box) ListContainerStats(context.Context, string) ([]*runtimeapi.ContainerStats, error) {
	defer b.lock()()
	var out []*runtimeapi.ContainerStats
	for _, p := range b.pods {
		out = append(out, &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{Labels: map[string]string{pod.LabelPodUID: p.Name, pod.LabelContainerName: "app"}},
			Memory:     &runtimeapi.MemoryUsage{WorkingSetBytes: &runtimeapi.UInt64Value{Value: b.uses[p.Name]}},
		})
	}
	return out, b.err
}

func (b *box) ListPodSandboxStats(context.Context) ([]*runtimeapi.PodSandboxStats, error) {
	return nil, errors.New("not implemented")
}

func (b *box) Active() []*v1.Pod {
	defer b.lock()()
	return slices.DeleteFunc(slices.Clone(b.pods), b.gone)
}

func (b *box) Over(p *v1.Pod) bool {
	defer b.lock()()
	return b.gone(p)
}

func (b *box) gone(p *v1.Pod) bool {
	at, evicted := b.over[p.Name]
	return evicted && !time.Now().Before(at)
}

func (b *box) Spared(p *v1.Pod) bool { return strings.HasPrefix(p.Name, "critical") }

func (b *box) Evict(p *v1.Pod, grace time.Duration, message string, disrupted bool, _ map[string]string) {
	b.do(func() { b.over[p.Name] = time.Now().Add(b.lasts) })
	b.say("evict %s in %s, disrupted %v: %.40s", p.Name, grace, disrupted, message)
}

func (b *box) lock() (unlock func()) {
	b.mu.Lock()
	return b.mu.Unlock
}

// do changes or reads the box under its lock.
func (b *box) do(f func()) {
	defer b.lock()()
	f()
}

func (b *box) say(format string, args ...any) {
	defer b.lock()()
	b.said = append(b.said, fmt.Sprintf(format, args...))
}

// heard returns what was said since the last call.
func (b *box) heard() string {
	defer b.lock()()
	defer func() { b.said = nil }()
	return strings.Join(b.said, "\n")
}

func (b *box) add(name string, memory uint64, change func(*v1.Pod)) {
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID = "ns", name, types.UID(name)
	p.Spec.Containers = []v1.Container{{Name: "app"}}
	grace := int64(30)
	p.Spec.TerminationGracePeriodSeconds = &grace
	if change != nil {
		change(p)
	}
	b.do(func() {
		b.pods = append(b.pods, p)
		b.uses[name] = memory
	})
}

// run starts a manager on a host without pressure.
func run(t *testing.T, thresholds ...pod.Threshold) (*box, *Manager) {
	t.Helper()
	b := &box{free: 900, memory: 900, uses: map[string]uint64{}, dirs: map[string]int64{}, over: map[string]time.Time{}, lasts: time.Second}
	m, err := New(Config{
		Host: b, Runtime: b, Pods: b, RootDir: "/root", LogDir: func(p *v1.Pod) string { return "/logs/" + p.Name },
		Event:     func(kind, reason, message string) { b.say("%s %s %s", kind, reason, message) },
		Condition: func(c v1.NodeConditionType, pressed bool) { b.say("%s %v", c, pressed) },
		Reclaim: func(context.Context) error {
			b.do(func() {
				b.reclaims++
				b.free += b.gives
			})
			return nil
		},
		Thresholds: thresholds, MaxGrace: 10 * time.Second, Transition: time.Minute, PodsCgroup: func() string { return "/kubepods" },
		Measured: func(_ context.Context, m host.Measured) { b.do(func() { b.measured++ }) },
		Decided: func(signal string, age time.Duration) {
			b.do(func() { b.decided = append(b.decided, fmt.Sprint(signal, " ", age)) })
		},
	})
	testutil.Must(t, err)
	stop := testutil.Go(t.Context(), m.Run)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	if got := b.heard(); got != "MemoryPressure false\nDiskPressure false\nPIDPressure false" {
		t.Errorf("at the start it says %q", got)
	}
	return b, m
}

// after lets time pass, and compares what was said meanwhile.
func (b *box) after(t *testing.T, d time.Duration, want ...string) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	if got := b.heard(); got != strings.Join(want, "\n") {
		t.Errorf("within %s it says\n%s\nwant\n%s", d, got, strings.Join(want, "\n"))
	}
}

// heardFor lets time pass and keeps what was said.
func (b *box) heardFor(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func threshold(t *testing.T, s pod.Signal, amount string) pod.Threshold {
	a, err := pod.ParseAmount(amount)
	testutil.Must(t, err)
	return pod.Threshold{Signal: s, Amount: a}
}

// Pods are evicted one at a time, the next one if the first has ended and that was not enough;
// critical pods stay.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := run(t, threshold(t, pod.MemoryAvailable, "10%"))
		b.add("small", 10, nil)
		b.add("critical", 500, nil)
		b.add("large", 300, nil)
		b.after(t, Period)
		b.do(func() { b.memory = 90 })
		b.after(t, Period+500*time.Millisecond, "MemoryPressure true", "Warning EvictionThresholdMet Attempting to reclaim memory",
			"evict large in 1s, disrupted true: The node was low on resource: memory. Th")
		if c := m.Conditions(); len(c) != 1 || c[0] != v1.NodeMemoryPressure {
			t.Errorf("the conditions are %v", c)
		}
		b.after(t, time.Second, "Warning EvictionThresholdMet Attempting to reclaim memory",
			"evict small in 1s, disrupted true: The node was low on resource: memory. Th")
		b.do(func() { b.memory = 500 })
		b.after(t, time.Minute-2*time.Second)
		b.after(t, 3*Period, "MemoryPressure false")
		reclaims, decided := 0, []string(nil)
		b.do(func() { reclaims, decided = b.reclaims, b.decided })
		if reclaims != 0 {
			t.Error("images were removed for memory's sake")
		}
		if !slices.Equal(decided, []string{"memory.available 0s", "memory.available 0s"}) {
			t.Errorf("decided by %q", decided)
		}
	})
}

// The pods' share of memory may run out while the host has plenty: a pod is evicted before the
// kernel kills one.
func TestAllocatableMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := run(t, threshold(t, pod.MemoryAvailable, "100"), threshold(t, pod.AllocatableMemory, "100"))
		b.add("large", 300, nil)
		b.do(func() { b.memory, b.podsHave = 900, 400 })
		b.after(t, Period)
		b.do(func() { b.podsHave = 401 })
		b.after(t, Period, "MemoryPressure true", "Warning EvictionThresholdMet Attempting to reclaim memory",
			"evict large in 1s, disrupted true: The node was low on resource: memory. Th")
		b.do(func() {
			if b.measured < 3 {
				t.Errorf("the counter of the kernel's kills was called %d times", b.measured)
			}
		})
	})
}

// While one evicted pod does not end, another one is evicted. Once a pod has ended, the manager
// forgets it.
func TestAPodThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := run(t, threshold(t, pod.MemoryAvailable, "10%"))
		b.add("stuck", 500, nil)
		b.add("next", 300, nil)
		b.after(t, Period)
		b.do(func() { b.memory, b.lasts = 90, time.Hour })
		b.after(t, Period, "MemoryPressure true", "Warning EvictionThresholdMet Attempting to reclaim memory",
			"evict stuck in 1s, disrupted true: The node was low on resource: memory. Th")
		b.do(func() { b.lasts = time.Second })
		b.after(t, endPatience, "Warning EvictionThresholdMet Attempting to reclaim memory",
			"evict next in 1s, disrupted true: The node was low on resource: memory. Th")
		b.after(t, Period, "Warning EvictionThresholdMet Attempting to reclaim memory")
		b.do(func() { b.pods = nil })
		b.after(t, Period, "Warning EvictionThresholdMet Attempting to reclaim memory")
		if len(m.ending) != 0 {
			t.Errorf("it remembers %v", m.ending)
		}
	})
}

// No other pod is evicted within the grace period of an evicted one. If that is too long, the same
// pod is evicted again with a shorter one.
func TestAPodThatHasTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soft, hard := threshold(t, pod.MemoryAvailable, "20%"), threshold(t, pod.MemoryAvailable, "10%")
		soft.Soft = true
		b, m := run(t, soft, hard)
		b.do(func() { m.cfg.MaxGrace = 2 * time.Minute })
		long := int64(120)
		b.add("slow", 500, func(p *v1.Pod) { p.Spec.TerminationGracePeriodSeconds = &long })
		b.add("next", 300, nil)
		b.after(t, Period)
		b.do(func() { b.memory, b.lasts = 150, time.Hour })
		b.after(t, Period, "MemoryPressure true", "Warning EvictionThresholdMet Attempting to reclaim memory",
			"evict slow in 2m0s, disrupted true: The node was low on resource: memory. Th")
		b.heardFor(2 * time.Minute)
		if heard := b.heard(); strings.Contains(heard, "evict") {
			t.Fatalf("before its time is over:\n%s", heard)
		}
		b.do(func() { b.memory = 90 })
		b.heardFor(endPatience) // after that it counts as a pod that does not end
		if heard := b.heard(); !strings.Contains(heard, "evict slow in 1s") || strings.Contains(heard, "evict next") {
			t.Errorf("once the hard threshold is met:\n%s", heard)
		}
	})
}

// Unused images are removed before pods are evicted, if that helps.
func TestDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := run(t, threshold(t, pod.NodeFsAvailable, "10%"))
		b.add("idle", 1, nil)
		b.add("writer", 1, func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		})
		b.do(func() { b.dirs["/root/pods/writer/volumes/kubernetes.io~empty-dir/v"] = 500 })
		b.do(func() { b.dirs["/logs/idle/app"] = 100 })
		b.do(func() { b.free, b.gives = 50, 100 })
		b.after(t, Period, "DiskPressure true", "Warning EvictionThresholdMet Attempting to reclaim ephemeral-storage")
		var reclaims, walks int
		b.do(func() { reclaims, walks = b.reclaims, b.walks })
		if reclaims != 1 || walks != 0 {
			t.Errorf("images were removed %d times, directories were looked at %d times", reclaims, walks)
		}
		b.do(func() { b.free, b.gives = 50, 0 })
		b.after(t, Period, "Warning EvictionThresholdMet Attempting to reclaim ephemeral-storage",
			"evict writer in 1s, disrupted true: The node was low on resource: ephemeral-")
		b.do(func() { b.free = 900 })
		b.after(t, 2*time.Minute, "DiskPressure false")
		b.do(func() { b.own, b.free, b.lasts = true, 50, time.Minute }) // images on another file system do not help the pods' one
		var was, is int
		b.do(func() { was = b.reclaims })
		b.after(t, Period, "DiskPressure true", "Warning EvictionThresholdMet Attempting to reclaim ephemeral-storage",
			"evict idle in 1s, disrupted true: The node was low on resource: ephemeral-")
		b.do(func() { is = b.reclaims })
		if is != was {
			t.Error("images of another file system were removed")
		}
	})
}

// A soft threshold waits for its grace period, and gives pods theirs, up to MaxGrace.
func TestSoft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soft := threshold(t, pod.MemoryAvailable, "500")
		soft.Soft, soft.Grace = true, 25*time.Second
		b, _ := run(t, soft)
		b.add("p", 1, nil)
		b.do(func() { b.memory = 400 })
		b.after(t, 3*Period, "MemoryPressure true")
		b.after(t, Period+time.Second/2, "Warning EvictionThresholdMet Attempting to reclaim memory",
			"evict p in 10s, disrupted true: The node was low on resource: memory. Th")
	})
}

// While the host cannot be measured, no condition changes and no pod is evicted, however long.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := run(t, threshold(t, pod.MemoryAvailable, "10%"))
		b.add("p", 500, nil)
		b.do(func() { b.memory, b.err = 1, host.ErrUnreachable })
		b.after(t, time.Hour)
		b.do(func() { b.err = nil })
		b.do(func() { b.pods = nil })
		b.after(t, Period, "MemoryPressure true", "Warning EvictionThresholdMet Attempting to reclaim memory")
		b.do(func() { b.memory, b.err = 900, host.ErrUnreachable })
		b.after(t, time.Hour)
		if len(m.Conditions()) != 1 {
			t.Errorf("the conditions are %v", m.Conditions())
		}
	})
}

// Pods' own limits are checked without any pressure, and only for pods that have some.
func TestOwnLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := run(t, threshold(t, pod.MemoryAvailable, "10%"))
		b.add("plain", 1, nil)
		b.after(t, time.Minute)
		walks := 0
		b.do(func() { walks = b.walks })
		if walks != 0 {
			t.Error("directories were measured though no limit needs it")
		}
		limit := resource.MustParse("100")
		b.add("limited", 1, func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
		})
		b.do(func() { b.dirs["/root/pods/limited/volumes/kubernetes.io~empty-dir/v"] = 100 })
		b.after(t, 2*Period)
		b.do(func() { b.dirs["/root/pods/limited/volumes/kubernetes.io~empty-dir/v"] = 101 })
		b.after(t, 2*Period, `evict limited in 1s, disrupted false: Usage of EmptyDir volume "v" exceeds the`)
	})
}
