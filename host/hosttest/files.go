package hosttest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

func testFiles(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)

	t.Run("write", func(t *testing.T) {
		p := path.Join(d, "a/b/c")
		testutil.Must(t, m.h.WriteFile(ctx, p, []byte("one"), 0o604))
		m.wantFile(t, p, "one")
		st, err := m.h.Stat(ctx, p)
		testutil.Must(t, err)
		if st.Mode != 0o604 || st.Size != 3 || st.Name != "c" || st.Inode == 0 {
			t.Errorf("stat says %+v", st)
		}
		if since := time.Since(st.Time); since < -time.Hour || since > time.Hour {
			t.Errorf("modified %s ago", since)
		}
		parent, err := m.h.Stat(ctx, path.Join(d, "a"))
		testutil.Must(t, err)
		if parent.Mode != fs.ModeDir|0o750 {
			t.Errorf("the parent has mode %v, want 0750", parent.Mode)
		}
		testutil.Must(t, m.h.WriteFile(ctx, p, []byte("two"), 0o600))
		after, err := m.h.Stat(ctx, p)
		testutil.Must(t, err)
		if after.Mode != 0o600 {
			t.Errorf("mode %v after the second write, want 0600", after.Mode)
		}
		if after.Inode == st.Inode {
			t.Error("the file was written in place; a reader could see half of it")
		}
		list, err := m.h.List(ctx, path.Dir(p))
		testutil.Must(t, err)
		if len(list) != 1 {
			t.Errorf("a write leaves more than the file: %+v", list)
		}
	})
	t.Run("write replaces a link and not its target", func(t *testing.T) {
		m.write(t, d+"/target", "keep")
		testutil.Must(t, m.h.Symlink(ctx, d+"/target", d+"/via"))
		m.write(t, d+"/via", "new")
		m.wantFile(t, d+"/target", "keep")
		m.wantFile(t, d+"/via", "new")
	})
	t.Run("concurrent readers see whole files", func(t *testing.T) {
		p := d + "/shared"
		contents := [2]string{strings.Repeat("a", 40_000), strings.Repeat("b", 50_000)}
		m.write(t, p, contents[0])
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			defer close(stop)
			for i := range 40 {
				if err := m.h.WriteFile(ctx, p, []byte(contents[i%2]), 0o644); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for range 2 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					got, err := m.h.ReadFile(ctx, p, 1<<20)
					if err != nil {
						t.Error(err)
						return
					}
					if s := string(got); s != contents[0] && s != contents[1] {
						t.Errorf("a reader saw %d bytes of a mix", len(s))
						return
					}
				}
			})
		}
		wg.Wait()
	})
	t.Run("too large", func(t *testing.T) {
		m.write(t, d+"/five", "12345")
		_, err := m.h.ReadFile(ctx, d+"/five", 4)
		wantErr(t, err, host.ErrTooLarge, errors.Is)
		got, err := m.h.ReadFile(ctx, d+"/five", 5)
		if err != nil || string(got) != "12345" {
			t.Errorf("read %q, %v", got, err)
		}
	})
	t.Run("missing", func(t *testing.T) {
		no := d + "/no/such"
		_, readErr := m.h.ReadFile(ctx, no, 10)
		_, tailErr := m.h.ReadTail(ctx, no, 10)
		_, statErr := m.h.Stat(ctx, no)
		_, listErr := m.h.List(ctx, no)
		_, openErr := m.h.Open(ctx, no)
		for name, err := range map[string]error{"ReadFile": readErr, "ReadTail": tailErr, "Stat": statErr,
			"List": listErr, "Open": openErr, "Remove": m.h.Remove(ctx, no)} {
			if !isNotExist(err) {
				t.Errorf("%s of a missing path: %v", name, err)
			}
		}
		if err := m.h.RemoveTree(ctx, no); err != nil {
			t.Errorf("RemoveTree of a missing path: %v", err)
		}
	})
	t.Run("relative", func(t *testing.T) {
		_, err := m.h.ReadFile(ctx, "etc/passwd", 10)
		if err == nil {
			t.Error("a relative path was read")
		}
		if err := m.h.WriteFile(ctx, d+"/../escaped", nil, 0o644); err == nil {
			t.Error("a path with .. was written")
		}
		if err := m.h.RemoveTree(ctx, d+"/.."); err == nil {
			t.Error("a path with .. was removed")
		}
	})
	t.Run("link", func(t *testing.T) {
		p := d + "/links/one"
		for _, target := range []string{"somewhere", "/elsewhere", "/elsewhere"} {
			testutil.Must(t, m.h.Symlink(ctx, target, p))
			st, err := m.h.Stat(ctx, p)
			testutil.Must(t, err)
			if st.Mode.Type() != fs.ModeSymlink || st.Target != target {
				t.Errorf("stat says %+v, want a link to %s", st, target)
			}
		}
		list, err := m.h.List(ctx, d+"/links")
		testutil.Must(t, err)
		if len(list) != 1 || list[0].Target != "/elsewhere" {
			t.Errorf("listed %+v", list)
		}
	})
	t.Run("list", func(t *testing.T) {
		for _, n := range []string{"z", "a b", "m\nn", "ü"} {
			m.write(t, d+"/list/"+n, n)
		}
		testutil.Must(t, m.h.MkdirAll(ctx, d+"/list/k", 0o700, nil))
		list, err := m.h.List(ctx, d+"/list")
		testutil.Must(t, err)
		var names []string
		for _, i := range list {
			names = append(names, i.Name)
		}
		if want := []string{"a b", "k", "m\nn", "z", "ü"}; !slices.Equal(names, want) {
			t.Errorf("listed %q, want %q", names, want)
		}
		if list[1].Mode != fs.ModeDir|0o700 {
			t.Errorf("k has mode %v", list[1].Mode)
		}
	})
	t.Run("remove", func(t *testing.T) {
		m.write(t, d+"/full/file", "x")
		if err := m.h.Remove(ctx, d+"/full"); err == nil {
			t.Error("a directory that is not empty was removed")
		}
		testutil.Must(t, m.h.Remove(ctx, d+"/full/file"))
		testutil.Must(t, m.h.Remove(ctx, d+"/full"))
		if m.exists(t, d+"/full") {
			t.Error("it is still there")
		}
	})
	t.Run("open", func(t *testing.T) {
		p := d + "/log"
		m.write(t, p, "0123456789")
		f, err := m.h.Open(ctx, p)
		testutil.Must(t, err)
		buf := make([]byte, 4)
		if n, err := f.ReadAt(buf, 3); err != nil || string(buf[:n]) != "3456" {
			t.Errorf("read %q, %v", buf[:n], err)
		}
		if n, err := f.ReadAt(buf, 8); !errors.Is(err, io.EOF) || string(buf[:n]) != "89" {
			t.Errorf("read %q, %v, want the last two bytes and io.EOF", buf[:n], err)
		}
		before, err := f.Stat()
		testutil.Must(t, err)
		m.run(t, "mv", p, p+".1")
		m.write(t, p, "new")
		after, err := f.Stat()
		testutil.Must(t, err)
		named, err := m.h.Stat(ctx, p)
		testutil.Must(t, err)
		if after.Inode != before.Inode || named.Inode == before.Inode {
			t.Error("a rotated file cannot be told from the one before")
		}
		m.run(t, "sh", "-c", `printf abc >> "$1"`, "sh", p+".1")
		if n, err := f.ReadAt(buf, 10); string(buf[:n]) != "abc" {
			t.Errorf("read %q, %v of what was added", buf[:n], err)
		}
		testutil.Must(t, f.Close())
		if _, err := f.ReadAt(buf, 0); err == nil {
			t.Error("a closed file was read")
		}
	})
}

