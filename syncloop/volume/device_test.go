package volume

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// disk is a host with a device that the fake blkid, mkfs and fsck know.
func disk(format *string, broken bool) *memHost {
	h := newMemHost()
	h.put("/dev/sdb", node{mode: fs.ModeDevice})
	h.put("/dev/disk/by-id/x", node{mode: fs.ModeSymlink, target: "../../sdb"})
	h.run = func(args []string) host.Result {
		switch name, dev := args[0], args[len(args)-1]; {
		case dev != "/dev/disk/by-id/../../sdb" && dev != "/dev/sdb":
			return host.Result{ExitCode: 1, Stderr: []byte("no such device: " + dev)}
		case name == "blkid" && *format == "":
			return host.Result{ExitCode: 2}
		case name == "blkid":
			return host.Result{Stdout: []byte("DEVNAME=" + dev + "\nTYPE=" + *format + "\n")}
		case name == "fsck" && broken:
			return host.Result{ExitCode: 4, Stdout: []byte("run me\nby hand")}
		case strings.HasPrefix(name, "mkfs."):
			*format = strings.TrimPrefix(name, "mkfs.")
		}
		return host.Result{}
	}
	return h
}

func (h *memHost) ran() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, c := range h.calls {
		if program, ok := strings.CutPrefix(c, "Run "); ok {
			out = append(out, strings.Fields(program)[0])
		}
	}
	return out
}

func TestClaimOfAFileSystemOnADevice(t *testing.T) {
	format := ""
	h := disk(&format, false)
	b := bound(localSource("/dev/disk/by-id/x"))
	b.volumes["pv"].Spec.MountOptions = []string{"noatime"}
	p := testPod(claimVolume(false))
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(7))}
	const dir = "/root/pods/u/volumes/kubernetes.io~local-volume/pv"
	m := claimManager(t, h, b)
	want := Mount{HostPath: dir, SELinux: true}
	if got := prepare(t, m, p)["data"]; got != want {
		t.Errorf("mount = %+v", got)
	}
	if got := h.mounts[dir]; got == nil || !strings.HasSuffix(got.Source, "sdb") || got.Type != "ext4" || !slices.Equal(got.Options, []string{"noatime"}) {
		t.Errorf("mounted is %+v", got)
	}
	if format != "ext4" || !slices.Equal(h.ran(), []string{"blkid", "mkfs.ext4"}) || h.count("ChownGroup") != 1 {
		t.Errorf("it is %q; calls %q", format, h.calls)
	}
	// It is neither formatted nor repaired again.
	h.forgetCalls()
	prepare(t, m, p)
	prepare(t, claimManager(t, h, b), p)
	if h.count("Mount") > 0 || len(h.ran()) > 0 {
		t.Errorf("calls %q", h.calls)
	}
	// A second pod on the same host finds the file system that the first one made.
	q := testPod(claimVolume(true))
	q.UID = "v"
	if got := prepare(t, m, q)["data"]; !got.ReadOnly || h.mounts[strings.Replace(dir, "/u/", "/v/", 1)] == nil || !slices.Equal(h.ran(), []string{"blkid"}) {
		t.Errorf("mount = %+v, calls %q", got, h.calls)
	}
	for _, uid := range []types.UID{"u", "v"} {
		if err := m.Release(t.Context(), uid); err != nil {
			t.Error(err)
		}
	}
	if len(h.mounts) > 0 {
		t.Errorf("mounted %v", h.mounts)
	}
	h.forgetCalls()
	prepare(t, m, p)
	if !slices.Equal(h.ran(), []string{"blkid", "fsck"}) {
		t.Errorf("a device that was used: calls %q", h.calls)
	}
}

func TestDeviceFails(t *testing.T) {
	failed := errors.New("no such file or directory")
	for name, c := range map[string]struct {
		format   string
		fsType   string
		readOnly bool
		broken   bool
		run      func([]string) host.Result
		fail     string
		ran      string
		want     string
	}{
		"read-only and empty": {readOnly: true, ran: "blkid", want: "cannot mount unformatted disk SDB as we are manipulating it in read-only mode"},
		"another kind":        {fail: "Mount", fsType: "xfs", format: "ext4", ran: "blkid fsck", want: "mount SDB as xfs, and what is on it is ext4: no such file or directory"},
		"broken":              {format: "ext4", broken: true, ran: "blkid fsck", want: "'fsck' found errors on device SDB but could not correct them: run me by hand"},
		"not sure":            {run: func([]string) host.Result { return host.Result{ExitCode: 8, Stderr: []byte("ambivalent")} }, ran: "blkid", want: "failed to get disk format of disk SDB: blkid: exit status 8: ambivalent"},
		"no blkid":            {fail: "Run", ran: "blkid", want: "failed to get disk format of disk SDB: no such file or directory"},
		"mkfs fails": {fsType: "xfs", run: func(args []string) host.Result {
			return host.Result{ExitCode: map[string]int{"blkid": 2, "mkfs.xfs": 1}[args[0]]}
		}, ran: "blkid mkfs.xfs",
			want: `format of disk "SDB" failed: type:("xfs"): exit status 1:`},
	} {
		h := disk(&c.format, c.broken)
		if c.run != nil {
			h.run = c.run
		}
		if c.fail != "" {
			h.fail[c.fail] = failed
		}
		b := bound(localSource("/dev/sdb"))
		if c.fsType != "" {
			b.volumes["pv"].Spec.Local.FSType = &c.fsType
		}
		_, err := claimManager(t, h, b).Prepare(t.Context(), testPod(claimVolume(c.readOnly)))
		want := strings.ReplaceAll(c.want, "SDB", "/dev/sdb")
		if f := Failures(err); len(f) != 1 || !strings.Contains(f[0].Error(), want) || strings.Join(h.ran(), " ") != c.ran {
			t.Errorf("%s: %v; want %s; ran %q", name, err, want, h.ran())
		}
		if c.fail != "Mount" && h.count("Mount") > 0 {
			t.Errorf("%s: it was mounted", name)
		}
	}
}

// A file system is made only if blkid says that the device is empty.
func TestParseFormat(t *testing.T) {
	for _, c := range []struct {
		code int
		out  string
		want string
	}{
		{0, "DEVNAME=/dev/sdb\nTYPE=xfs\n", "xfs"},
		{0, "TYPE=ext4\nPTTYPE=dos\n", "unknown data, probably partitions"},
		{0, "DEVNAME=/dev/sdb\n", "unknown data"},
		{0, "", "unknown data"},
		{2, "", ""},
		{2, "\n", ""},
		{2, "TYPE=ext4\n", "error"},
		{1, "", "error"}, {4, "", "error"}, {8, "", "error"}, {127, "", "error"}, {137, "", "error"},
	} {
		got, err := parseFormat(host.Result{ExitCode: c.code, Stdout: []byte(c.out)})
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%d %q: %q, want %q", c.code, c.out, got, c.want)
		}
	}
}

func FuzzParseFormat(f *testing.F) {
	f.Add(0, "TYPE=ext4\n")
	f.Add(2, "")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, code int, out string) {
		format, err := parseFormat(host.Result{ExitCode: code, Stdout: []byte(out)})
		if err == nil && format == "" && (code != 2 || strings.TrimSpace(out) != "") {
			t.Errorf("%d %q is nothing", code, out)
		}
	})
}
