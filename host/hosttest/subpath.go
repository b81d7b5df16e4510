package hosttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// mounts skips the test if this process may not mount on the host.
func (m *machine) mounts(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	if !m.isRoot {
		t.Skip("only root mounts")
	}
	probe := m.dir(t) + "/probe"
	if err := m.h.Mount(ctx, host.Mount{Source: "tmpfs", Target: probe, Type: "tmpfs"}); err != nil {
		t.Skipf("this machine lets us mount nothing: %v", err)
	}
	testutil.Must(t, m.h.Unmount(ctx, probe))
}

// volume is a directory with a neighbour that must never be visible, and targets for subPaths.
// Their mounts are removed after the test.
type volume struct{ root, targets string }

const canary = "outside"

func (m *machine) volume(t *testing.T) volume {
	t.Helper()
	d := m.dir(t)
	v := volume{root: d + "/vol ume", targets: d + "/targets"}
	t.Cleanup(func() {
		list, err := m.h.ListMounts(context.Background(), d)
		if err != nil {
			t.Error(err)
		}
		for _, mount := range list {
			if err := m.h.Unmount(context.Background(), mount.Target); err != nil {
				t.Error(err)
			}
		}
	})
	testutil.Must(t, m.h.MkdirAll(context.Background(), v.root, 0o775|fs.ModeSetgid|fs.ModeSticky, nil))
	m.write(t, d+"/canary", canary)
	m.write(t, d+"/secret/file", canary)
	m.write(t, v.root+"/dir/file", "inside")
	m.write(t, v.root+"/dir/sub dir/file", "deep")
	m.write(t, v.root+`/odd \name/back\slash 1`, "odd")
	m.run(t, "sh", "-c", `cd "$1" && mkfifo fifo dir/fifo && ln -s dir link && ln -s ../dir/file dir/up && ln -s "$1/dir" whole &&
		ln -s ../canary out && ln -s .. parent && ln -s "${1%/*}/secret" absolute && ln -s /etc etc && ln -s loop loop &&
		ln -s nowhere dangling && ln -s dir/../.. sly && ln -s "${1}x" near && mkdir "${1}x" && ln -s link/file chain && ln -s dir/ slash`, "sh", v.root)
	return v
}

