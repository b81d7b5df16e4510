package hosttest

import (
	"context"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func testSample(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	before, err := m.h.Sample(ctx, host.SampleRequest{})
	testutil.Must(t, err)
	testSampledNode(t, m, before)
	if before.FileSystems != nil || before.Interfaces != nil || before.Disks != nil || len(before.Cgroups) != 0 || before.Node.Memory.Mapped != host.Unknown {
		t.Errorf("more was read than what was asked for: %+v", before)
	}
	detail, err := m.h.Sample(ctx, host.SampleRequest{Detail: true, Paths: []string{d, "/proc", d + "/is not/there"}})
	testutil.Must(t, err)
	if len(detail.FileSystems) != 3 || detail.FileSystems[0].Bytes <= 0 || detail.FileSystems[1].Device == detail.FileSystems[0].Device || detail.FileSystems[2].Device != detail.FileSystems[0].Device {
		t.Errorf("file systems: %+v", detail.FileSystems)
	}
	if detail.Pids < 1 || detail.PidsMax < detail.Pids {
		t.Errorf("%d of %d threads", detail.Pids, detail.PidsMax)
	}
	if detail.Uptime < before.Uptime {
		t.Errorf("the host is up for %v, and then for %v", before.Uptime, detail.Uptime)
	}
	if disks := m.output(t, "sh", "-c", `cut -c 1-60 /proc/diskstats 2>/dev/null | wc -l`); disks != strconv.Itoa(len(detail.Disks)) {
		t.Errorf("%d disks, the kernel has %s", len(detail.Disks), disks)
	}
	for _, bad := range []string{"relative", "/a/../b", ""} {
		if _, err := m.h.Sample(ctx, host.SampleRequest{Trees: []string{bad}}); err == nil {
			t.Errorf("the cgroup %q was sampled", bad)
		}
	}
	testSampledCgroups(t, m, "/bowline-hosttest-"+path.Base(d))
}

// testSampledNode compares what is read without detail with /proc.
func testSampledNode(t *testing.T, m *machine, got host.Sampled) {
	f, err := m.h.Facts(context.Background())
	testutil.Must(t, err)
	up := m.output(t, "cut", "-d", ".", "-f", "1", "/proc/uptime")
	if want, err := strconv.ParseInt(up, 10, 64); err != nil || got.Uptime > time.Duration(want+1)*time.Second || got.Uptime < time.Duration(want-60)*time.Second {
		t.Errorf("the host is up for %v, it says %s s", got.Uptime, up)
	}
	if got.MemoryBytes != f.MemoryBytes || got.SwapBytes != f.SwapBytes {
		t.Errorf("%d bytes of memory and %d of swap, the host has %d and %d", got.MemoryBytes, got.SwapBytes, f.MemoryBytes, f.SwapBytes)
	}
	n := got.Node
	if n.CPU.Usage <= 0 || n.Memory.Usage <= 0 || n.Memory.Usage > f.MemoryBytes || n.Memory.WorkingSet() > n.Memory.Usage || n.Memory.Limit != f.MemoryBytes || n.Memory.Swap < 0 {
		t.Errorf("the node: %+v", n)
	}
}

// testSampledCgroups makes the cgroups of two pods as a runtime does, and a process that uses CPU and
// memory in one of them.
func testSampledCgroups(t *testing.T, m *machine, top string) {
	ctx := context.Background()
	if !m.isRoot {
		t.Skip("only root makes cgroups")
	}
	if err := m.h.EnsureCgroup(ctx, top, host.CgroupResources{}); err != nil {
		t.Skipf("this machine lets us make no cgroup: %v", err)
	}
	t.Cleanup(func() { testutil.Must(t, m.h.RemoveCgroup(ctx, top, true)) })
	const uid, other = "11111111-2222-3333-4444-555555555555", "11111111-2222-3333-4444-666666666666"
	pod, idle := top+"/burstable/pod"+uid, top+"/pod"+other
	container := pod + "/" + strings.Repeat("ab", 32)
	testutil.Must(t, m.h.EnsureCgroup(ctx, container, host.CgroupResources{MemoryBytes: 96 << 20, CPUQuotaUS: 50_000, CPUPeriodUS: 100_000, CPUShares: 512, PidsMax: 100}))
	testutil.Must(t, m.h.EnsureCgroup(ctx, idle+"/"+strings.Repeat("cd", 32)+"/nested", host.CgroupResources{}))

	p, err := m.h.Start(ctx, "sh", "-c", `for f in $(find /sys/fs/cgroup -path "*$1/cgroup.procs"); do echo $$ > $f; done
		i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done
		exec 3>&1
		{ head -c 8454144 /dev/zero; echo ready >&3; cat; } | tail -c 8388608 >/dev/null`, "sh", container)
	testutil.Must(t, err)
	defer p.Close()
	ready := make([]byte, 5)
	_, err = p.Read(ready)
	testutil.Must(t, err)

	r := host.SampleRequest{Trees: []string{top, top + "-none"}, Detail: true, OpenFiles: true}
	got, err := m.h.Sample(ctx, r)
	testutil.Must(t, err)
	want := []string{top, top + "/burstable", pod, container, idle, idle + "/" + strings.Repeat("cd", 32)}
	if have := slices.Sorted(maps.Keys(got.Cgroups)); !slices.Equal(have, slices.Sorted(slices.Values(want))) {
		t.Fatalf("cgroups %q, want %q", have, want)
	}
	c := got.Cgroups[container]
	if c.CPU.Usage < 10*time.Millisecond || c.CPU.Usage > time.Minute || c.CPU.User < 0 || c.CPU.System < 0 {
		t.Errorf("CPU %+v", c.CPU)
	}
	if c.Memory.Usage < 8<<20 || c.Memory.WorkingSet() < 8<<20 || c.Memory.Usage > 96<<20 || c.Memory.Anon < 8<<20 {
		t.Errorf("memory %+v", c.Memory)
	}
	if c.Memory.Limit != 96<<20 || c.CPU.QuotaUS != 50_000 || c.CPU.PeriodUS != 100_000 || c.CPU.Shares < 500 || c.CPU.Shares > 524 || c.PidsMax != 100 {
		t.Errorf("limits: memory %d, quota %d of %d, shares %d, pids %d", c.Memory.Limit, c.CPU.QuotaUS, c.CPU.PeriodUS, c.CPU.Shares, c.PidsMax)
	}
	if c.Processes < 1 || c.Pids < c.Processes || c.Pids > 100 {
		t.Errorf("%d processes with %d threads", c.Processes, c.Pids)
	}
	if c.Files < 3 || c.Sockets < 0 || c.Sockets > c.Files || c.FilesMax < c.Files {
		t.Errorf("%d open files, %d of them sockets, limit %d", c.Files, c.Sockets, c.FilesMax)
	}
	if up := got.Cgroups[pod]; up.Files != 0 || up.FilesMax != host.Unknown || got.Node.FilesMax < 64 {
		t.Errorf("the pod has %d open files, limit %d; the limit of init is %d", up.Files, up.FilesMax, got.Node.FilesMax)
	}
	if up := got.Cgroups[pod]; up.Memory.Limit != host.Unlimited || up.CPU.QuotaUS != host.Unlimited {
		t.Errorf("the pod: %+v", up)
	}
	if c := got.Cgroups[idle]; c.CPU.Usage != 0 || c.Processes != 0 {
		t.Errorf("a pod without a process: %+v", c)
	}
	// The process is in the network of the host.
	if n, ok := got.Networks[pod]; !slices.Equal(names(n), names(got.Interfaces)) || ok != (len(n) > 0) || len(got.Networks) > 1 {
		t.Errorf("networks %v, the host has %v", got.Networks, names(got.Interfaces))
	}
	r.HostNetwork = []string{other, uid}
	got, err = m.h.Sample(ctx, r)
	testutil.Must(t, err)
	if len(got.Networks) > 0 {
		t.Errorf("networks of pods on the host's: %v", got.Networks)
	}
	// One sample reads the pod before its container, whose process may still run.
	if later := got.Cgroups[pod]; later.CPU.Usage < c.CPU.Usage {
		t.Errorf("the pod used %v, its container %v before", later.CPU.Usage, c.CPU.Usage)
	}

	r.OpenFiles = false
	if without, err := m.h.Sample(ctx, r); err != nil || without.Cgroups[container].Files != host.Unknown || without.Cgroups[container].Processes < 1 {
		t.Errorf("without open files: %+v, %v", without.Cgroups[container], err)
	}
	r.Detail, r.OpenFiles = false, true
	brief, err := m.h.Sample(ctx, r)
	testutil.Must(t, err)
	b := brief.Cgroups[container]
	if b.CPU.Usage < c.CPU.Usage || b.Memory.WorkingSet() < 8<<20 || b.Memory.Anon < 8<<20 || b.Memory.Limit != 96<<20 {
		t.Errorf("without detail: %+v", b)
	}
	if b.Memory.Mapped != host.Unknown || b.Processes != host.Unknown || b.CPU.Shares != host.Unknown || b.Files != host.Unknown || len(brief.Networks) > 0 {
		t.Errorf("more than without detail: %+v", b)
	}
}

func names(interfaces []host.Interface) (out []string) {
	for _, i := range interfaces {
		out = append(out, i.Name)
	}
	return out
}