func testTail(t *testing.T, m *machine) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	d := m.dir(t)
	m.write(t, d+"/file", "0123456789")
	for max, want := range map[int64]string{3: "789", 10: "0123456789", 100: "0123456789", 0: ""} {
		got, err := m.h.ReadTail(ctx, d+"/file", max)
		if err != nil || string(got) != want {
			t.Errorf("tail of %d bytes: %q, %v; want %q", max, got, err, want)
		}
	}
	m.run(t, "mkfifo", d+"/fifo")
	m.run(t, "ln", "-s", d+"/file", d+"/link")
	for _, p := range []string{"fifo", "link", "."} {
		began := time.Now()
		if got, err := m.h.ReadTail(ctx, path.Join(d, p), 10); err == nil {
			t.Errorf("ReadTail of %s gave %q", p, got)
		}
		if f, err := m.h.Open(ctx, path.Join(d, p)); err == nil {
			f.Close()
			t.Errorf("Open of %s succeeded", p)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s held the calls for %s", p, took)
		}
	}
	// ReadFile follows a link; a FIFO never blocks.
	m.wantFile(t, d+"/link", "0123456789")
	if got, err := m.h.ReadFile(ctx, d+"/fifo", 10); err == nil {
		t.Errorf("ReadFile of a fifo gave %q", got)
	}
	if m.isRoot {
		if got, err := m.h.ReadTail(ctx, "/dev/zero", 10); err == nil {
			t.Errorf("ReadTail of a device gave %q", got)
		}
	}
}

