package hosttest

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func testFileSizes(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	m.write(t, d+"/0.log", "12345")
	m.write(t, d+"/it's one", "")
	testutil.Must(t, m.h.Symlink(ctx, "0.log", d+"/link"))
	testutil.Must(t, m.h.Symlink(ctx, "nowhere", d+"/dangling"))
	paths := []string{d + "/0.log", d + "/no", d + "/link", d + "/dangling", d, d + "/it's one", d + "/0.log/no", d + "/no/no", d + "/0.log"}
	want := []int64{5, host.NoFile, 0, 0, 0, 0, host.NoFile, host.NoFile, 5}
	got, err := m.h.FileSizes(ctx, paths)
	testutil.Must(t, err)
	if !slices.Equal(got, want) {
		t.Errorf("the sizes of %q are %d, want %d", paths, got, want)
	}
	if got, err := m.h.FileSizes(ctx, []string{d + "/no"}); err != nil || !slices.Equal(got, []int64{host.NoFile}) {
		t.Errorf("nothing there: %d, %v", got, err)
	}
	if got, err := m.h.FileSizes(ctx, []string{"/", d, "/nowhere", d + "/0.log"}); err != nil || !slices.Equal(got, []int64{0, 0, host.NoFile, 5}) {
		t.Errorf("paths with nothing in common: %d, %v", got, err)
	}
	if got, err := m.h.FileSizes(ctx, nil); err != nil || len(got) != 0 {
		t.Errorf("no path: %d, %v", got, err)
	}
	if _, err := m.h.FileSizes(ctx, []string{"relative"}); err == nil {
		t.Error("a relative path was accepted")
	}
	// More than fits into one request.
	var many []string
	for i := range 1201 {
		many = append(many, d+"/"+strconv.Itoa(i)+".log")
	}
	testutil.Must(t, m.h.Rename(ctx, d+"/0.log", d+"/1200.log"))
	got, err = m.h.FileSizes(ctx, many)
	testutil.Must(t, err)
	if len(got) != len(many) {
		t.Fatalf("%d sizes of %d files", len(got), len(many))
	}
	for i := range many {
		if (got[i] == 5) != (i == 1200) || got[i] != 5 && got[i] != host.NoFile {
			t.Errorf("%s has %d bytes", many[i], got[i])
		}
	}
}

func testRename(t *testing.T, m *machine) {
	ctx := context.Background()
	d := m.dir(t)
	m.write(t, d+"/a", "first")
	before, err := m.h.Stat(ctx, d+"/a")
	testutil.Must(t, err)
	testutil.Must(t, m.h.Rename(ctx, d+"/a", d+"/it's b"))
	after, err := m.h.Stat(ctx, d+"/it's b")
	testutil.Must(t, err)
	if after.Inode != before.Inode || m.exists(t, d+"/a") {
		t.Errorf("it is another file, or there twice: %+v, %+v", before, after)
	}
	m.write(t, d+"/a", "second")
	wantErr(t, m.h.Rename(ctx, d+"/it's b", d+"/a"), fs.ErrExist, errors.Is)
	testutil.Must(t, m.h.Symlink(ctx, "nowhere", d+"/link"))
	wantErr(t, m.h.Rename(ctx, d+"/a", d+"/link"), fs.ErrExist, errors.Is)
	testutil.Must(t, m.h.MkdirAll(ctx, d+"/dir", 0o755, nil))
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
	testutil.Must(t, m.h.WriteFile(ctx, p, []byte(text), 0o640))
	testutil.Must(t, m.h.Compress(ctx, p))
	list, err := m.h.List(ctx, d)
	testutil.Must(t, err)
	if len(list) != 1 || list[0].Name != "0.log.20260102-030405.gz" || list[0].Mode != 0o640 || list[0].Size >= int64(len(text)) {
		t.Fatalf("left: %+v", list)
	}
	data, err := m.h.ReadFile(ctx, p+".gz", 1<<20)
	testutil.Must(t, err)
	z, err := gzip.NewReader(bytes.NewReader(data))
	testutil.Must(t, err)
	back, err := io.ReadAll(z)
	testutil.Must(t, err)
	if string(back) != text {
		t.Errorf("%d bytes came back of %d", len(back), len(text))
	}

	wantErr(t, m.h.Compress(ctx, p), fs.ErrNotExist, errors.Is)
	m.write(t, p, "again")
	testutil.Must(t, m.h.Compress(ctx, p)) // it replaces the result of the first call
	testutil.Must(t, m.h.Symlink(ctx, p+".gz", d+"/link"))
	testutil.Must(t, m.h.MkdirAll(ctx, d+"/dir", 0o755, nil))
	for _, bad := range []string{d + "/link", d + "/dir", "relative"} {
		if err := m.h.Compress(ctx, bad); err == nil {
			t.Errorf("%s was compressed", bad)
		}
	}
	// A directory has the name of the result: nothing changes.
	m.write(t, d+"/kept", "kept")
	testutil.Must(t, m.h.MkdirAll(ctx, d+"/kept.gz/full", 0o755, nil))
	if err := m.h.Compress(ctx, d+"/kept"); err == nil {
		t.Error("a directory was replaced")
	}
	m.wantFile(t, d+"/kept", "kept")
	list, err = m.h.List(ctx, d)
	testutil.Must(t, err)
	for _, info := range list {
		if strings.HasSuffix(info.Name, ".tmp") {
			t.Errorf("%s stays", info.Name)
		}
	}
}
