package hosttest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// privateEnv marks the process that LongRoots starts.
const privateEnv = "BOWLINE_HOSTTEST_PRIVATE"

// LongRoots checks what a pod can do to the list of mounts. It moves the directory of a subPath so
// deep that the root of its mount takes more than 64 KiB in mountinfo, of which every process of
// the host would take notice: so the test runs in a second process, in a mount namespace of its
// own. root is as in Run.
func LongRoots(t *testing.T, open Opener, root string) {
	if os.Getenv(privateEnv) == "" {
		if os.Getuid() != 0 || exec.Command("unshare", "-m", "true").Run() != nil {
			t.Skip("no mount namespace without root and unshare")
		}
		name, _, _ := strings.Cut(t.Name(), "/")
		cmd := exec.Command("unshare", "-m", os.Args[0], "-test.run", "^"+name+"$", "-test.count", "1", "-test.v")
		cmd.Env = append(os.Environ(), privateEnv+"=yes")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+name) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	m := &machine{open: open, root: root, isRoot: true}
	m.h = m.another(t)
	testLongRoots(t, m)
}

func testLongRoots(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	pod, other := d+"/pod", d+"/other"
	volume, target := d+"/volume", pod+"/volume-subpaths/0"
	testutil.Must(t, m.h.MkdirAll(ctx, volume+"/part", 0o755, nil))
	testutil.Must(t, m.h.BindSubPath(ctx, host.SubPath{Root: volume, Path: "part", Target: target}))
	t.Cleanup(func() { testutil.Must(t, m.h.Unmount(context.Background(), target)) })

	// No path may have more than 4,096 bytes, but a directory with such paths can be moved below
	// another one.
	deep := strings.Repeat("/"+strings.Repeat(" ", 254), 13)
	top := "part"
	for _, next := range []string{"a", "b", "c", "d", "e", "f"} {
		m.run(t, "sh", "-c", `mkdir -p "$1" && mv "$2" "$1/"`, "sh", path.Join(volume, next)+deep, path.Join(volume, top))
		top = next
	}
	if data, err := m.h.ReadFile(ctx, "/proc/self/mountinfo", 1<<22); err != nil || len(data) < 64<<10 {
		t.Fatalf("mountinfo has %d bytes: %v", len(data), err)
	}

	// Other pods do not notice.
	testutil.Must(t, m.h.MakeShared(ctx, other))
	memory := host.Mount{Source: "tmpfs", Target: other + "/a,b [c].*", Type: "tmpfs"}
	for range 2 {
		testutil.Must(t, m.h.Mount(ctx, memory))
	}
	list, err := m.h.ListMounts(ctx, other)
	if err != nil || len(list) != 2 || list[0].Target != memory.Target || list[0].Type != "tmpfs" || list[1].Target != other {
		t.Errorf("mounts of the other pod: %+v, %.200v", list, err)
	}
	if list, err := m.h.ListMounts(ctx, memory.Target); err != nil || len(list) != 1 {
		t.Errorf("mounts at its volume: %+v, %.200v", list, err)
	}
	testutil.Must(t, m.h.ChownGroup(ctx, memory.Target, 1234, false))
	if err := m.h.RemoveTree(ctx, other); !errors.Is(err, host.ErrMountInside) {
		t.Errorf("remove a tree with a mount: %.200v", err)
	}
	testutil.Must(t, m.h.Unmount(ctx, memory.Target))
	testutil.Must(t, m.h.UndoShared(ctx, other))
	testutil.Must(t, m.h.RemoveTree(ctx, other))

	// The pod itself can be removed too.
	list, err = m.h.ListMounts(ctx, pod)
	if err != nil || len(list) != 1 || list[0].Target != target {
		t.Errorf("mounts of the pod: %d, %.200v", len(list), err)
	}
	testutil.Must(t, m.h.Unmount(ctx, target))
	testutil.Must(t, m.h.RemoveTree(ctx, pod))
}
