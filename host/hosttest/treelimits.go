package hosttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// testTreeLarge writes as much as the API server accepts in one ConfigMap, in many keys.
func testTreeLarge(t *testing.T, m *machine) {
	ctx := context.Background()
	dir := m.dir(t) + "/volume"
	large := func(version string) host.Tree {
		w := host.Tree{}
		for i := range 1000 {
			w[fmt.Sprintf("key-%03d", i)] = host.TreeFile{Data: []byte(strings.Repeat(version, 1024)), Mode: 0o644}
		}
		return w
	}
	// seen returns the number of files, their total size, and each distinct content once.
	seen := func() string {
		return m.output(t, "sh", "-c", `cd "$1" && ls | wc -l | tr -d ' ' && cat key-* | wc -c | tr -d ' ' && cat key-* | fold -w 1024 | sort -u | cut -c 1-3`, "sh", dir)
	}
	began := time.Now()
	testutil.Must(t, m.h.WriteTree(ctx, dir, large("b")))
	t.Logf("1 MiB in 1000 files took %s", time.Since(began).Round(time.Millisecond))
	if got := seen(); got != "1000\n1024000\nbbb" {
		t.Errorf("the volume holds %q", got)
	}
	before, err := m.h.Stat(ctx, dir+"/..data")
	testutil.Must(t, err)
	testutil.Must(t, m.h.WriteTree(ctx, dir, large("b")))
	if now, err := m.h.Stat(ctx, dir+"/..data"); err != nil || now.Target != before.Target {
		t.Errorf("unchanged content was rewritten: %v", err)
	}
	one := large("b")
	one["key-500"] = host.TreeFile{Data: []byte(strings.Repeat("c", 1024)), Mode: 0o644}
	testutil.Must(t, m.h.WriteTree(ctx, dir, one))
	if got := seen(); got != "1000\n1024000\nbbb\nccc" {
		t.Errorf("after one key changed: %q", got)
	}
	testutil.Must(t, m.h.WriteTree(ctx, dir, tree("only", "1")))
	m.wantTree(t, dir, tree("only", "1"))
}

// testTreeFull: a full disk returns ENOSPC and the old content stays complete; once there is
// room, the write succeeds.
func testTreeFull(t *testing.T, m *machine) {
	ctx := context.Background()
	m.mounts(t)
	small := m.dir(t) + "/small"
	testutil.Must(t, m.h.Mount(ctx, host.Mount{Source: "tmpfs", Target: small, Type: "tmpfs", Options: []string{"size=256k"}}))
	t.Cleanup(func() {
		if err := m.h.Unmount(context.Background(), small); err != nil {
			t.Error(err)
		}
	})
	dir := small + "/volume"
	first, second := tree("a", "1", "b", "1"), tree("a", strings.Repeat("2", 20_000), "b", strings.Repeat("2", 20_000))
	testutil.Must(t, m.h.WriteTree(ctx, dir, first))
	m.run(t, "sh", "-c", `cat /dev/zero >"$1" 2>/dev/null || :`, "sh", small+"/ballast")
	for range 2 {
		err := m.h.WriteTree(ctx, dir, second)
		wantErr(t, err, syscall.ENOSPC, errors.Is)
		m.wantFile(t, dir+"/a", "1")
		m.wantFile(t, dir+"/b", "1")
	}
	if err := m.h.WriteFile(ctx, small+"/file", []byte(strings.Repeat("x", 20_000)), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a file: %v", err)
	}
	if _, err := m.h.Make(ctx, host.Entry{Path: small + "/file", Data: []byte(strings.Repeat("x", 20_000)), Mode: 0o644}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a file by Make: %v", err)
	}
	if m.exists(t, small+"/file") {
		t.Error("a file was written in part")
	}
	m.run(t, "rm", small+"/ballast")
	testutil.Must(t, m.h.WriteTree(ctx, dir, second))
	m.wantTree(t, dir, second)
}
