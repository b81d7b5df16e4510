package ssh_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestRemoveTreeSparesLateMount: another process mounts a volume of the same file system below a
// tree after rm has started. The files of the volume stay.
func TestRemoveTreeSparesLateMount(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounts")
	}
	if out, err := exec.Command("unshare", "-m", "true").CombinedOutput(); err != nil {
		t.Skipf("no mount namespaces here: %v %s", err, out)
	}
	t.Run("by descriptors", func(t *testing.T) { lateMount(t, "exec rm --help") })
	t.Run("by the shell", func(t *testing.T) { lateMount(t, "exit 1") })
}

// lateMount uses an rm whose --help output is given.
func lateMount(t *testing.T, help string) {
	d := t.TempDir()
	fifo := func(name string) *os.File {
		testutil.Must(t, unix.Mkfifo(d+"/"+name, 0o600))
		f, err := os.OpenFile(d+"/"+name, os.O_RDWR, 0)
		testutil.Must(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	removes, mounted := fifo("removes"), fifo("mounted")
	// An rm that reports its start and waits for the mount.
	rm := `#!/bin/sh
export PATH='` + shell.DefaultPath + `'
case $1 in
--help) ` + help + ` ;;
-*f) [ -e '` + d + `/once' ] || { : >'` + d + `/once'; echo >'` + d + `/removes'; read -r line <'` + d + `/mounted'; } ;;
esac
exec rm "$@"
`
	if err := errors.Join(os.MkdirAll(d+"/bin", 0o755), os.WriteFile(d+"/bin/rm", []byte(rm), 0o755),
		os.MkdirAll(d+"/tree/sub/late", 0o755), os.WriteFile(d+"/tree/file", nil, 0o644),
		os.Mkdir(d+"/volume", 0o755), os.WriteFile(d+"/volume/precious", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	h := open(t, ssh.Config{Path: d + "/bin:" + shell.DefaultPath})
	closeHost(t, h)
	removed := make(chan error, 1)
	go func() { removed <- h.RemoveTree(context.Background(), d+"/tree") }()
	testutil.Must(t, removes.SetReadDeadline(time.Now().Add(patience)))
	if _, err := removes.Read(make([]byte, 1)); err != nil {
		t.Fatal(err, <-removed)
	}
	testutil.Must(t, unix.Mount(d+"/volume", d+"/tree/sub/late", "", unix.MS_BIND, ""))
	t.Cleanup(func() { // it disappears with its directory
		if err := unix.Unmount(d+"/tree/sub/late", unix.MNT_DETACH); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
	if _, err := mounted.WriteString("mounted\n"); err != nil {
		t.Fatal(err)
	}
	err := <-removed
	if _, err := os.Lstat(d + "/volume/precious"); err != nil {
		t.Error("a file of the volume that was mounted meanwhile was removed")
	}
	if _, gone := os.Lstat(d + "/tree"); err != nil || !os.IsNotExist(gone) {
		t.Errorf("the tree is there: %v, %v", err, gone)
	}
}

// TestRemoveTreeIsBrief: the errors of a thousand files take only some lines.
func TestRemoveTreeIsBrief(t *testing.T) {
	d := t.TempDir()
	rm := "#!/bin/sh\n[ \"$1\" != --help ] || exec /bin/rm --help\n" +
		"n=0\nwhile [ $n -lt 5000 ]; do echo \"rm: cannot remove '/x/$n': Read-only file system\" >&2; n=$((n + 1)); done\nexit 1\n"
	testutil.Must(t, errors.Join(os.MkdirAll(d+"/bin", 0o755), os.WriteFile(d+"/bin/rm", []byte(rm), 0o755), os.Mkdir(d+"/tree", 0o755)))
	var sent counting
	h := open(t, ssh.Config{Transport: &sent, Path: d + "/bin:" + shell.DefaultPath})
	closeHost(t, h)
	before := sent.bytes.Load()
	if err := h.RemoveTree(context.Background(), d+"/tree"); !errors.Is(err, unix.EROFS) {
		t.Fatalf("%.1000v", err)
	}
	if n := sent.bytes.Load() - before; n > 16<<10 {
		t.Errorf("the machine sent %d bytes", n)
	}
}
