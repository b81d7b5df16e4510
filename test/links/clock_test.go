package links

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// A pod that ends while the link is down is reported with its true exit code and times, on machines
// whose clocks are four minutes off.
func TestClockIsWrong(t *testing.T) {
	if os.Getenv("BOWLINE_E2E") != "1" {
		t.Skip("needs root and the lab: BOWLINE_E2E=1 runs it")
	}
	a := &arena{hits: map[string]int{}}
	a.bringUp(t, 2, []time.Duration{4 * time.Minute, -4 * time.Minute})
	a.each(t, func(n *node) error {
		ctx, lab, name := t.Context(), a.fakes.Lab, "ends-"+n.Name
		if _, err := lab.Client.CoreV1().Pods(a.namespace).Create(ctx, &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1.PodSpec{NodeName: n.Name, RestartPolicy: v1.RestartPolicyNever, Containers: []v1.Container{{
				Name: "main", Image: imageOf(name), Command: []string{"/" + fake.TestImage, "wait"}}}},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := lab.PodReady(ctx, a.namespace, name, patience); err != nil {
			return err
		}
		n.Wire.Cut()
		defer n.Wire.Restore()
		id := ""
		for _, e := range n.Runtime.Log() {
			if e.Op == fake.OpStart && strings.Contains(e.Pod, "/"+name+" ") {
				id = e.ID
			}
		}
		if err := n.Runtime.Exit(id, 7); err != nil {
			return err
		}
		n.Wire.Restore()
		p, err := lab.Pod(ctx, a.namespace, name, patience, "Failed", func(p *v1.Pod) error {
			if p.Status.Phase != v1.PodFailed {
				return fmt.Errorf("it is %s", p.Status.Phase)
			}
			return nil
		})
		if err != nil {
			return err
		}
		ended := labtest.Container(p, "main").State.Terminated
		if ended.ExitCode != 7 {
			return fmt.Errorf("it is reported to have ended with %d, not 7", ended.ExitCode)
		}
		for _, e := range n.Runtime.Log() {
			if e.ID != id {
				continue
			}
			when := ended.FinishedAt.Time
			switch e.Op {
			case fake.OpStart:
				when = ended.StartedAt.Time
			case fake.OpExit:
			default:
				continue
			}
			// A wrong clock is off by four.
			if off := when.Sub(e.Time); off.Abs() > time.Minute {
				return fmt.Errorf("%s is reported to have been at %s, it was at %s", e.Op, when.UTC(), e.Time.UTC())
			}
		}
		return nil
	})
}
