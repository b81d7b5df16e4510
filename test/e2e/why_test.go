package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// why runs the program itself, as a user does on any machine with a kubeconfig.
func why(ctx context.Context, args ...string) (labtest.Output, error) {
	program, err := labtest.BuiltBowline()
	if err != nil {
		return labtest.Output{}, err
	}
	return labtest.Capture(exec.CommandContext(ctx, program,
		append([]string{"why", "pod", "--kubeconfig", lab.Status.Cluster.AdminKubeconfig}, args...)...))
}

// explained waits until both forms of the answer contain every word, and the report satisfies is.
func explained(t *testing.T, ns, name string, is func(*pod.WhyReport) bool, words ...string) *pod.WhyReport {
	t.Helper()
	var report pod.WhyReport
	var text string
	err := labtest.Until(t.Context(), patience, "why "+name, func(ctx context.Context) error {
		out, err := why(ctx, ns+"/"+name)
		if err != nil || out.Code != 0 {
			return fmt.Errorf("exit code %d: %s %w", out.Code, out.Stderr, err)
		}
		text = out.Stdout
		asJSON, err := why(ctx, ns+"/"+name, "-o", "json")
		if err != nil || asJSON.Code != 0 {
			return fmt.Errorf("exit code %d: %s %w", asJSON.Code, asJSON.Stderr, err)
		}
		report = pod.WhyReport{}
		if err := json.Unmarshal([]byte(asJSON.Stdout), &report); err != nil {
			return err
		}
		for _, word := range words {
			if !strings.Contains(text, word) || !strings.Contains(asJSON.Stdout, word) {
				return fmt.Errorf("%q is missing in:\n%s\n%s", word, text, asJSON.Stdout)
			}
		}
		if !is(&report) {
			return fmt.Errorf("it is another report:\n%s", asJSON.Stdout)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("why %s:\n%s", name, text)
	if report.Name != name || report.Node != host || report.Reason == "" || report.Phase == "" || len(report.Decisions) == 0 {
		t.Errorf("the report is not complete: %+v", report)
	}
	return &report
}

// waits reports whether the report names a back-off, and until when the pod waits.
func waits(r *pod.WhyReport) bool {
	return len(r.Backoffs) > 0 && r.Waits != nil && !r.Waits.Until.IsZero()
}

func TestWhy(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	one := func(name, container string) {
		create(t, ns, brief(name, "containers: ["+container+"]"))
	}
	one("runs", "{name: main, image: $TOOLBOX, command: [sleep, inf]}")
	one("no-image", "{name: main, image: registry.lab/none:at-all}")
	one("no-config", "{name: main, image: $TOOLBOX, envFrom: [{configMapRef: {name: absent-map}}]}")
	one("crashes", `{name: main, image: $TOOLBOX, command: [sh, -c, "exit 4"]}`)
	ready(t, ns, "runs")

	t.Run("runs", func(t *testing.T) {
		t.Parallel()
		explained(t, ns, "runs", func(r *pod.WhyReport) bool {
			o := r.Observed
			return len(o.Sandboxes) == 1 && len(o.Containers) == 1 && o.Containers[0].State == "Running" && o.Stale == "" &&
				!o.At.IsZero() && time.Since(o.At) < 2*time.Minute
		}, "Syncing", "Running")
	})
	t.Run("no image", func(t *testing.T) {
		t.Parallel()
		waiting(t, ns, "no-image", "main", "ImagePullBackOff")
		explained(t, ns, "no-image", waits, "ImagePullBackOff", "registry.lab/none:at-all")
	})
	t.Run("no configMap", func(t *testing.T) {
		t.Parallel()
		waiting(t, ns, "no-config", "main", "CreateContainerConfigError")
		explained(t, ns, "no-config", waits, "absent-map")
	})
	t.Run("crashes", func(t *testing.T) {
		t.Parallel()
		waiting(t, ns, "crashes", "main", "CrashLoopBackOff")
		explained(t, ns, "crashes", waits, "back-off")
	})
	t.Run("not there", func(t *testing.T) {
		t.Parallel()
		out, err := why(t.Context(), ns+"/nobody")
		testutil.Must(t, err)
		if out.Code == 0 || !strings.Contains(out.Stderr, "not found") {
			t.Errorf("exit code %d: %s", out.Code, out.Stderr)
		}
	})
	t.Run("on no node", func(t *testing.T) {
		t.Parallel()
		create(t, ns, "metadata: {name: homeless}\nspec:\n  nodeSelector: {no: such}\n  containers: [{name: main, image: $TOOLBOX}]\n")
		podIs(t, ns, "homeless", patience, "is found unschedulable", func(p *v1.Pod) error {
			if c := labtest.Condition(p, v1.PodScheduled); c == nil || c.Reason != v1.PodReasonUnschedulable {
				return fmt.Errorf("%v", c)
			}
			return nil
		})
		out, err := why(t.Context(), ns+"/homeless")
		testutil.Must(t, err)
		if out.Code == 0 || !strings.Contains(out.Stderr, "no node") {
			t.Errorf("exit code %d: %s", out.Code, out.Stderr)
		}
	})
}