func testSubPath(t *testing.T, m *machine) {
	ctx := context.Background()
	m.mounts(t)
	v := m.volume(t)
	n := 0
	bind := func(part string) (string, error) {
		n++
		target := fmt.Sprintf("%s/c/%d", v.targets, n)
		return target, m.h.BindSubPath(ctx, host.SubPath{Root: v.root, Path: part, Target: target})
	}
	for part, want := range map[string]string{
		"dir/file": "inside", "dir": "file:inside", "link": "file:inside", "dir/up": "inside", "chain": "inside", "link/sub dir": "file:deep",
		"whole": "file:inside", "whole/file": "inside", "slash": "file:inside", "parent/vol ume/dir": "", "link/up": "inside", `odd \name/back\slash 1`: "odd",
		"out": "", "parent": "", "parent/canary": "", "absolute": "", "absolute/file": "", "etc": "", "etc/passwd": "", "sly": "", "near": "", "loop": "",
	} {
		target, err := bind(part)
		if want == "" {
			if !errors.Is(err, host.ErrSubPathUnsafe) {
				t.Errorf("%q: error %v, want %v", part, err, host.ErrSubPathUnsafe)
			}
			if list, err := m.h.ListMounts(ctx, target); err != nil || len(list) > 0 {
				t.Errorf("%q was refused, and is mounted: %+v, %v", part, list, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", part, err)
			continue
		}
		if name, content, ok := strings.Cut(want, ":"); ok {
			m.wantFile(t, target+"/"+name, content)
		} else {
			m.wantFile(t, target, want)
		}
	}
	// A FIFO is mounted and not opened.
	for _, part := range []string{"fifo", "dir/fifo"} {
		if target, err := bind(part); err != nil {
			t.Errorf("%s: %v", part, err)
		} else if st, err := m.h.Stat(ctx, target); err != nil || st.Mode.Type() != fs.ModeNamedPipe {
			t.Errorf("%s is %+v, %v", part, st, err)
		}
	}
	// Missing directories get the mode of the volume, whatever the umask.
	target, err := bind("new/deep er/-x")
	testutil.Must(t, err)
	m.write(t, target+"/work", "done")
	m.wantFile(t, v.root+"/new/deep er/-x/work", "done")
	for _, p := range []string{"new", "new/deep er", "new/deep er/-x"} {
		if st, err := m.h.Stat(ctx, path.Join(v.root, p)); err != nil || st.Mode != fs.ModeDir|fs.ModeSetgid|fs.ModeSticky|0o775 {
			t.Errorf("%s is %+v, %v", p, st, err)
		}
	}
	for _, part := range []string{"dangling", "dangling/x"} {
		if _, err := bind(part); !errors.Is(err, host.ErrSubPathMake) {
			t.Errorf("%s: error %v, want %v", part, err, host.ErrSubPathMake)
		}
	}
	if m.exists(t, v.root+"/nowhere") {
		t.Error("a link made something")
	}
	for _, part := range []string{"dir/file/below", "chain/x"} {
		if _, err := bind(part); err == nil || errors.Is(err, host.ErrSubPathUnsafe) {
			t.Errorf("%s: error %v", part, err)
		}
	}
	for _, bad := range []host.SubPath{{}, {Root: "x", Path: "a", Target: "/x"}, {Root: v.root, Path: "../x", Target: v.targets + "/x"},
		{Root: v.root, Path: "/etc", Target: v.targets + "/x"}, {Root: v.root, Path: "a//b", Target: v.targets + "/x"}, {Root: v.root, Target: v.targets + "/x"}} {
		if err := m.h.BindSubPath(ctx, bad); err == nil {
			t.Errorf("%+v was bound", bad)
		}
	}
	if err := m.h.BindSubPath(ctx, host.SubPath{Root: v.root + "/none", Path: "a", Target: v.targets + "/x"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a directory that is not there: %v", err)
	}
	testSubPathAgain(t, m, v)
}

// testSubPathAgain: the container is restarted.
func testSubPathAgain(t *testing.T, m *machine, v volume) {
	ctx := context.Background()
	again := func(part string) string {
		t.Helper()
		s := host.SubPath{Root: v.root, Path: part, Target: v.targets + "/again/0"}
		testutil.Must(t, m.h.BindSubPath(ctx, s))
		list, err := m.h.ListMounts(ctx, s.Target)
		testutil.Must(t, err)
		if len(list) != 1 {
			t.Errorf("%s is mounted %d times: %+v", part, len(list), list)
		}
		return s.Target
	}
	m.wantFile(t, again("dir/file"), "inside")
	m.wantFile(t, again("dir/file"), "inside")
	m.run(t, "sh", "-c", `rm "$1" && echo other > "$1"`, "sh", v.root+"/dir/file")
	m.wantFile(t, again("dir/file"), "other\n")
	m.wantFile(t, again("dir")+"/file", "other\n") // it was a file, and is a directory now
	m.wantFile(t, again("dir")+"/file", "other\n")
	if st, err := m.h.Stat(ctx, again("fifo")); err != nil || st.Mode.Type() != fs.ModeNamedPipe {
		t.Errorf("the FIFO is %+v, %v", st, err)
	}
	// A pod removes the directory that is mounted: it has no path any more, but it is still
	// unmounted, and nothing else is.
	m.run(t, "sh", "-c", `mkdir "$1" && echo gone >"$1/x"`, "sh", v.root+"/goes")
	point := again("goes")
	m.run(t, "rm", "-r", v.root+"/goes")
	m.wantFile(t, again("dir")+"/file", "other\n")
	m.run(t, "mkdir", v.root+"/goes")
	if again("goes") != point {
		t.Error("another target")
	}
	m.run(t, "rm", "-r", v.root+"/goes")
	testutil.Must(t, m.h.Unmount(ctx, point))
	if list, err := m.h.ListMounts(ctx, point); err != nil || len(list) > 0 {
		t.Errorf("what has been removed stays mounted: %+v, %v", list, err)
	}
	// A mount that a killed call left unchecked is not reused.
	target := v.targets + "/again/0"
	testutil.Must(t, m.h.Remove(ctx, target))
	testutil.Must(t, m.h.Mount(ctx, host.Mount{Source: path.Dir(v.root) + "/canary", Target: target, Type: "bind"}))
	m.wantFile(t, again("dir/file"), "other\n")
	testutil.Must(t, m.h.Unmount(ctx, target))

	// A root that is a link, and one that is a mount.
	m.run(t, "ln", "-sfn", v.root, v.root+"-link")
	testutil.Must(t, m.h.BindSubPath(ctx, host.SubPath{Root: v.root + "-link", Path: "dir/file", Target: target}))
	m.wantFile(t, target, "other\n")
	mem := v.root + "/memory"
	testutil.Must(t, m.h.Mount(ctx, host.Mount{Source: "tmpfs", Target: mem, Type: "tmpfs", Options: []string{"mode=0777"}}))
	m.write(t, mem+"/a/b", "in memory")
	for _, s := range []host.SubPath{{Root: mem, Path: "a/b"}, {Root: v.root, Path: "memory/a/b"}} {
		s.Target = target
		testutil.Must(t, m.h.BindSubPath(ctx, s))
		m.wantFile(t, target, "in memory")
	}
	// The owner of the host has mounted a file on another.
	m.write(t, v.root+"/owner", "")
	testutil.Must(t, m.h.Mount(ctx, host.Mount{Source: mem + "/a/b", Target: v.root + "/owner", Type: "bind"}))
	m.wantFile(t, again("owner"), "in memory")
}

// testSubPathRace: while a pod changes its subPath during the mount, nothing from outside
// becomes visible and no call blocks.
func testSubPathRace(t *testing.T, m *machine) {
	ctx := context.Background()
	m.mounts(t)
	v := m.volume(t)
	stop := v.targets + "/stop"
	testutil.Must(t, m.h.MkdirAll(ctx, v.targets, 0o755, nil))
	flipped := make(chan error, 1)
	go func() {
		_, err := m.h.Run(ctx, host.Command{Timeout: 2 * time.Minute, Args: []string{"sh", "-c", `cd "$1"
			mkdir d && echo inside > d/x && echo inside > f && mkfifo p && ln -s ../secret/file l && ln -s ../secret s && mkdir spare
			until [ -e "$2" ]; do
				mv -T d x; mv -T x d
				mv -T s x; mv -T x s
				mv -T f x; mv -T x f
				mv -T l x; mv -T x l
				mv -T p x; mv -T x p
				mv -T d e; mv -T s d; mv -T d s; mv -T e d
			done`, "sh", v.root, stop}})
		flipped <- err
	}()
	defer func() {
		m.write(t, stop, "")
		testutil.Must(t, <-flipped)
	}()
	began := time.Now()
	bound, refused := 0, 0
	for i := 0; i < 20 || bound == 0 && i < 2000 || time.Since(began) < time.Second; i++ {
		s := host.SubPath{Root: v.root, Path: []string{"x", "d", "d/x", "x/file", "f"}[i%5], Target: v.targets + "/t"}
		err := m.h.BindSubPath(ctx, s)
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, host.ErrUnreachable) {
				t.Fatalf("%s: %v", s.Path, err)
			}
			refused++
			list, err := m.h.ListMounts(ctx, s.Target)
			testutil.Must(t, err)
			if !slices.ContainsFunc(list, func(m host.Mount) bool { return m.Target == s.Target }) {
				continue
			}
		} else {
			bound++
		}
		// What this call or an earlier one mounted is inside.
		seen := m.output(t, "sh", "-c", `cd "$1" 2>/dev/null && cat file x 2>/dev/null; [ ! -f "$1" ] || cat "$1"`, "sh", s.Target)
		if strings.Contains(seen, canary) {
			t.Fatalf("%s: what is outside is seen", s.Path)
		}
	}
	t.Logf("%d bound, %d refused", bound, refused)
}
