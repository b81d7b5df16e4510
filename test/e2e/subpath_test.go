package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// A container flips the path that others mount by subPath: directory, file, FIFO, links out of the
// volume. No container ever sees anything outside the volume, and each starts in the end.
// BOWLINE_SUBPATH=full flips for a minute while 200 start; on a remote host it adds a pause between
// the check of each and its mount.
func TestSubPathFlips(t *testing.T) {
	full := os.Getenv("BOWLINE_SUBPATH") == "full"
	if full {
		serial(t)
	} else {
		parallel(t)
	}
	ns := namespace(t)
	pods, containers, pause, pace := 2, 12, 0*time.Second, "2ms"
	if remote {
		pace = "200ms" // a path that flips while the script runs is refused, so at a higher pace none would start
	}
	if full {
		pace = "20ms"
		pods, containers, pause = 20, 10, 3*time.Second
		if remote {
			slowMounts(t)
		}
	}
	dir := hostDir(t)
	testutil.Must(t, os.MkdirAll(filepath.Join(dir, "volume/old"), 0o777))
	testutil.Must(t, os.MkdirAll(filepath.Join(dir, "out"), 0o777))
	testutil.Must(t, os.MkdirAll(filepath.Join(dir, "outside"), 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "outside/x"), []byte("OUTSIDE\n"), 0o644))

	// The old target of the path exists for a while longer, because a mount of a removed directory
	// shows nothing.
	create(t, ns, brief("flips", `
  containers:
  - name: main
    image: $TOOLBOX
    command:
    - sh
    - -c
    - |
      cd /v
      i=0
      while [ ! -e stop ]; do
        i=$((i + 1))
        mv x old/$i 2>/dev/null
        case $((i % 6)) in
        0) mkdir x && echo inside >x/x ;;
        1) echo inside >x ;;
        2) ln -s ../outside x ;;
        3) mkfifo x ;;
        4) ln -s `+dir+`/outside/x x ;;
        5) ln -s ../outside/x x ;;
        esac 2>/dev/null
        rm -rf old/$((i - 2000))
        sleep `+pace+`
      done
      mv x old/last
      mkdir x
      echo inside >x/x
      echo $i >flips
    volumeMounts: [{name: v, mountPath: /v}]
  restartPolicy: Never
  volumes: [{name: v, hostPath: {path: `+dir+`/volume}}]
`))
	until(t, "the first flips", func(context.Context) error {
		list, err := os.ReadDir(filepath.Join(dir, "volume/old"))
		if err == nil && len(list) < 10 {
			err = fmt.Errorf("%d flips", len(list))
		}
		return err
	})
	began := time.Now()
	for i := range pods {
		var list strings.Builder
		for j := range containers {
			part := []string{"x", "x", "x/x"}[j%3]
			fmt.Fprintf(&list, `
  - name: c%d
    image: $TOOLBOX
    command: [sh, -c, 'if [ -p /s ]; then append /out/seen fifo; elif [ -d /s ]; then append /out/seen "dir $(cat /s/x 2>/dev/null)"; else append /out/seen "file $(cat /s)"; fi']
    volumeMounts: [{name: v, mountPath: /s, subPath: %s}, {name: out, mountPath: /out}]`, j, part)
		}
		create(t, ns, fmt.Sprintf(`
metadata: {name: reads%d, labels: {reads: "yes"}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: OnFailure
  containers:%s
  volumes: [{name: v, hostPath: {path: %[3]s/volume}}, {name: out, hostPath: {path: %[3]s/out}}]
`, i, list.String(), dir))
		if pause > 0 {
			testutil.Must(t, labtest.Holds(t.Context(), pause, "nothing is seen from outside", func(context.Context) error { return sees(dir) }))
		}
	}
	// Some start while the path flips; the rest start when it stops.
	some := pods * containers / 4
	testutil.Must(t, labtest.Until(t.Context(), 90*time.Second, "some containers have seen something", func(context.Context) error {
		if err := sees(dir); err != nil {
			return err
		}
		if n := starts(t, dir, "out/seen"); n < some {
			return fmt.Errorf("%d of %d have", n, some)
		}
		return nil
	}))
	during := starts(t, dir, "out/seen")
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "volume/stop"), nil, 0o644))
	p := ended(t, ns, "flips", v1.PodSucceeded)
	testutil.Must(t, labtest.Until(t.Context(), 4*time.Minute, "every pod ends well", func(ctx context.Context) error {
		list, err := lab.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "reads"})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if list.Items[i].Status.Phase != v1.PodSucceeded {
				return fmt.Errorf("%s", labtest.Describe(&list.Items[i]))
			}
		}
		return nil
	}))
	testutil.Must(t, sees(dir))
	seen := testutil.ReadFile(t, filepath.Join(dir, "out/seen"))
	kinds := map[string]int{}
	for line := range strings.Lines(string(seen)) {
		kinds[strings.TrimSpace(line)]++
	}
	flips := testutil.ReadFile(t, filepath.Join(dir, "volume/flips"))
	t.Logf("%d containers in %s, %d of them during %s flips; seen: %v", pods*containers, time.Since(began).Round(time.Second), during,
		strings.TrimSpace(string(flips)), kinds)
	if n := strings.Count(string(seen), "\n"); n < pods*containers {
		t.Errorf("%d of %d containers have run", n, pods*containers)
	}

	// The mounts go with the pods. The API server removes ended pods at once, without waiting for
	// the node.
	kubectl(t, "delete", "pod", "-n", ns, "--all", "--wait=true", "--timeout=120s")
	until(t, "no subPath is mounted", unmounted(t, string(p.UID), "volume-subpaths/v/c"))
}

// unmounted returns the condition that no mount of the host contains any of these words.
func unmounted(t *testing.T, words ...string) func(context.Context) error {
	return func(context.Context) error {
		for line := range strings.Lines(inHost(t, "cat", "/proc/self/mountinfo")) {
			for _, word := range words {
				if strings.Contains(line, word) {
					return fmt.Errorf("left: %s", line)
				}
			}
		}
		return nil
	}
}

// sees fails if a container has seen a file outside the volume.
func sees(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "out/seen"))
	if err == nil && strings.Contains(string(data), "OUTSIDE") {
		return fmt.Errorf("what is outside was seen: %s", data)
	}
	return nil
}

// slowMounts replaces mount on the host by a program that waits before each bind mount.
func slowMounts(t *testing.T) {
	t.Helper()
	real, err := exec.LookPath("mount")
	testutil.Must(t, err)
	real, err = filepath.EvalSymlinks(real)
	testutil.Must(t, err)
	dir := hostDir(t)
	data := testutil.ReadFile(t, real)
	testutil.Must(t, os.WriteFile(dir+"/mount", data, 0o755))
	testutil.Must(t, os.WriteFile(dir+"/slow", []byte("#!/bin/sh\ncase $* in\n*--bind*) sleep 0.1 ;;\nesac\nexec "+dir+"/mount \"$@\"\n"), 0o755))
	inHost(t, "mount", "--bind", dir+"/slow", real)
	t.Cleanup(func() { onHost(t, "umount", real) })
}
