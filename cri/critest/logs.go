package critest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/logs"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func testLogs(s *suite, t *testing.T) {
	long := strings.Repeat("0123456789", 4000) // longer than any runtime's longest line
	id, _, sandbox := s.start(t, s.script("c", "out first", "err second", "out "+long, "lines 3 n"))
	s.exited(t, id)
	path := filepath.Join(sandbox.LogDirectory, "c.log")
	var out, errs bytes.Buffer
	testutil.Must(t, logs.Read(t.Context(), files{}, path, &v1.PodLogOptions{}, nil, &out, &errs))
	if want := "first\n" + long + "\nn 0\nn 1\nn 2\n"; out.String() != want || errs.String() != "second\n" {
		t.Errorf("stdout of %d bytes, want %d; stderr %q", out.Len(), len(want), errs.String())
	}
	// The runtime decides the order of lines of different streams, so take the tail of one stream.
	id, _, sandbox = s.start(t, s.script("c", "lines 3 n"))
	s.exited(t, id)
	path = filepath.Join(sandbox.LogDirectory, "c.log")
	out.Reset()
	tail := int64(2)
	testutil.Must(t, logs.Read(t.Context(), files{}, path, &v1.PodLogOptions{TailLines: &tail, Timestamps: true}, nil, &out, &out))
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], "Z n 1") || !strings.HasSuffix(lines[1], "Z n 2") {
		t.Errorf("tail %q", out.String())
	}
	at, err := time.Parse(time.RFC3339Nano, strings.Fields(lines[0])[0])
	if err != nil || time.Since(at).Abs() > time.Hour {
		t.Errorf("time stamp %v, %v", at, err)
	}
}

// A follower loses no line and sees none twice while the log is rotated.
func testLogRotation(s *suite, t *testing.T) {
	ctx := t.Context()
	id, _, sandbox := s.start(t, s.script("c", "each 2ms n"))
	path := filepath.Join(sandbox.LogDirectory, "c.log")
	s.logHas(t, path, "n 10")
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() {
		done <- logs.Read(ctx, files{}, path, &v1.PodLogOptions{Follow: true}, func(ctx context.Context) (bool, error) {
			st, err := s.Client.ContainerStatus(ctx, id)
			return st.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING, err
		}, &out, &out)
	}()
	for i := range 2 {
		<-time.After(1500 * time.Millisecond)
		testutil.Must(t, os.Rename(path, fmt.Sprintf("%s.%d", path, i)))
		testutil.Must(t, s.Client.ReopenContainerLog(ctx, id))
	}
	s.logHas(t, path, "n ")
	testutil.Must(t, s.Client.StopContainer(ctx, id, 5*time.Second))
	testutil.Must(t, <-done)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	for i, l := range lines {
		if l != fmt.Sprintf("n %d", i) {
			t.Fatalf("line %d is %q", i, l)
		}
	}
	if len(lines) < 200 {
		t.Errorf("only %d lines", len(lines))
	}
	if err := s.Client.ReopenContainerLog(ctx, id); err == nil {
		t.Error("the log of an exited container was opened again")
	}
}