func testDirectories(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	for _, mode := range []fs.FileMode{0o777, 0o700, 0o750, 0o755} {
		p := path.Join(d, "m"+mode.String(), "in", "last")
		testutil.Must(t, m.h.MkdirAll(ctx, p, mode, nil))
		st, err := m.h.Stat(ctx, p)
		testutil.Must(t, err)
		if st.Mode != fs.ModeDir|mode {
			t.Errorf("made with %v: has %v", mode, st.Mode)
		}
		parent, err := m.h.Stat(ctx, path.Dir(p))
		testutil.Must(t, err)
		if parent.Mode.Perm()&0o022 != 0 {
			t.Errorf("a parent has mode %v: others may write to it", parent.Mode)
		}
	}
	p := d + "/again"
	testutil.Must(t, m.h.MkdirAll(ctx, p, 0o700, nil))
	m.write(t, p+"/kept", "x")
	testutil.Must(t, m.h.MkdirAll(ctx, p, 0o755, nil))
	// Any writer of the parent may have put the directory there, so it is not changed.
	st, err := m.h.Stat(ctx, p)
	testutil.Must(t, err)
	if st.Mode.Perm() != 0o700 {
		t.Errorf("mode %v after the second call, want 0700 as before", st.Mode)
	}
	m.wantFile(t, p+"/kept", "x")
	if err := m.h.MkdirAll(ctx, p+"/kept", 0o755, nil); err == nil {
		t.Error("a file was taken for a directory")
	}
	if err := m.h.MkdirAll(ctx, p+"/kept/below", 0o755, nil); err == nil {
		t.Error("a directory was made below a file")
	}
	m.run(t, "ln", "-s", p, d+"/link")
	testutil.Must(t, m.h.MkdirAll(ctx, d+"/link", 0o711, nil))
	if st, err := m.h.Stat(ctx, p); err != nil || st.Mode.Perm() != 0o700 {
		t.Errorf("through a link the mode became %v, %v", st.Mode, err)
	}
	m.run(t, "ln", "-s", d, d+"/parent")
	testutil.Must(t, m.h.MkdirAll(ctx, d+"/parent/again", 0o711, nil))
	if st, err := m.h.Stat(ctx, p); err != nil || st.Mode.Perm() != 0o700 {
		t.Errorf("below a link the mode became %v, %v", st.Mode, err)
	}
	for _, mode := range []fs.FileMode{0o777 | fs.ModeSticky, 0o770 | fs.ModeSetgid} {
		p := path.Join(d, "special"+mode.String())
		testutil.Must(t, m.h.MkdirAll(ctx, p, mode, nil))
		if st, err := m.h.Stat(ctx, p); err != nil || st.Mode != fs.ModeDir|mode {
			t.Errorf("made with %v: has %v, %v", mode, st.Mode, err)
		}
	}
	if !m.isRoot {
		return
	}
	testutil.Must(t, m.h.MkdirAll(ctx, p, 0o700, &host.Owner{UID: 1234, GID: 2345}))
	if got := m.output(t, "stat", "-c", "%u %g", p); got != "0 0" {
		t.Errorf("a directory that was there is given to %q", got)
	}
	testutil.Must(t, m.h.MkdirAll(ctx, d+"/owned", 0o770, &host.Owner{UID: 1234, GID: 2345}))
	if got := m.output(t, "stat", "-c", "%u %g %a", d+"/owned"); got != "1234 2345 770" {
		t.Errorf("owner and mode are %q", got)
	}
	if st, err := m.h.Stat(ctx, d+"/owned"); err != nil || st.GID != 2345 {
		t.Errorf("stat says %+v, %v", st, err)
	}
	list, err := m.h.List(ctx, d)
	testutil.Must(t, err)
	if !slices.ContainsFunc(list, func(i host.FileInfo) bool { return i.Name == "owned" && i.GID == 2345 }) {
		t.Errorf("list says %+v", list)
	}
}

