package vm

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// TestShutdown: the machine's own logind is asked to power off. It waits until the pods have ended,
// the critical one last. A cancelled shutdown restores the node; another one ends with the machine
// off.
func TestShutdown(t *testing.T) {
	if os.Getenv("BOWLINE_VM_DIR") != "" {
		t.Skip("it would shut down the machine that runs the tests")
	}
	machine, lab := boot(t, 2), cluster(t)
	d := manage(t, machine, lab, "systemd", "shutdownGracePeriod: 90s", "shutdownGracePeriodCriticalPods: 40s",
		"staticPodPath: /etc/kubernetes/manifests", "fileCheckFrequency: 1s")
	ctx := t.Context()
	d.until(t, "logind knows who wants it to wait", func(ctx context.Context) error {
		out, err := machine.Run(ctx, "systemd-inhibit --list --no-pager --no-legend")
		if err == nil && !(strings.Contains(out, "bowline") && strings.Contains(out, "delay")) {
			err = fmt.Errorf("it lists %q", out)
		}
		return err
	})
	pod := func(name, priority string) string {
		return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  %s
  terminationGracePeriodSeconds: 30
  automountServiceAccountToken: false
  containers: [{name: main, image: %s, command: [sh, -c, 'trap "sleep 5; exit 0" TERM; while :; do sleep 0.2; done']}]
`, name, priority, image)
	}
	const critical = "priorityClassName: system-node-critical"
	testutil.Must(t, machine.Write(ctx, "/etc/kubernetes/manifests/static.yaml", "644", []byte(pod("static", ""))))
	static := "static-" + d.name
	d.create(t, pod("web", ""))
	d.create(t, pod("critical", critical))
	d.runs(t, "web", "critical", static)

	// The target is refused after logind has begun to wait for us, like a unit that cannot be
	// started: logind then announces that the machine stays up.
	poweroff := func(more string) {
		t.Helper()
		_, err := machine.Run(ctx, "systemctl poweroff --no-wall"+more)
		testutil.Must(t, err)
		d.until(t, "the node says that it goes down", func(ctx context.Context) error { return d.says(ctx, v1.ConditionFalse, "node is shutting down") })
	}
	poweroff(" && systemctl mask --quiet --runtime poweroff.target")
	d.ended(t, "web", "critical")
	d.until(t, "the node is what it was", d.ready)
	d.runs(t, static) // no controller would recreate it
	out, err := machine.Run(ctx, "systemctl unmask --quiet --runtime poweroff.target; systemd-inhibit --list --no-pager --no-legend")
	testutil.Must(t, err)
	if !strings.Contains(out, "bowline") {
		t.Errorf("after a shutdown that came to nothing no one waits for the next one: %q", out)
	}

	d.create(t, pod("web-2", ""))
	d.create(t, pod("critical-2", critical))
	d.runs(t, "web-2", "critical-2")
	began := time.Now()
	poweroff("")
	testutil.Receive(t, machine.process.Ended(), patience, "the machine is still there")
	t.Logf("the machine was off after %s", time.Since(began).Round(time.Second))
	d.ended(t, "web-2", "critical-2")
	d.until(t, "the node's machine is out of reach", func(ctx context.Context) error { return d.says(ctx, v1.ConditionFalse, "") })
}

// says checks that the node's Ready condition has this status and message.
func (d *managed) says(ctx context.Context, status v1.ConditionStatus, message string) error {
	n, err := d.lab.Client.CoreV1().Nodes().Get(ctx, d.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady && c.Status == status && strings.Contains(c.Message, message) {
			return nil
		}
	}
	return fmt.Errorf("the node says %+v", n.Status.Conditions)
}

// ended checks that both pods ended by themselves before the machine went down, the critical one
// after the other.
func (d *managed) ended(t *testing.T, pod, critical string) {
	t.Helper()
	var at []time.Time
	for _, name := range []string{pod, critical} {
		_, err := d.lab.Pod(t.Context(), "default", name, patience, "it has ended for the shutdown", func(p *v1.Pod) error {
			c := labtest.Container(p, "main")
			if p.Status.Phase != v1.PodFailed || p.Status.Reason != "Terminated" || c == nil || c.State.Terminated == nil {
				return fmt.Errorf("%s", labtest.Describe(p))
			}
			if end := c.State.Terminated; end.ExitCode != 0 {
				t.Errorf("%s did not end by itself: %+v", name, end)
			}
			at = append(at, c.State.Terminated.FinishedAt.Time)
			return nil
		})
		testutil.Must(t, err)
	}
	if at[1].Before(at[0].Add(4 * time.Second)) {
		t.Errorf("%s ended at %s, and %s, which takes five seconds to end, at %s", pod, at[0], critical, at[1])
	}
}
