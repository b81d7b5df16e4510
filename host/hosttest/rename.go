package hosttest

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/host"
)

func testStatAll(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	m.write(t, d+"/0.log", "12345")
	m.write(t, d+"/it's one", "")
	must(t, m.h.Symlink(ctx, "nowhere", d+"/link"))
	paths := []string{d + "/0.log", d + "/no", d + "/link", d, d + "/it's one", d + "/0.log/no", d + "/no/no"}
	got, err := m.h.StatAll(ctx, paths)
	must(t, err)
	if len(got) != len(paths) {
		t.Fatalf("%d answers to %d questions", len(got), len(paths))
	}
	for i, p := range paths {
		want, err := m.h.Stat(ctx, p)
		there := err == nil
		want.Target = "" // which is not asked for
		got[i].Target = ""
		if there != (i < 5 && i != 1) {
			t.Errorf("stat %s: %v", p, err)
		}
		if got[i] != want {
			t.Errorf("%s is %+v, and to Stat %+v", p, got[i], want)
		}
	}
	if got, err := m.h.StatAll(ctx, []string{d + "/no"}); err != nil || len(got) != 1 || got[0] != (host.FileInfo{}) {
		t.Errorf("nothing there: %+v, %v", got, err)
	}
	if got, err := m.h.StatAll(ctx, nil); err != nil || len(got) != 0 {
		t.Errorf("nothing asked: %+v, %v", got, err)
	}
	if _, err := m.h.StatAll(ctx, []string{"relative"}); err == nil {
		t.Error("a relative path was taken")
	}
	// More than one request holds.
	var many []string
	for i := range 1201 {
		many = append(many, d+"/"+strconv.Itoa(i)+".log")
	}
	must(t, m.h.Rename(ctx, d+"/0.log", d+"/1200.log"))
	got, err = m.h.StatAll(ctx, many)
	must(t, err)
	for i := range many {
		if (got[i].Size == 5) != (i == 1200) {
			t.Errorf("%s has %d bytes", many[i], got[i].Size)
		}
	}
}

func testRename(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	m.write(t, d+"/a", "first")
	before, err := m.h.Stat(ctx, d+"/a")
	must(t, err)
	must(t, m.h.Rename(ctx, d+"/a", d+"/it's b"))
	after, err := m.h.Stat(ctx, d+"/it's b")
	must(t, err)
	if after.Inode != before.Inode || m.exists(t, d+"/a") {
		t.Errorf("it is another file, or there twice: %+v, %+v", before, after)
	}
	m.write(t, d+"/a", "second")
	wantErr(t, m.h.Rename(ctx, d+"/it's b", d+"/a"), fs.ErrExist, errors.Is)
	must(t, m.h.Symlink(ctx, "nowhere", d+"/link"))
	wantErr(t, m.h.Rename(ctx, d+"/a", d+"/link"), fs.ErrExist, errors.Is)
	must(t, m.h.MkdirAll(ctx, d+"/dir", 0o755, nil))
	wantErr(t, m.h.Rename(ctx, d+"/a", d+"/dir"), fs.ErrExist, errors.Is)
	m.wantFile(t, d+"/a", "second")
	m.wantFile(t, d+"/it's b", "first")
	wantErr(t, m.h.Rename(ctx, d+"/no", d+"/c"), fs.ErrNotExist, errors.Is)
	if m.h.Rename(ctx, "a", d+"/c") == nil || m.h.Rename(ctx, d+"/a", "c") == nil {
		t.Error("a relative path was taken")
	}
}

func testCompress(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	text := strings.Repeat("2026-01-02T03:04:05.6Z stdout F a line of a log\n", 5000)
	p := d + "/0.log.20260102-030405"
	must(t, m.h.WriteFile(ctx, p, []byte(text), 0o640))
	must(t, m.h.Compress(ctx, p))
	list, err := m.h.List(ctx, d)
	must(t, err)
	if len(list) != 1 || list[0].Name != "0.log.20260102-030405.gz" || list[0].Mode != 0o640 || list[0].Size >= int64(len(text)) {
		t.Fatalf("left: %+v", list)
	}
	data, err := m.h.ReadFile(ctx, p+".gz", 1<<20)
	must(t, err)
	z, err := gzip.NewReader(bytes.NewReader(data))
	must(t, err)
	back, err := io.ReadAll(z)
	must(t, err)
	if string(back) != text {
		t.Errorf("%d bytes came back of %d", len(back), len(text))
	}

	wantErr(t, m.h.Compress(ctx, p), fs.ErrNotExist, errors.Is)
	m.write(t, p, "again")
	must(t, m.h.Compress(ctx, p)) // what an earlier one left is replaced
	must(t, m.h.Symlink(ctx, p+".gz", d+"/link"))
	must(t, m.h.MkdirAll(ctx, d+"/dir", 0o755, nil))
	for _, bad := range []string{d + "/link", d + "/dir", "relative"} {
		if err := m.h.Compress(ctx, bad); err == nil {
			t.Errorf("%s was compressed", bad)
		}
	}
	// A directory in the way of what is being made: all stays as it is.
	m.write(t, d+"/kept", "kept")
	must(t, m.h.MkdirAll(ctx, d+"/kept.gz/full", 0o755, nil))
	if err := m.h.Compress(ctx, d+"/kept"); err == nil {
		t.Error("a directory was replaced")
	}
	m.wantFile(t, d+"/kept", "kept")
	list, err = m.h.List(ctx, d)
	must(t, err)
	for _, info := range list {
		if strings.HasSuffix(info.Name, ".tmp") {
			t.Errorf("%s stays", info.Name)
		}
	}
}
