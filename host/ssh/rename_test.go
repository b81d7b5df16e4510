package ssh_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// However many logs are rotated at once, one is compressed at a time: each compression occupies
// a shell, and operations that pods wait for need one too.
func TestOneCompressionAtATime(t *testing.T) {
	dir := t.TempDir()
	// It reports another one that runs at the same time.
	gzip := "#!/bin/sh\nmkdir " + dir + "/at-work || touch " + dir + "/two\ncat\nhead -c 1000000 /dev/urandom | sha256sum >/dev/null\nrmdir " + dir + "/at-work\n"
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "bin", "gzip"), []byte(gzip), 0o755))
	h := open(t, ssh.Config{Path: filepath.Join(dir, "bin") + ":" + shell.DefaultPath})
	closeHost(t, h)
	var all sync.WaitGroup
	for i := range 6 {
		file := filepath.Join(dir, strconv.Itoa(i))
		testutil.Must(t, os.WriteFile(file, []byte("a log"), 0o640))
		all.Go(func() {
			if err := h.Compress(t.Context(), file); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(file + ".gz"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if _, err := os.Stat(filepath.Join(dir, "two")); err == nil {
		t.Error("two files were compressed at once")
	}
}

// A call that waits for another compression returns when its context is cancelled.
func TestACompressionThatWaits(t *testing.T) {
	dir := t.TempDir()
	begun, free := filepath.Join(dir, "begun"), filepath.Join(dir, "free")
	gzip := "#!/bin/sh\ncat\ntouch " + begun + "\nuntil [ -e " + free + " ]; do sleep 0.05; done\n"
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "bin", "gzip"), []byte(gzip), 0o755))
	for _, name := range []string{"a", "b"} {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o640))
	}
	h := open(t, ssh.Config{Path: filepath.Join(dir, "bin") + ":" + shell.DefaultPath})
	closeHost(t, h)
	first := make(chan error, 1)
	go func() { first <- h.Compress(t.Context(), filepath.Join(dir, "a")) }()
	testutil.Eventually(t, "the first compression has begun", func() bool { _, err := os.Stat(begun); return err == nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Compress(ctx, filepath.Join(dir, "b")); !errors.Is(err, context.Canceled) {
		t.Errorf("the second: %v", err)
	}
	testutil.Must(t, os.WriteFile(free, nil, 0o644))
	if err := <-first; err != nil {
		t.Error(err)
	}
}