func testDeadlines(t *testing.T, m *machine) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := m.root + "/never"
	for name, err := range map[string]error{
		"WriteFile": m.h.WriteFile(ctx, p, []byte("x"), 0o644),
		"MkdirAll":  m.h.MkdirAll(ctx, p, 0o755, nil),
		"Make":      made(m.h.Make(ctx, host.Entry{Path: p, Mode: 0o644})),
		"WriteTree": m.h.WriteTree(ctx, p, host.Tree{"a": {Mode: 0o644}}),
	} {
		wantErr(t, err, context.Canceled, errors.Is)
		if m.exists(t, p) {
			t.Errorf("%s with a cancelled context did its work", name)
		}
	}
}

func testChownGroup(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	m.write(t, d+"/v/file", "x")
	testutil.Must(t, m.h.MkdirAll(ctx, d+"/v/sub", 0o700, nil))
	testutil.Must(t, m.h.WriteFile(ctx, d+"/v/sub/tool", nil, 0o744))
	m.write(t, d+"/outside", "x")
	m.run(t, "ln", "-s", d+"/outside", d+"/v/link")
	if !m.isRoot {
		t.Skip("only root gives files away")
	}
	perm := func(p string) string { return m.output(t, "stat", "-c", "%g %a", p) }
	outside := perm(d + "/outside")

	testutil.Must(t, m.h.ChownGroup(ctx, d+"/v", 4321, true))
	for p, want := range map[string]string{"": "4321 2775", "/file": "4321 644", "/sub": "4321 2750", "/sub/tool": "4321 744"} {
		if p == "" {
			want = "4321 2750" // created by WriteFile with 0750
		}
		if got := perm(d + "/v" + p); got != want {
			t.Errorf("read-only: %q has %s, want %s", p, got, want)
		}
	}
	testutil.Must(t, m.h.ChownGroup(ctx, d+"/v", 4321, false))
	for p, want := range map[string]string{"": "4321 2770", "/file": "4321 664", "/sub": "4321 2770", "/sub/tool": "4321 764"} {
		if got := perm(d + "/v" + p); got != want {
			t.Errorf("writable: %q has %s, want %s", p, got, want)
		}
	}
	if got := perm(d + "/outside"); got != outside {
		t.Errorf("a link's target was changed: %s, was %s", got, outside)
	}
	if err := m.h.ChownGroup(ctx, d+"/none", 1, false); !isNotExist(err) {
		t.Errorf("of a missing path: %v", err)
	}
}

func testNetwork(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	for _, n := range []struct{ network, address string }{{"unix", d + "/s"}, {"tcp", "127.0.0.1:0"}} {
		t.Run(n.network, func(t *testing.T) {
			l, err := m.h.Listen(ctx, n.network, n.address)
			testutil.Must(t, err)
			defer l.Close()
			go func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				io.Copy(c, c)
			}()
			c, err := m.h.Dial(ctx, n.network, l.Addr().String())
			testutil.Must(t, err)
			defer c.Close()
			testutil.Must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
			_, err = c.Write([]byte("hello"))
			testutil.Must(t, err)
			got := make([]byte, 5)
			_, err = io.ReadFull(c, got)
			testutil.Must(t, err)
			if !bytes.Equal(got, []byte("hello")) {
				t.Errorf("echo %q", got)
			}
			if n.network == "unix" {
				if second, err := m.h.Listen(ctx, "unix", n.address); err == nil {
					second.Close()
					t.Error("a socket with a listener was taken over")
				}
			}
		})
	}
	if c, err := m.h.Dial(ctx, "unix", d+"/nobody"); err == nil {
		c.Close()
		t.Error("dialled a socket that is not there")
	}
	if c, err := m.h.Dial(ctx, "udp", "127.0.0.1:9"); err == nil {
		c.Close()
		t.Error("dialled a network of another kind")
	}
}
