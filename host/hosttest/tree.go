package hosttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func tree(pairs ...string) host.Tree {
	t := host.Tree{}
	for i := 0; i < len(pairs); i += 2 {
		t[pairs[i]] = host.TreeFile{Data: []byte(pairs[i+1]), Mode: 0o644}
	}
	return t
}

// wantTree fails unless dir holds exactly want, in the kubelet's layout, with one version and
// nothing else.
func (m *machine) wantTree(t *testing.T, dir string, want host.Tree) {
	t.Helper()
	ctx := context.Background()
	links := map[string]bool{}
	for p, f := range want {
		m.wantFile(t, path.Join(dir, p), string(f.Data))
		st, err := m.h.Stat(ctx, path.Join(dir, "..data", p))
		testutil.Must(t, err)
		if st.Mode != f.Mode {
			t.Errorf("%s has mode %v, want %v", p, st.Mode, f.Mode)
		}
		first, _, _ := strings.Cut(p, "/")
		links[first] = true
	}
	list, err := m.h.List(ctx, dir)
	testutil.Must(t, err)
	versions := 0
	for _, e := range list {
		switch {
		case e.Name == "..data":
			if e.Mode.Type() != fs.ModeSymlink || !strings.HasPrefix(e.Target, "..2") || strings.Contains(e.Target, "/") {
				t.Errorf("..data is %+v", e)
			}
		case strings.HasPrefix(e.Name, "..2"):
			versions++
			if e.Mode != fs.ModeDir|0o755 {
				t.Errorf("the version %s has mode %v", e.Name, e.Mode)
			}
		case links[e.Name]:
			if e.Target != "..data/"+e.Name {
				t.Errorf("%s is %+v, want a link to ..data/%s", e.Name, e, e.Name)
			}
			delete(links, e.Name)
		default:
			t.Errorf("%s is left in %s", e.Name, dir)
		}
	}
	if versions != 1 || len(links) > 0 {
		t.Errorf("%s: %d versions, missing %v", dir, versions, links)
	}
}

