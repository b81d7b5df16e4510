package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// shifted changes the times in a runtime's answers as if its clock were off.
func shifted(by time.Duration) func(method string, message []byte) ([]byte, error) {
	shift := func(times ...*int64) {
		for _, t := range times {
			if *t > 0 {
				*t += int64(by)
			}
		}
	}
	return func(method string, message []byte) ([]byte, error) {
		var answer proto.Message
		var change func()
		switch method {
		case "ListPodSandbox":
			a := &runtimeapi.ListPodSandboxResponse{}
			answer, change = a, func() {
				for _, s := range a.Items {
					shift(&s.CreatedAt)
				}
			}
		case "PodSandboxStatus":
			a := &runtimeapi.PodSandboxStatusResponse{}
			answer, change = a, func() { shift(&a.Status.CreatedAt) }
		case "ListContainers":
			a := &runtimeapi.ListContainersResponse{}
			answer, change = a, func() {
				for _, c := range a.Containers {
					shift(&c.CreatedAt)
				}
			}
		case "ContainerStatus":
			a := &runtimeapi.ContainerStatusResponse{}
			answer, change = a, func() { shift(&a.Status.CreatedAt, &a.Status.StartedAt, &a.Status.FinishedAt) }
		default:
			return message, nil
		}
		if err := proto.Unmarshal(message, answer); err != nil {
			return nil, err
		}
		change()
		return proto.Marshal(answer)
	}
}

// setClock makes the output of the machine's date command, from which a driver reads the clock, be
// off. It leaves the kernel's clock alone, which all hosts share. right restores date.
func setClock(t *testing.T, by time.Duration) (right func()) {
	t.Helper()
	run := func(ctx context.Context, script string) {
		t.Helper()
		if out, err := lab.Exec(ctx, host, "sh", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	run(t.Context(), fmt.Sprintf(`set -e
cp /usr/bin/date /run/date.true
cat >/run/date.off <<'EOT'
#!/bin/sh
exec /run/date.true -d "%+d seconds" "$@"
EOT
chmod 755 /run/date.off
mount --bind /run/date.off /usr/bin/date`, int(by.Seconds())))
	right = sync.OnceFunc(func() { run(context.Background(), "umount /usr/bin/date && rm /run/date.true /run/date.off") })
	t.Cleanup(right)
	return right
}

// A pod that ends while the link is down, on a machine whose clock is four minutes off, is reported
// with its true exit code and times.
func TestClockIsWrong(t *testing.T) {
	serial(t)
	onlyRemote(t)
	for _, by := range []time.Duration{4 * time.Minute, -4 * time.Minute} {
		t.Run(by.String(), func(t *testing.T) {
			const socket = "/run/shifted.sock"
			ns, dir, h := namespace(t), hostDir(t), lab.Host(host)
			right := setClock(t, by)
			newRecorder(t, fmt.Sprintf("/proc/%d/root%s", h.PID, socket), h.OutsideSocket, shifted(by))
			withoutBowline(t, func() {
				defer right() // before the suite's own driver looks at it
				w, err := labtest.NewWire(h.SSH.Address)
				testutil.Must(t, err)
				defer w.Close()
				lines, err := lab.SSHLines(host, w.Address())
				testutil.Must(t, err)
				lines[0] = fmt.Sprintf("endpoint: ssh://%s@%s%s", h.SSH.User, w.Address(), socket)
				file := filepath.Join(dir, "bowline.yaml")
				testutil.Must(t, os.WriteFile(file, []byte(lab.ConfigYAML(host, lines...)), 0o644))
				b := &labtest.Bowline{Lab: lab, Host: host, Wire: w, Config: file, Args: []string{"-v=2"}, LogPath: bowline.LogPath}
				testutil.Must(t, b.Start())
				defer func() { testutil.Must(t, b.Stop()) }()
				create(t, ns, `
metadata: {name: ends}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "until test -e /d/end; do sleep 0.2; done; exit 7"]
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, hostPath: {path: `+dir+`}}]
`)
				ready(t, ns, "ends")
				w.Cut()
				testutil.Must(t, os.WriteFile(filepath.Join(dir, "end"), nil, 0o644))
				truth := &runtimeapi.ContainerStatus{}
				testutil.Must(t, labtest.Until(t.Context(), patience, "the container ends", func(ctx context.Context) error {
					list, err := runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.namespace": ns}})
					if err != nil || len(list) != 1 {
						return fmt.Errorf("%d containers: %w", len(list), err)
					}
					if truth, err = runtime.ContainerStatus(ctx, list[0].Id); err == nil && truth.FinishedAt == 0 {
						err = fmt.Errorf("it is %s", truth.State)
					}
					return err
				}))
				w.Restore()
				p := ended(t, ns, "ends", v1.PodFailed)
				state := labtest.Container(p, "main").State.Terminated
				if state == nil || state.ExitCode != 7 {
					t.Fatalf("the status says that it ended so: %+v", state)
				}
				for what, pair := range map[string][2]time.Time{
					"started":  {state.StartedAt.Time, time.Unix(0, truth.StartedAt)},
					"finished": {state.FinishedAt.Time, time.Unix(0, truth.FinishedAt)},
				} {
					// A wrong clock is off by four minutes.
					if off := pair[0].Sub(pair[1]); off.Abs() > time.Minute {
						t.Errorf("the status says that it %s at %s, and did at %s", what, pair[0].UTC(), pair[1].UTC())
					}
				}
			})
		})
	}
}

// A machine's clock is corrected while Bowline manages it, as happens some time after the boot of a
// machine without a hardware clock: probes keep their schedule, and the reported start time is
// true.
func TestClockIsSet(t *testing.T) {
	serial(t)
	onlyRemote(t)
	for _, by := range []time.Duration{4 * time.Minute, -4 * time.Minute} {
		t.Run(by.String(), func(t *testing.T) {
			ns, right := namespace(t), setClock(t, by)
			withoutBowline(t, func() {}) // the process that starts measures the wrong clock
			defer withoutBowline(t, right)
			right()
			begin := time.Now()
			create(t, ns, `
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: $WEB
    readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
`)
			p := readyWithin(t, 2*time.Minute, ns, "web")
			t.Logf("Ready after %s", time.Since(begin).Round(time.Millisecond))
			// A wrong clock is off by four minutes.
			started := labtest.Container(p, "web").State.Running.StartedAt.Time
			if started.Before(begin.Add(-30*time.Second)) || started.After(time.Now().Add(30*time.Second)) {
				t.Errorf("the status says that it started at %s, and was asked for at %s", started.UTC(), begin.UTC())
			}
		})
	}
}
