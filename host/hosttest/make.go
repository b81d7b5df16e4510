package hosttest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// made returns only the error of Make.
func made(_ []bool, err error) error { return err }

func testMake(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	dir := func(p string, mode fs.FileMode) host.Entry {
		return host.Entry{Path: d + p, Mode: fs.ModeDir | mode}
	}
	file := func(p, data string, mode fs.FileMode) host.Entry {
		return host.Entry{Path: d + p, Mode: mode, Data: []byte(data)}
	}
	make := func(t *testing.T, want string, entries ...host.Entry) {
		t.Helper()
		got, err := m.h.Make(ctx, entries...)
		testutil.Must(t, err)
		word := ""
		for _, is := range got {
			word += map[bool]string{true: "+", false: "-"}[is]
		}
		if word != want {
			t.Errorf("made %s, want %s", word, want)
		}
	}
	mode := func(t *testing.T, p string, want fs.FileMode) {
		t.Helper()
		st, err := m.h.Stat(ctx, d+p)
		testutil.Must(t, err)
		if st.Mode != want {
			t.Errorf("%s has mode %v, want %v", p, st.Mode, want)
		}
	}

	t.Run("what is missing", func(t *testing.T) {
		odd := "a%s\\n'\"$x\x00\xff\n"
		entries := []host.Entry{
			file("/record", odd, 0o640), dir("/pod", 0o750), dir("/pod/volumes", 0o750), dir("/pod/containers/it's one", 0o750),
			dir("/pod/open", 0o777), file("/pod/log", "", 0o666), file("/pod/new/tool", "#!", 0o755), dir("/log/app", 0o755),
			file("/pod/sticky", "", 0o4711),
		}
		entries[8].Mode = fs.ModeSetuid | 0o711
		make(t, "+++++++++", entries...)
		m.wantFile(t, d+"/record", odd)
		m.wantFile(t, d+"/pod/log", "")
		m.wantFile(t, d+"/pod/new/tool", "#!")
		mode(t, "/record", 0o640)
		mode(t, "/pod", fs.ModeDir|0o750)
		mode(t, "/pod/containers", fs.ModeDir|0o750)
		mode(t, "/pod/containers/it's one", fs.ModeDir|0o750)
		mode(t, "/pod/open", fs.ModeDir|0o777)
		mode(t, "/pod/log", 0o666)
		mode(t, "/pod/new", fs.ModeDir|0o750)
		mode(t, "/pod/new/tool", 0o755)
		mode(t, "/log", fs.ModeDir|0o755)
		mode(t, "/pod/sticky", fs.ModeSetuid|0o711)
		before, err := m.h.Stat(ctx, d+"/record")
		testutil.Must(t, err)

		// Create everything again, with one new directory.
		entries[0].Data = bytes.Repeat([]byte("0123456789"), 10_000)
		make(t, "---------+", append(slices.Clone(entries), dir("/pod/later", 0o700))...)
		m.wantFile(t, d+"/record", string(entries[0].Data))
		mode(t, "/pod/log", 0o666)
		if after, err := m.h.Stat(ctx, d+"/record"); err != nil || after.Inode == before.Inode {
			t.Errorf("the file was written in place: %v", err)
		}
		list, err := m.h.List(ctx, d+"/pod")
		testutil.Must(t, err)
		if len(list) != 7 {
			t.Errorf("more is left than was made: %+v", list)
		}
	})
	t.Run("modes of what is there", func(t *testing.T) {
		testutil.Must(t, m.h.MkdirAll(ctx, d+"/there", 0o700, nil))
		m.run(t, "chmod", "2700", d+"/there")
		make(t, "-", dir("/there", 0o755))
		mode(t, "/there", fs.ModeDir|fs.ModeSetgid|0o700)
		m.write(t, d+"/old", "content")
		make(t, "-", file("/old", "", 0o600))
		m.wantFile(t, d+"/old", "")
	})
	t.Run("a link is replaced and not followed", func(t *testing.T) {
		m.write(t, d+"/target", "keep")
		testutil.Must(t, m.h.Symlink(ctx, d+"/target", d+"/via"))
		testutil.Must(t, m.h.Symlink(ctx, d+"/nowhere", d+"/dangling"))
		make(t, "---", file("/via", "", 0o600), file("/dangling", "", 0o600), file("/dangling", "new", 0o600))
		m.wantFile(t, d+"/target", "keep")
		m.wantFile(t, d+"/dangling", "new")
		if m.exists(t, d+"/nowhere") {
			t.Error("what a link names was made")
		}
	})
	t.Run("a file that is mounted keeps its inode", func(t *testing.T) {
		hosts := file("/hosts", "192.0.2.1 a long name\n", 0o644)
		hosts.InPlace = true
		make(t, "+", hosts)
		before, err := m.h.Stat(ctx, d+"/hosts")
		testutil.Must(t, err)
		m.run(t, "chmod", "0666", d+"/hosts")
		for _, data := range []string{"192.0.2.2 short\n", "192.0.2.2 short\n", "192.0.2.3 a name that is longer\n"} {
			hosts.Data = []byte(data)
			make(t, "-", hosts)
			m.wantFile(t, d+"/hosts", data)
			if after, err := m.h.Stat(ctx, d+"/hosts"); err != nil || after.Inode != before.Inode {
				t.Errorf("the file was replaced: %v", err)
			}
			mode(t, "/hosts", 0o644)
		}
		m.write(t, d+"/other", "keep")
		testutil.Must(t, m.h.Symlink(ctx, d+"/other", d+"/link"))
		link := file("/link", "new", 0o600)
		link.InPlace = true
		make(t, "-", link)
		m.wantFile(t, d+"/other", "keep")
		m.wantFile(t, d+"/link", "new")
	})
	t.Run("a failure", func(t *testing.T) {
		m.write(t, d+"/file", "x")
		for _, entry := range []host.Entry{dir("/file", 0o755), dir("/file/below", 0o755), file("/file/below", "x", 0o644)} {
			_, err := m.h.Make(ctx, dir("/before", 0o755), entry, dir("/after", 0o755))
			wantErr(t, err, unix.ENOTDIR, errors.Is)
		}
		m.wantFile(t, d+"/file", "x")
		_, err := m.h.Make(ctx, host.Entry{Path: "relative"})
		if err == nil {
			t.Error("a relative path was taken")
		}
	})
	t.Run("nothing", func(t *testing.T) { make(t, "") })
}