func testTree(t *testing.T, m *machine) {
	ctx := context.Background()
	dir := m.dir(t) + "/volume"
	version := func() string {
		st, err := m.h.Stat(ctx, dir+"/..data")
		testutil.Must(t, err)
		return st.Target
	}
	write := func(w host.Tree) {
		t.Helper()
		testutil.Must(t, m.h.WriteTree(ctx, dir, w))
		m.wantTree(t, dir, w)
	}

	first := tree("a", "1", "sub/deep/b", "2", ".hidden", "3", "empty", "", "x..y", "4")
	write(first)
	v := version()
	write(first)
	if version() != v {
		t.Error("unchanged content was written again")
	}
	changed := tree("a", "one", "sub/deep/b", "2", "sub/c", "5")
	write(changed)
	if version() == v {
		t.Error("changed content has the old version")
	}
	// A file becomes a directory, and a file again.
	write(tree("a/b", "1"))
	write(tree("a", "1"))
	// Modes are exact whatever the umask, and a changed mode alone is a change.
	modes := tree("a", "1", "b", "2")
	modes["a"] = host.TreeFile{Data: []byte("1"), Mode: 0o400}
	modes["b"] = host.TreeFile{Data: []byte("2"), Mode: 0o666}
	write(modes)
	modes["a"] = host.TreeFile{Data: []byte("1"), Mode: 0o440}
	write(modes)
	write(host.Tree{})
	write(tree("large", strings.Repeat("x", 1<<20)))

	t.Run("owner", func(t *testing.T) {
		if !m.isRoot {
			t.Skip("only root gives files away")
		}
		w := tree("a", "1")
		w["a"] = host.TreeFile{Data: []byte("1"), Mode: 0o440, Owner: &host.Owner{UID: -1, GID: 77}}
		write(w)
		if got := m.output(t, "stat", "-c", "%u %g %a", dir+"/..data/a"); got != "0 77 440" {
			t.Errorf("owner and mode are %q", got)
		}
		v := version()
		write(w)
		if version() != v {
			t.Error("an owner that is set was written again")
		}
	})
	t.Run("repairs", func(t *testing.T) {
		w := tree("a", "1", "d/b", "2")
		write(w)
		m.run(t, "rm", dir+"/a")
		write(w)
		m.run(t, "sh", "-c", `rm "$1" && printf hacked > "$1"`, "sh", dir+"/..data/a")
		write(w)
		m.run(t, "rm", dir+"/..data")
		write(w)
		m.run(t, "rm", "-r", dir+"/"+version())
		write(w)
	})
	t.Run("what a killed writer left goes", func(t *testing.T) {
		w := tree("a", "1")
		write(w)
		m.run(t, "mkdir", dir+"/..2020_01_01_00_00_00.000001")
		m.write(t, dir+"/..2020_01_01_00_00_00.000001/half", "x")
		m.run(t, "ln", "-s", "..2020_01_01_00_00_00.000001", dir+"/..data_tmp")
		m.run(t, "ln", "-s", "..data/removed", dir+"/removed")
		write(w)
	})
	t.Run("foreign things stay", func(t *testing.T) {
		w := tree("a", "1")
		// A runtime creates such a directory to mount another volume inside.
		m.run(t, "mkdir", dir+"/nested")
		testutil.Must(t, m.h.WriteTree(ctx, dir, w))
		if !m.exists(t, dir+"/nested") {
			t.Error("a directory of another owner was removed")
		}
		m.run(t, "rmdir", dir+"/nested")
	})
	t.Run("links do not lead out", func(t *testing.T) {
		out := m.dir(t)
		m.write(t, out+"/victim", "keep")
		m.run(t, "ln", "-sfn", out, dir+"/..data")
		write(tree("victim", "mine"))
		m.wantFile(t, out+"/victim", "keep")
		m.run(t, "ln", "-sfn", "../"+path.Base(out), dir+"/..data")
		write(tree("victim", "mine"))
		m.wantFile(t, out+"/victim", "keep")
		m.run(t, "ln", "-s", out, dir+"/..2020_01_01_00_00_00.000001")
		write(tree("victim", "other"))
		m.wantFile(t, out+"/victim", "keep")
	})
	t.Run("bad paths", func(t *testing.T) {
		m.write(t, dir+"-outside", "keep")
		for _, p := range []string{"", "/etc/x", "../volume-outside", "a/../b", "a//b", "a/", "./a", ".", "..", "..data",
			"..data/x", "..2020/x", strings.Repeat("n", 256)} {
			if err := m.h.WriteTree(ctx, dir, tree("good", "x", p, "bad")); err == nil {
				t.Errorf("path %q was taken", p)
			}
		}
		if err := m.h.WriteTree(ctx, dir, tree("a", "x", "a/b", "y")); err == nil {
			t.Error("a file that is also a directory was taken")
		}
		if m.exists(t, dir+"/good") {
			t.Error("a refused tree was written in part")
		}
		m.wantFile(t, dir+"-outside", "keep")
	})
}

