package program

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func world(args ...string) (World, *bytes.Buffer, *bytes.Buffer, chan struct{}) {
	var out, errs bytes.Buffer
	term := make(chan struct{}, 4)
	return World{Args: args, Stdout: &out, Stderr: &errs, Stdin: strings.NewReader("typed"), Term: term,
		Env: []string{"A=1", "B=two"}, Path: func(p string) string { return p }}, &out, &errs, term
}

func TestScript(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	w, out, errs, _ := world("out hello you", "err oops", "lines 2 n", "cat", "env B", "append "+file+" x y", "read "+file, "exit 7", "out never")
	if code := Run(t.Context(), w); code != 7 {
		t.Errorf("exit %d, want 7", code)
	}
	if got, want := out.String(), "hello you\nn 0\nn 1\ntypedtwo\nx y\n"; got != want {
		t.Errorf("stdout %q, want %q", got, want)
	}
	if got := errs.String(); got != "oops\n" {
		t.Errorf("stderr %q", got)
	}
}

func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		steps []string
		want  int
		after time.Duration
	}{
		"end of script": {[]string{"sleep 3s"}, 0, 3 * time.Second},
		"term":          {[]string{"wait"}, ExitTerm, 5 * time.Second},
		"own code":      {[]string{"on-term 9", "wait"}, 9, 5 * time.Second},
		"ignored":       {[]string{"ignore-term", "sleep 8s", "exit 4"}, 4, 8 * time.Second},
		"not a step":    {[]string{"dance"}, ExitUsage, 0},
		"no file":       {[]string{"read /none/there"}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, _, _, term := world(c.steps...)
				start := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan int, 1)
				go func() { done <- Run(ctx, w) }()
				time.Sleep(5 * time.Second)
				term <- struct{}{}
				if code := <-done; code != c.want {
					t.Errorf("exit %d, want %d", code, c.want)
				}
				if c.after > 5*time.Second && time.Since(start) != c.after {
					t.Errorf("ended after %v, want %v", time.Since(start), c.after)
				}
			})
		})
	}
}
