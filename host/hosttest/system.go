package hosttest

import (
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	inner "github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

const timeout = 20 * time.Second

func testMounts(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	testutil.Must(t, m.h.Unmount(ctx, d))
	testutil.Must(t, m.h.Unmount(ctx, d+"/none"))
	if !m.isRoot {
		t.Skip("only root mounts")
	}
	a := host.Mount{Source: "tmpfs", Target: d + "/with blank", Type: "tmpfs", Options: []string{"size=64k", "mode=0751", "noexec"}}
	if err := m.h.Mount(ctx, a); err != nil {
		t.Skipf("this machine lets us mount nothing: %v", err)
	}
	t.Cleanup(func() {
		for _, p := range []string{a.Target + "/in", a.Target, d + "/bound", d + "/file"} {
			if err := m.h.Unmount(ctx, p); err != nil {
				t.Error(err)
			}
		}
	})
	if st, err := m.h.Stat(ctx, a.Target); err != nil || st.Mode.Perm() != 0o751 {
		t.Errorf("stat says %+v, %v", st, err)
	}
	m.write(t, a.Target+"/file", "x")
	testutil.Must(t, m.h.Mount(ctx, a)) // the second mount changes nothing
	m.wantFile(t, a.Target+"/file", "x")

	b := host.Mount{Source: "tmpfs", Target: a.Target + "/in", Type: "tmpfs"}
	testutil.Must(t, m.h.Mount(ctx, b))
	c := host.Mount{Source: a.Target, Target: d + "/bound", Type: "bind", Options: []string{"ro"}}
	testutil.Must(t, m.h.Mount(ctx, c))
	testutil.Must(t, m.h.Mount(ctx, c))
	m.wantFile(t, c.Target+"/file", "x")
	if err := m.h.WriteFile(ctx, c.Target+"/file", []byte("y"), 0o644); err == nil {
		t.Error("a read-only bind was written to")
	}
	m.write(t, d+"/source", "file")
	testutil.Must(t, m.h.Mount(ctx, host.Mount{Source: d + "/source", Target: d + "/file", Type: "bind"}))
	m.wantFile(t, d+"/file", "file")

	m.run(t, "ln", "-s", d, d+"-link")
	for _, as := range []string{d, d + "-link"} {
		list, err := m.h.ListMounts(ctx, as)
		testutil.Must(t, err)
		var targets []string
		for _, e := range list {
			targets = append(targets, strings.TrimPrefix(e.Target, as))
		}
		if len(targets) != 4 || targets[0] != "/with blank/in" || !slices.Contains(targets, "/with blank") ||
			!slices.Contains(targets, "/bound") || !slices.Contains(targets, "/file") {
			t.Errorf("mounts below %s: %q", as, targets)
		}
	}
	testutil.Must(t, m.h.Remove(ctx, d+"-link"))
	at, err := m.h.ListMounts(ctx, a.Target)
	testutil.Must(t, err)
	if len(at) != 2 || at[1].Target != a.Target || at[1].Type != "tmpfs" {
		t.Errorf("mounts at and below the target: %+v", at)
	}

	testMakeShared(t, m)
	testBusyMounts(t, m)
	testMountsBelow(t, m)

	// Memory that is in use is unmounted all the same.
	f, err := m.h.Open(ctx, a.Target+"/file")
	testutil.Must(t, err)
	defer f.Close()
	testutil.Must(t, m.h.Unmount(ctx, b.Target))
	testutil.Must(t, m.h.Unmount(ctx, a.Target))
	testutil.Must(t, m.h.Unmount(ctx, a.Target))
	if m.exists(t, a.Target+"/file") {
		t.Error("the tmpfs is still there")
	}
	testutil.Must(t, m.h.Unmount(ctx, c.Target))
	testutil.Must(t, m.h.Unmount(ctx, d+"/file"))
	if list, err := m.h.ListMounts(ctx, d); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
}

// testMakeShared: MakeShared makes a directory in a private mount a shared mount of its own,
// once. Mount sets the propagation of a mount that exists already.
func testMakeShared(t *testing.T, m *machine) {
	ctx := context.Background()
	private := host.Mount{Source: "tmpfs", Target: m.dir(t) + "/private", Type: "tmpfs", Options: []string{"rprivate"}}
	testutil.Must(t, m.h.Mount(ctx, private))
	dir := private.Target + "/root dir"
	shared := func(at string) (mounts int, yes bool) {
		data, err := m.h.ReadFile(ctx, "/proc/self/mountinfo", 1<<22)
		testutil.Must(t, err)
		entries, err := inner.ParseMountInfo(data)
		testutil.Must(t, err)
		for _, e := range entries {
			if e.Mountpoint == at {
				mounts++
				yes = inner.Propagates(e)
			}
		}
		return mounts, yes
	}
	for range 2 {
		testutil.Must(t, m.h.MakeShared(ctx, dir))
		if n, yes := shared(dir); n != 1 || !yes {
			t.Errorf("%d mounts on %s, shared is %v", n, dir, yes)
		}
	}
	testutil.Must(t, m.h.MakeShared(ctx, dir+"/below"))
	if n, _ := shared(dir + "/below"); n != 0 {
		t.Error("what is shared already was mounted on itself")
	}
	for range 2 {
		testutil.Must(t, m.h.UndoShared(ctx, dir))
		if n, _ := shared(dir); n != 0 {
			t.Errorf("%d mounts on %s, which is not shared any more", n, dir)
		}
	}
	if _, yes := shared(private.Target); yes {
		t.Error("a private mount was made shared")
	}
	private.Options = []string{"rshared"}
	testutil.Must(t, m.h.Mount(ctx, private))
	if n, yes := shared(private.Target); n != 1 || !yes {
		t.Errorf("a mount that was there: %d mounts, shared is %v", n, yes)
	}
	testutil.Must(t, m.h.UndoShared(ctx, private.Target))
	if n, _ := shared(private.Target); n != 1 {
		t.Error("a mount of a file system was taken for one of a directory on itself")
	}
	testutil.Must(t, m.h.Unmount(ctx, private.Target))
}

// testMountsBelow: a mount with another one below it stays, and so does that one. The directory of a
// bind mount elsewhere may have the same path.
func testMountsBelow(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	outer, inner, elsewhere := d+"/with blank", d+"/with blank/in", d+"/elsewhere"
	testutil.Must(t, m.h.MkdirAll(ctx, inner, 0o755, nil))
	testutil.Must(t, m.h.MkdirAll(ctx, d+"/source/in", 0o755, nil))
	testutil.Must(t, m.h.Mount(ctx, host.Mount{Source: inner, Target: elsewhere, Type: "bind"}))
	for _, mount := range []host.Mount{
		{Source: "tmpfs", Target: outer, Type: "tmpfs"},
		{Source: d + "/source", Target: outer, Type: "bind"},
	} {
		testutil.Must(t, m.h.Mount(ctx, mount))
		testutil.Must(t, m.h.Mount(ctx, host.Mount{Source: "tmpfs", Target: inner, Type: "tmpfs"}))
		if err := m.h.Unmount(ctx, outer); !errors.Is(err, host.ErrMountInside) || errors.Is(err, host.ErrBusy) {
			t.Errorf("%s with a mount below it: %v", mount.Type, err)
		}
		if list, err := m.h.ListMounts(ctx, outer); err != nil || len(list) != 2 {
			t.Errorf("%s: left are %v, %v", mount.Type, list, err)
		}
		testutil.Must(t, m.h.Unmount(ctx, inner))
		m.write(t, outer+"/file", "x")
		f, err := m.h.Open(ctx, outer+"/file")
		testutil.Must(t, err)
		if err := m.h.Unmount(ctx, outer); errors.Is(err, host.ErrMountInside) || err != nil && !errors.Is(err, host.ErrBusy) {
			t.Errorf("%s without a mount below it, in use: %v", mount.Type, err)
		}
		testutil.Must(t, f.Close())
		testutil.Must(t, m.h.Unmount(ctx, outer))
	}
	testutil.Must(t, m.h.Unmount(ctx, elsewhere))
}

// testBusyMounts: a mount in use stays if data could be lost, and the error names its users.
func testBusyMounts(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	testutil.Must(t, m.h.MkdirAll(ctx, d+"/held/in", 0o755, nil))
	for _, c := range []struct {
		name  string
		mount host.Mount
		stays bool
	}{
		{"of a disk", host.Mount{Source: d + "/held", Type: "bind"}, true},
		{"of a disk, read-only", host.Mount{Source: d + "/held", Type: "bind", Options: []string{"ro"}}, false},
		{"in memory", host.Mount{Source: "tmpfs", Type: "tmpfs"}, false},
	} {
		c.mount.Target = d + "/with blank"
		testutil.Must(t, m.h.Mount(ctx, c.mount))
		list, err := m.h.ListMounts(ctx, c.mount.Target)
		testutil.Must(t, err)
		stays := c.stays && list[0].Type != "tmpfs" && list[0].Type != "ramfs" // the directory of the tests may be in memory
		p, err := m.h.Start(ctx, "sh", "-c", `cd "$1" && exec cat`, "sh", c.mount.Target)
		testutil.Must(t, err)
		if _, err := p.Write([]byte("here\n")); err != nil { // the echo comes from cat, no longer from sh
			t.Fatalf("%s: %v", c.name, err)
		}
		if _, err := io.ReadFull(p, make([]byte, len("here\n"))); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		err = m.h.Unmount(ctx, c.mount.Target)
		var busy *host.BusyError
		switch {
		case !stays && err != nil:
			t.Errorf("%s, in use: %v", c.name, err)
		case stays && (!errors.As(err, &busy) || !errors.Is(err, host.ErrBusy)):
			t.Errorf("%s, in use: %v", c.name, err)
		case stays && (busy.Target != c.mount.Target || busy.Type != list[0].Type || len(busy.Users) != 1 || !strings.HasSuffix(busy.Users[0], " (cat)")):
			t.Errorf("%s, in use: %+v", c.name, busy)
		}
		left, err := m.h.ListMounts(ctx, d)
		testutil.Must(t, err)
		if (len(left) > 0) != stays {
			t.Errorf("%s, in use: left are %+v", c.name, left)
		}
		testutil.Must(t, p.Close())
		// The process ends shortly after its input was closed.
		deadline := time.Now().Add(timeout)
		for err = m.h.Unmount(ctx, c.mount.Target); errors.Is(err, host.ErrBusy) && time.Now().Before(deadline); {
			err = m.h.Unmount(ctx, c.mount.Target)
		}
		testutil.Must(t, err)
	}
}

func testCgroups(t *testing.T, m *machine) {
	ctx := context.Background()
	top := "/bowline-hosttest-" + path.Base(m.dir(t))
	for _, bad := range []string{"", "/", "relative", top + "/..", top + "//x", top + "/"} {
		if err := m.h.EnsureCgroup(ctx, bad, host.CgroupResources{}); err == nil {
			t.Errorf("cgroup %q was made", bad)
		}
		if err := m.h.RemoveCgroup(ctx, bad, true); err == nil {
			t.Errorf("cgroup %q was removed", bad)
		}
	}
	if !m.isRoot {
		t.Skip("only root makes cgroups")
	}
	p := top + "/burstable/pod1"
	if err := m.h.EnsureCgroup(ctx, top, host.CgroupResources{}); err != nil {
		t.Skipf("this machine lets us make no cgroup: %v", err)
	}
	t.Cleanup(func() {
		if err := m.h.RemoveCgroup(ctx, top, false); err != nil {
			t.Error(err)
		}
	})
	testutil.Must(t, m.h.RemoveCgroup(ctx, top+"/none", true))
	if list, err := m.h.ListCgroups(ctx, top+"/none"); err != nil || len(list) != 0 {
		t.Errorf("children of a cgroup that is not there: %v, %v", list, err)
	}
	limits := host.CgroupResources{CPUShares: 512, CPUQuotaUS: 50_000, CPUPeriodUS: 100_000, MemoryBytes: 64 << 20, PidsMax: 100}
	testutil.Must(t, m.h.EnsureCgroup(ctx, p, limits))
	testutil.Must(t, m.h.EnsureCgroup(ctx, p, limits))
	limits.CPUQuotaUS, limits.MemoryBytes = 80_000, 96<<20
	testutil.Must(t, m.h.EnsureCgroup(ctx, p, limits))
	testutil.Must(t, m.h.EnsureCgroup(ctx, top+"/burstable/pod2", host.CgroupResources{MemoryBytes: -1, CPUQuotaUS: -1, PidsMax: -1}))

	for path, want := range map[string][]string{top: {"burstable"}, top + "/burstable": {"pod1", "pod2"}, p: {}} {
		got, err := m.h.ListCgroups(ctx, path)
		testutil.Must(t, err)
		if !slices.Equal(got, want) && len(got)+len(want) > 0 {
			t.Errorf("children of %s are %q, want %q", path, got, want)
		}
	}
	for path, want := range map[string]int64{p: 96 << 20, top + "/burstable/pod2": 0, top + "/none": 0} {
		got, err := m.h.Measure(ctx, path)
		testutil.Must(t, err)
		if got.CgroupBytes != want || got.CgroupWorkingSetBytes < 0 || got.CgroupWorkingSetBytes > want {
			t.Errorf("of %s %d of %d bytes are used, want %d", path, got.CgroupWorkingSetBytes, got.CgroupBytes, want)
		}
	}
	facts, err := m.h.Facts(ctx)
	testutil.Must(t, err)
	// The limits are in the kernel, wherever the hierarchies are mounted. Other cgroups may
	// appear and disappear while find walks.
	find := func(file, want string) {
		t.Helper()
		got := m.output(t, "sh", "-c", `find /sys/fs/cgroup -path "*$1/$2" -exec cat {} + 2>/dev/null || :`, "sh", p, file)
		if got != want {
			t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
	if facts.CgroupVersion == 2 {
		find("memory.max", strconv.Itoa(96<<20))
		find("cpu.max", "80000 100000")
		find("cpu.weight", "20")
	} else {
		find("memory.limit_in_bytes", strconv.Itoa(96<<20))
		find("cpu.cfs_quota_us", "80000")
		find("cpu.shares", "512")
		// No process can enter a cpuset that has no CPUs.
		if sets := m.output(t, "sh", "-c", `find /sys/fs/cgroup -path "*$1/cpuset.[cm][pe][um]s" -exec sh -c '[ -n "$(cat "$0")" ] || echo "$0"' {} \; 2>/dev/null || :`, "sh", p); sets != "" {
			t.Errorf("empty: %s", sets)
		}
	}
	find("pids.max", "100")

	// A process inside keeps the cgroup, unless it may be killed; when it ends, the cgroup can
	// be removed.
	stop := path.Join(m.root, "cgroup-stop")
	m.run(t, "mkfifo", stop)
	done := make(chan error, 1)
	begin := func() {
		_, err := m.h.Run(ctx, host.Command{Timeout: timeout, Args: []string{"sh", "-c",
			`for f in $(find /sys/fs/cgroup -path "*$1/cgroup.procs"); do echo $$ > $f; done; read x < "$2"`, "sh", p, stop}})
		done <- err
	}
	inside := func() {
		testutil.Eventually(t, "the process is in its cgroups", func() bool {
			return m.output(t, "sh", "-c", `find /sys/fs/cgroup -path "*$1/cgroup.procs" -exec cat {} + 2>/dev/null | sort -u`, "sh", p) != ""
		})
	}
	go begin()
	inside()
	if err := m.h.RemoveCgroup(ctx, top, false); err == nil {
		t.Error("a cgroup with a process was removed")
	}
	m.run(t, "sh", "-c", `echo > "$1"`, "sh", stop)
	testutil.Must(t, <-done)
	testutil.Must(t, m.h.RemoveCgroup(ctx, top, false))
	testutil.Must(t, m.h.EnsureCgroup(ctx, p, limits))
	go begin()
	inside()
	testutil.Must(t, m.h.RemoveCgroup(ctx, top, true))
	<-done // killed: the result of Run does not matter here
	if left := m.output(t, "sh", "-c", `find /sys/fs/cgroup -path "*$1" 2>/dev/null || :`, "sh", top); left != "" {
		t.Errorf("left: %s", left)
	}
}

func testRun(t *testing.T, m *machine) {
	ctx := context.Background()
	r, err := m.h.Run(ctx, host.Command{Args: []string{"sh", "-c", `cat; echo "$VAR"; pwd; echo oops >&2; exit 3`},
		Env: []string{"VAR=a b'c"}, Dir: "/", Stdin: []byte("in\x00put\n"), Timeout: timeout})
	testutil.Must(t, err)
	if string(r.Stdout) != "in\x00put\na b'c\n/\n" || string(r.Stderr) != "oops\n" || r.ExitCode != 3 {
		t.Errorf("result %+v", r)
	}
	odd := `it's "odd" $HOME * \`
	if got := m.output(t, "printf", "%s", odd); got != odd {
		t.Errorf("an argument arrived as %q", got)
	}
	if _, err := m.h.Run(ctx, host.Command{Args: []string{"true"}}); err == nil {
		t.Error("a command without a timeout was run")
	}
	if _, err := m.h.Run(ctx, host.Command{Timeout: timeout}); err == nil {
		t.Error("no command was run")
	}
	r, err = m.h.Run(ctx, host.Command{Args: []string{"/no/such/program"}, Timeout: timeout})
	if err == nil && r.ExitCode != 127 {
		t.Errorf("a missing program: %+v", r)
	}
	r, err = m.h.Run(ctx, host.Command{Args: []string{"sh", "-c", "kill -TERM $$"}, Timeout: timeout})
	if err != nil || r.ExitCode != 143 {
		t.Errorf("killed by SIGTERM: %+v, %v", r, err)
	}
	r, err = m.h.Run(ctx, host.Command{Args: []string{"head", "-c", "3000000", "/dev/zero"}, Timeout: timeout})
	testutil.Must(t, err)
	if len(r.Stdout) != 1<<20 || r.ExitCode != 0 {
		t.Errorf("%d bytes of output and exit code %d, want 1 MiB and 0", len(r.Stdout), r.ExitCode)
	}
	t.Run("timeout kills the whole group", func(t *testing.T) {
		pids := path.Join(m.dir(t), "pid")
		began := time.Now()
		_, err := m.h.Run(ctx, host.Command{Timeout: time.Second,
			Args: []string{"sh", "-c", `sleep 1000 & echo $! > "$1"; wait`, "sh", pids}})
		wantErr(t, err, context.DeadlineExceeded, errors.Is)
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("took %s", took)
		}
		child, err := m.h.ReadFile(ctx, pids, 100)
		testutil.Must(t, err)
		pid := strings.TrimSpace(string(child))
		testutil.Eventually(t, "the child is gone", func() bool {
			got := m.output(t, "sh", "-c", `if [ -d /proc/$1 ]; then cut -d' ' -f3 /proc/$1/stat; else echo gone; fi`, "sh", pid)
			return got == "gone" || got == "Z" // in a container without an init nothing reaps it
		})
	})
	t.Run("cancel", func(t *testing.T) {
		started := path.Join(m.dir(t), "started")
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() {
			_, err := m.h.Run(ctx, host.Command{Args: []string{"sh", "-c", `: > "$1"; sleep 1000`, "sh", started}, Timeout: time.Hour})
			done <- err
		}()
		testutil.Eventually(t, "the command runs", func() bool { return m.exists(t, started) })
		cancel()
		select {
		case err := <-done:
			wantErr(t, err, context.Canceled, errors.Is)
		case <-time.After(timeout):
			t.Fatal("a cancelled command continues")
		}
	})
}

func testFacts(t *testing.T, m *machine) {
	ctx := context.Background()
	f, err := m.h.Facts(ctx)
	testutil.Must(t, err)
	if want := m.output(t, "uname", "-n"); f.Hostname != want {
		t.Errorf("host name %q, want %q", f.Hostname, want)
	}
	if want := m.output(t, "uname", "-r"); f.KernelVersion != want {
		t.Errorf("kernel %q, want %q", f.KernelVersion, want)
	}
	if want := m.output(t, "cat", "/proc/sys/kernel/random/boot_id"); f.BootID != want {
		t.Errorf("boot ID %q, want %q", f.BootID, want)
	}
	if f.OS != "linux" || f.Architecture == "" || f.OSImage == "" {
		t.Errorf("OS %q, architecture %q, image %q", f.OS, f.Architecture, f.OSImage)
	}
	if f.CPUs < 1 || f.MemoryBytes < 16<<20 || f.PidsMax < 100 || f.SwapBytes < 0 {
		t.Errorf("%d CPUs, %d bytes of memory, %d of swap, %d pids", f.CPUs, f.MemoryBytes, f.SwapBytes, f.PidsMax)
	}
	if want := strings.Fields(m.output(t, "sh", "-c", `tail -n +2 /proc/swaps | cut -d" " -f1`)); !slices.Equal(f.Swaps, want) {
		t.Errorf("swap areas %q, want %q", f.Swaps, want)
	}
	if want := m.output(t, "sh", "-c", `[ ! -e /sys/fs/selinux/enforce ] || [ "$(tr -d "\\0\\n" </proc/self/attr/current)" = kernel ] || echo yes`); f.SELinux != (want == "yes") {
		t.Errorf("SELinux %v, want %q", f.SELinux, want)
	}
	if want := m.output(t, "sh", "-c", `find /sys/fs/cgroup -maxdepth 3 \( -name memory.swap.max -o -name memory.memsw.limit_in_bytes \) 2>/dev/null | head -n 1`); f.SwapControl != (want != "") {
		t.Errorf("swap control %v, want %q", f.SwapControl, want)
	}
	var throttles []int
	for dir := range strings.FieldsSeq(m.output(t, "sh", "-c", `ls -d /sys/devices/system/cpu/cpu*/thermal_throttle 2>/dev/null || :`)) {
		cpu, err := strconv.Atoi(strings.TrimPrefix(path.Base(path.Dir(dir)), "cpu"))
		testutil.Must(t, err)
		throttles = append(throttles, cpu)
	}
	if slices.Sort(throttles); !slices.Equal(f.ThermalThrottle, throttles) {
		t.Errorf("CPUs with thermal_throttle %v, want %v", f.ThermalThrottle, throttles)
	}
	if f.RootDiskBytes < 1<<20 {
		t.Errorf("the disk has %d bytes", f.RootDiskBytes)
	}
	for _, ip := range f.Addresses {
		if !ip.IsGlobalUnicast() {
			t.Errorf("address %s", ip)
		}
	}
	if off, unc, err := m.h.ClockOffset(ctx); err != nil || unc < 0 || off.Abs() > 24*time.Hour {
		t.Errorf("clock offset %s ± %s, %v", off, unc, err)
	}
	if m.h.Name() == "" {
		t.Error("the machine has no name")
	}
}

func testLock(t *testing.T, m *machine) {
	ctx := context.Background()
	p := m.dir(t) + "/made/owner.lock"
	one, err := m.h.Lock(ctx, p, []byte("one, the first of all holders"))
	testutil.Must(t, err)
	other := m.another(t)
	for _, h := range []host.Host{m.h, other} {
		_, err := h.Lock(ctx, p, []byte("two"))
		wantErr(t, err, host.ErrLocked, errors.Is)
		var locked *host.LockedError
		if !errors.As(err, &locked) || string(locked.Holder) != "one, the first of all holders" || locked.Path != p {
			t.Errorf("the error is %#v", err)
		}
	}
	select {
	case <-one.Lost():
		t.Error("a held lock is lost")
	default:
	}
	testutil.Must(t, one.Close())
	two, err := other.Lock(ctx, p, []byte("two"))
	testutil.Must(t, err)
	m.wantFile(t, p, "two") // no rest of the longer one before
	// When the holder's file is removed, the next caller can lock a new file.
	testutil.Must(t, other.Remove(ctx, p))
	three, err := m.h.Lock(ctx, p, []byte("three"))
	testutil.Must(t, err)
	testutil.Receive(t, two.Lost(), timeout, "a lock whose file was replaced is not lost")
	testutil.Must(t, two.Close())
	_, err = other.Lock(ctx, p, []byte("four"))
	wantErr(t, err, host.ErrLocked, errors.Is)
	testutil.Must(t, three.Close())
}

func testLockProcess(t *testing.T, m *machine) {
	ctx := context.Background()
	p := m.dir(t) + "/owner.lock"
	kill := second(t, "lock", p)
	_, err := m.h.Lock(ctx, p, []byte("ours"))
	var locked *host.LockedError
	if !errors.As(err, &locked) || string(locked.Holder) != "the second process" {
		t.Fatalf("while another process holds the lock: %v", err)
	}
	kill() // with SIGKILL, so it cannot release anything itself
	var l host.Lock
	testutil.Eventually(t, "the lock of a killed process is free", func() bool {
		l, err = m.h.Lock(ctx, p, []byte("ours"))
		return err == nil
	})
	m.wantFile(t, p, "ours") // no rest of the longer content
	testutil.Must(t, l.Close())
}