// testTreeReaders: a reader that resolves ..data once never sees two versions.
func testTreeReaders(t *testing.T, m *machine) {
	ctx := context.Background()
	dir := m.dir(t)
	testutil.Must(t, m.h.WriteTree(ctx, dir, versionTree(0)))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	whole, seen := 0, map[string]bool{}
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				st, err := m.h.Stat(ctx, dir+"/..data")
				if err != nil {
					t.Errorf("..data was away: %v", err)
					return
				}
				contents := map[string]bool{}
				for f := range versionFiles {
					got, err := m.h.ReadFile(ctx, fmt.Sprintf("%s/%s/d/f%d", dir, st.Target, f), 100)
					if errors.Is(err, fs.ErrNotExist) {
						contents = nil // the version was replaced during the read
						break
					}
					if err != nil {
						t.Error(err)
						return
					}
					contents[string(got)] = true
				}
				if contents == nil {
					continue
				}
				if len(contents) != 1 {
					t.Errorf("one version holds %v", contents)
					return
				}
				mu.Lock()
				whole++
				for c := range contents {
					seen[c] = true
				}
				mu.Unlock()
			}
		})
	}
	for n := 1; n <= 60; n++ {
		testutil.Must(t, m.h.WriteTree(ctx, dir, versionTree(n)))
	}
	testutil.Eventually(t, "a reader has seen a whole version", func() bool { mu.Lock(); defer mu.Unlock(); return whole > 0 })
	close(stop)
	wg.Wait()
	t.Logf("%d whole reads of %d versions", whole, len(seen))

	// Concurrent writers of one directory exclude each other.
	for n := range 8 {
		wg.Go(func() {
			if err := m.h.WriteTree(ctx, dir, versionTree(100+n)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := m.h.ReadFile(ctx, dir+"/d/f0", 100)
	testutil.Must(t, err)
	var last int
	if _, err := fmt.Sscanf(string(got), "version %d", &last); err != nil {
		t.Fatal(err)
	}
	m.wantTree(t, dir, versionTree(last))
}

// versionTree is a tree whose files all have the same content.
func versionTree(n int) host.Tree {
	w := host.Tree{}
	for f := range versionFiles {
		w[fmt.Sprintf("d/f%d", f)] = host.TreeFile{Data: fmt.Appendf(nil, "version %d", n), Mode: 0o644}
	}
	return w
}

const versionFiles = 4

// testTreeKilled: a writer that is killed at any moment leaves one complete version, or none
// yet, and the next writer removes the rest.
func testTreeKilled(t *testing.T, m *machine) {
	ctx := context.Background()
	dir := m.dir(t) + "/volume"
	for round := range 8 {
		kill := second(t, "write", dir)
		if round > 0 {
			// The writer has replaced the version of the last round.
			before, err := m.h.Stat(ctx, dir+"/..data")
			testutil.Must(t, err)
			testutil.Eventually(t, "the second process writes", func() bool {
				now, err := m.h.Stat(ctx, dir+"/..data")
				return err == nil && now.Target != before.Target
			})
		} else {
			testutil.Eventually(t, "the second process writes", func() bool { return m.exists(t, dir+"/..data") })
		}
		kill()
		st, err := m.h.Stat(ctx, dir+"/..data")
		testutil.Must(t, err)
		contents := map[string]bool{}
		for f := range versionFiles {
			got, err := m.h.ReadFile(ctx, fmt.Sprintf("%s/%s/d/f%d", dir, st.Target, f), 100)
			testutil.Must(t, err)
			contents[string(got)] = true
		}
		if len(contents) != 1 {
			t.Errorf("a killed writer leaves %v", contents)
		}
		w := tree("after", fmt.Sprint(round), "d/f0", "x")
		testutil.Must(t, m.h.WriteTree(ctx, dir, w))
		m.wantTree(t, dir, w)
	}
}

func testRemoveTree(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	m.write(t, d+"/outside/victim", "keep")

	build := func(t *testing.T) string {
		t.Helper()
		p := d + "/tree"
		m.write(t, p+"/a/b/c/file", "x")
		m.write(t, p+"/a/file with blanks\n", "x")
		m.run(t, "mkfifo", p+"/fifo")
		m.run(t, "ln", "-s", d+"/outside", p+"/to-dir")
		m.run(t, "ln", "-s", d+"/outside/victim", p+"/to-file")
		m.run(t, "ln", "-s", "..", p+"/up")
		m.run(t, "ln", "-s", "loop", p+"/loop")
		return p
	}
	p := build(t)
	testutil.Must(t, m.h.RemoveTree(ctx, p))
	if m.exists(t, p) {
		t.Error("the tree is still there")
	}
	m.wantFile(t, d+"/outside/victim", "keep")

	t.Run("the path is a link", func(t *testing.T) {
		m.run(t, "ln", "-s", d+"/outside", d+"/link")
		testutil.Must(t, m.h.RemoveTree(ctx, d+"/link"))
		if m.exists(t, d+"/link") {
			t.Error("the link is still there")
		}
		m.wantFile(t, d+"/outside/victim", "keep")
	})
	t.Run("the path is a file", func(t *testing.T) {
		m.write(t, d+"/file", "x")
		testutil.Must(t, m.h.RemoveTree(ctx, d+"/file"))
		if m.exists(t, d+"/file") {
			t.Error("the file is still there")
		}
	})
	t.Run("many entries", func(t *testing.T) {
		m.run(t, "sh", "-c", `mkdir "$1" && cd "$1" && i=0; while [ $i -lt 2000 ]; do : > f$i; i=$((i+1)); done`, "sh", d+"/many")
		testutil.Must(t, m.h.RemoveTree(ctx, d+"/many"))
		if m.exists(t, d+"/many") {
			t.Error("the directory is still there")
		}
	})
	t.Run("a directory is swapped for a link meanwhile", func(t *testing.T) {
		// One goroutine removes, another replaces directories with links to outside.
		var wg sync.WaitGroup
		for range 10 {
			p := d + "/raced"
			m.run(t, "sh", "-c", `for i in 1 2 3 4 5 6 7 8; do mkdir -p "$1/d$i/e" && : > "$1/d$i/e/f"; done`, "sh", p)
			wg.Go(func() {
				m.h.Run(ctx, host.Command{Timeout: timeout, Args: []string{"sh", "-c",
					`for i in 8 7 6 5 4 3 2 1; do mv "$1/d$i/e" "$1/moved$i" 2>/dev/null && ln -s "$2" "$1/d$i/e"; done`, "sh", p, d + "/outside"}})
			})
			_ = m.h.RemoveTree(ctx, p) // may fail because the tree is not empty
			wg.Wait()
			testutil.Must(t, m.h.RemoveTree(ctx, p))
			m.wantFile(t, d+"/outside/victim", "keep")
		}
	})
	if !m.isRoot {
		return
	}
	for _, c := range []struct{ name, kind string }{{"tmpfs", "tmpfs"}, {"a bind of the same file system", "bind"}} {
		t.Run("stops at "+c.name, func(t *testing.T) {
			p := build(t)
			mnt := host.Mount{Source: "tmpfs", Target: p + "/a/b/mnt", Type: c.kind}
			if c.kind == "bind" {
				mnt.Source = d + "/outside"
			}
			if err := m.h.Mount(ctx, mnt); err != nil {
				t.Skipf("this machine lets us mount nothing: %v", err)
			}
			m.write(t, mnt.Target+"/inside", "keep")
			err := m.h.RemoveTree(ctx, p)
			wantErr(t, err, host.ErrMountInside, errors.Is)
			m.wantFile(t, mnt.Target+"/inside", "keep")
			m.wantFile(t, p+"/a/b/c/file", "x") // refused before anything was removed
			err = m.h.RemoveTree(ctx, mnt.Target)
			wantErr(t, err, host.ErrMountInside, errors.Is)
			testutil.Must(t, m.h.Unmount(ctx, mnt.Target))
			testutil.Must(t, m.h.RemoveTree(ctx, p))
			m.wantFile(t, d+"/outside/victim", "keep")
		})
	}
	t.Run("unmounts what the caller names", func(t *testing.T) {
		p := build(t)
		named, other := p+"/a/b/[c, *] \"d\"", p+"/a/other"
		for _, target := range []string{named, other} {
			if err := m.h.Mount(ctx, host.Mount{Source: "tmpfs", Target: target, Type: "tmpfs"}); err != nil {
				t.Skipf("this machine lets us mount nothing: %v", err)
			}
			m.write(t, target+"/inside", "keep")
			t.Cleanup(func() { testutil.Must(t, m.h.Unmount(context.Background(), target)) })
		}
		for _, target := range []string{d + "/outside", p, p + "/../outside", "a", ""} {
			if err := m.h.RemoveTree(ctx, p, named, target); err == nil || errors.Is(err, host.ErrMountInside) {
				t.Errorf("mount %q, not below the tree: %v", target, err)
			}
			m.wantFile(t, named+"/inside", "keep")
		}
		wantErr(t, m.h.RemoveTree(ctx, p, named), host.ErrMountInside, errors.Is)
		m.wantFile(t, other+"/inside", "keep")
		m.wantFile(t, p+"/a/b/c/file", "x") // refused before anything was removed
		testutil.Must(t, m.h.RemoveTree(ctx, p, p+"/none", named, p+"/a/b", other))
		if m.exists(t, p) {
			t.Error("the tree is still there")
		}
		testutil.Must(t, m.h.RemoveTree(ctx, p, named))
		m.wantFile(t, d+"/outside/victim", "keep")
	})
	t.Run("a named mount is in use", func(t *testing.T) {
		p := build(t)
		named := p + "/a/used"
		below := named + "/below"
		for _, target := range []string{named, below} {
			if err := m.h.Mount(ctx, host.Mount{Source: "tmpfs", Target: target, Type: "tmpfs"}); err != nil {
				t.Skipf("this machine lets us mount nothing: %v", err)
			}
			m.write(t, target+"/inside", "keep")
			t.Cleanup(func() { testutil.Must(t, m.h.Unmount(context.Background(), target)) })
		}
		wantErr(t, m.h.RemoveTree(ctx, p, named), host.ErrMountInside, errors.Is)
		m.wantFile(t, named+"/inside", "keep")
		m.wantFile(t, below+"/inside", "keep")
		testutil.Must(t, m.h.RemoveTree(ctx, p, below, named))
		if m.exists(t, p) {
			t.Error("the tree is still there")
		}
	})
}
