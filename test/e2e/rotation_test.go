package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A container's log is rotated at its default size, and older files are compressed. A client that
// follows gets each line once; one that does not follow gets the current file, as from a kubelet.
// All log options can be combined.
func TestLogRotation(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	// Lines of 1 KiB: 11,000 exceed the 10 MiB at which a log is rotated.
	create(t, ns, brief("talks", `
  restartPolicy: Never
  containers:
  - name: main
    image: $TOOLBOX
    command:
    - sh
    - -c
    - |
      long=0123456789abcdef
      for i in 1 2 3 4 5 6; do long=$long$long; done
      n=0
      many() { end=$((n+11000)); while [ $n -lt $end ]; do echo "$n $long"; n=$((n+1)); done; }
      until_file() { while [ ! -e $1 ]; do echo "$n $long"; n=$((n+1)); sleep 0.2; done; }
      echo to-stderr >&2
      until_file /tmp/begin; many; until_file /tmp/more; many; until_file /tmp/end
      echo "$n $long"
    volumeMounts: [{name: tmp, mountPath: /tmp}]
  volumes: [{name: tmp, emptyDir: {}}]
`))
	ready(t, ns, "talks")
	followed := make(chan string, 1)
	go func() {
		// Longer than the test waits: kubectl must end by itself.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		out, err := lab.Kubectl(ctx, "logs", "-n", ns, "talks", "-f")
		if err != nil {
			out.Stdout = err.Error()
		}
		followed <- out.Stdout
	}()
	until(t, "the log before any rotation has the line of standard error", func(ctx context.Context) error {
		got, err := readLogs(ctx, ns, "talks")
		if err == nil && !strings.Contains(got, "to-stderr\n") {
			err = fmt.Errorf("it is %.100q", got)
		}
		return err
	})
	dir := filepath.Join(lab.Host(host).Root, "var/log/pods", ns+"_talks_*/main")
	files := func(pattern string, want int) {
		t.Helper()
		until(t, fmt.Sprintf("%d files %s", want, pattern), func(context.Context) error {
			got, err := filepath.Glob(filepath.Join(dir, pattern))
			if err == nil && len(got) != want {
				every, _ := filepath.Glob(filepath.Join(dir, "*"))
				err = fmt.Errorf("%d of %v", len(got), every)
			}
			return err
		})
	}
	kubectl(t, "exec", "-n", ns, "talks", "--", "touch", "/tmp/begin")
	files("0.log.*", 1)
	files("0.log", 1)
	var now string
	until(t, "the log that is written to now", func(ctx context.Context) (err error) {
		if now, err = readLogs(ctx, ns, "talks"); err == nil && now == "" {
			err = errors.New("empty yet")
		}
		return err
	})
	if strings.HasPrefix(now, "0 ") || strings.Count(now, "\n") > 5000 || strings.Contains(now, "to-stderr") {
		t.Errorf("without following: %d lines from %.20q", strings.Count(now, "\n"), now)
	}
	if got := logs(t, ns, "talks", "--tail=3", "--limit-bytes=20", "--timestamps", "--since=1h"); len(got) != 20 || !strings.HasPrefix(got, "20") {
		t.Errorf("20 bytes of the last lines: %q", got)
	}
	kubectl(t, "exec", "-n", ns, "talks", "--", "touch", "/tmp/more")
	files("0.log.*.gz", 1)
	files("0.log.*", 2)
	kubectl(t, "exec", "-n", ns, "talks", "--", "touch", "/tmp/end")

	lines := strings.Split(strings.TrimSuffix(<-followed, "\n"), "\n")
	n := 0
	for _, l := range lines {
		if l == "to-stderr" {
			continue
		}
		if number, text, _ := strings.Cut(l, " "); number != fmt.Sprint(n) || len(text) != 1024 {
			t.Fatalf("line %d of what was followed is %.30q, %d bytes", n, l, len(l))
		}
		n++
	}
	if n < 22000 {
		t.Errorf("%d lines were followed", n)
	}
}
