package hosttest

import (
	"context"
	"strconv"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

func testMeters(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	f, err := m.h.Facts(ctx)
	testutil.Must(t, err)
	kills := m.output(t, "sh", "-c", `grep -s "^oom_kill " /proc/vmstat | cut -d " " -f 2`)
	got, err := m.h.Measure(ctx, "", d, d+"/is not/there", "/proc")
	testutil.Must(t, err)
	if got.MemoryBytes != f.MemoryBytes || got.WorkingSetBytes <= 0 || got.WorkingSetBytes >= got.MemoryBytes {
		t.Errorf("%d of %d bytes of memory are used, the machine has %d", got.WorkingSetBytes, got.MemoryBytes, f.MemoryBytes)
	}
	// The kernel may have killed more in the meantime.
	if n, err := strconv.ParseInt(kills, 10, 64); err != nil && got.OOMKills != -1 || err == nil && (got.OOMKills < n || got.OOMKills > n+100) {
		t.Errorf("the kernel has killed %q, and %d are measured", kills, got.OOMKills)
	}
	if got.CgroupBytes != 0 || got.CgroupWorkingSetBytes != 0 {
		t.Errorf("of no cgroup %d of %d bytes are used", got.CgroupWorkingSetBytes, got.CgroupBytes)
	}
	for _, bad := range []string{"relative", "/a/../b"} {
		if _, err := m.h.Measure(ctx, bad, d); err == nil {
			t.Errorf("cgroup %q was measured", bad)
		}
	}
	if got.PidsMax != f.PidsMax || got.Pids < 1 || got.Pids >= got.PidsMax {
		t.Errorf("%d of %d threads, the machine has %d", got.Pids, got.PidsMax, f.PidsMax)
	}
	if len(got.FileSystems) != 3 {
		t.Fatalf("file systems: %+v", got.FileSystems)
	}
	one, parent, proc := got.FileSystems[0], got.FileSystems[1], got.FileSystems[2]
	if one.Device == 0 || one.Bytes <= 0 || one.FreeBytes < 0 || one.FreeBytes > one.Bytes || one.InodesFree > one.Inodes {
		t.Errorf("the file system of %s: %+v", d, one)
	}
	if parent.Device != one.Device || parent.Bytes != one.Bytes {
		t.Errorf("the file system of what is not there is %+v, of its parent %+v", parent, one)
	}
	if proc.Device == one.Device {
		t.Errorf("/proc is of the device %d, which %s is of", proc.Device, d)
	}

	m.write(t, d+"/full/a file", string(make([]byte, 300<<10)))
	m.write(t, d+"/full/sub/small", "x")
	m.run(t, "ln", d+"/full/a file", d+"/full/the same")
	m.run(t, "ln", "-s", "/", d+"/full/everything")
	testutil.Must(t, m.h.MkdirAll(ctx, d+"/empty", 0o755, nil))
	m.write(t, d+"/-n", "a name that is no option")
	m.run(t, "ln", "-s", "/usr", d+"/link")
	used, err := m.h.DiskUsage(ctx, d+"/full", d+"/empty", d+"/none", d+"/link")
	testutil.Must(t, err)
	if len(used) != 4 {
		t.Fatalf("usage: %+v", used)
	}
	if u := used[0]; u.Bytes < 300<<10 || u.Bytes > 400<<10 || u.Inodes != 5 {
		t.Errorf("two directories, two files, one of them twice, and a link: %+v", u)
	}
	if u := used[1]; u.Inodes != 1 || u.Bytes > 64<<10 {
		t.Errorf("an empty directory: %+v", u)
	}
	for _, u := range used[2:] {
		if u.Inodes > 1 || u.Bytes > 64<<10 {
			t.Errorf("a directory that is not there, or that another names: %+v", u)
		}
	}
	if none, err := m.h.DiskUsage(ctx); err != nil || len(none) != 0 {
		t.Errorf("of nothing: %+v, %v", none, err)
	}
}
