package volume

import (
	"fmt"
	"io/fs"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestHostPath(t *testing.T) {
	h := newMemHost()
	h.put("/h/dir", node{mode: fs.ModeDir | 0o755})
	h.put("/h/file", node{mode: 0o644, data: []byte("kept")})
	h.put("/h/sock", node{mode: fs.ModeSocket | 0o755})
	h.put("/h/char", node{mode: fs.ModeDevice | fs.ModeCharDevice | 0o600})
	h.put("/h/block", node{mode: fs.ModeDevice | 0o600})
	h.put("/h/fifo", node{mode: fs.ModeNamedPipe | 0o600})
	h.put("/h/link", node{mode: fs.ModeSymlink, target: "dir"})
	h.put("/h/abs", node{mode: fs.ModeSymlink, target: "/h/link"})
	h.put("/h/loop", node{mode: fs.ModeSymlink, target: "loop"})
	h.put("/h/dangling", node{mode: fs.ModeSymlink, target: "made"})
	m := newManager(t, h, newCluster())
	missing := func(p, what string) string {
		return fmt.Sprintf("hostPath type check failed, %s is not a %s, unable to determine its type: path %q does not exist", p, what, p)
	}
	for _, c := range []struct {
		path string
		is   v1.HostPathType
		want string
	}{
		{"/h/none", v1.HostPathUnset, ""},
		{"/h/dir", v1.HostPathDirectory, ""},
		{"/h/link", v1.HostPathDirectory, ""},
		{"/h/abs", v1.HostPathDirectory, ""},
		{"/h/none", v1.HostPathDirectory, missing("/h/none", "directory")},
		{"/h/file", v1.HostPathDirectory, "hostPath type check failed: /h/file is not a directory, it's a File"},
		{"/h/file", v1.HostPathFile, ""},
		{"/h/dir", v1.HostPathFile, "hostPath type check failed: /h/dir is not a file, it's a Directory"},
		{"/h/sock", v1.HostPathSocket, ""},
		{"/h/file", v1.HostPathSocket, "hostPath type check failed: /h/file is not a socket file, it's a File"},
		{"/h/char", v1.HostPathCharDev, ""},
		{"/h/block", v1.HostPathCharDev, "hostPath type check failed: /h/block is not a character device, it's a BlockDevice"},
		{"/h/block", v1.HostPathBlockDev, ""},
		{"/h/fifo", v1.HostPathBlockDev, "hostPath type check failed: /h/fifo is not a block device, it's a Unknown"},
		{"/h/loop", v1.HostPathFile, "hostPath type check failed, /h/loop is not a file, unable to determine its type: /h/loop: too many levels of symbolic links"},
		{"/h/new/dir", v1.HostPathDirectoryOrCreate, ""},
		{"/h/file", v1.HostPathDirectoryOrCreate, "hostPath type check failed: /h/file is not a directory, it's a File"},
		{"/h/newfile", v1.HostPathFileOrCreate, ""},
		{"/h/file", v1.HostPathFileOrCreate, ""},
		{"/h/dangling", v1.HostPathFileOrCreate, ""},
		{"/h/no/file", v1.HostPathFileOrCreate, "open /h/no/file: no such file or directory"},
		{"/h/dir", v1.HostPathFileOrCreate, "hostPath type check failed: /h/dir is not a file, it's a Directory"},
		{"/h/dir", "Whatever", "Whatever is an invalid volume type"},
		{"/h/../etc", v1.HostPathUnset, "invalid HostPath `/h/../etc`: must not contain '..'"},
		{"etc", v1.HostPathUnset, "invalid HostPath `etc`: must be an absolute path"},
	} {
		err := m.setUpHostPath(t.Context(), &v1.Volume{VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: c.path, Type: &c.is}}}, &volumeState{})
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s as %q: %s\nwant %s", c.path, c.is, got, c.want)
		}
	}
	for p, mode := range map[string]fs.FileMode{"/h/new/dir": fs.ModeDir | 0o755, "/h/newfile": 0o644, "/h/made": 0o644, "/h/dangling": fs.ModeSymlink} {
		if n := h.nodes[p]; n == nil || n.mode != mode {
			t.Errorf("%s = %+v, want %v", p, n, mode)
		}
	}
	if string(h.nodes["/h/file"].data) != "kept" {
		t.Error("a file that was there is overwritten")
	}
}
