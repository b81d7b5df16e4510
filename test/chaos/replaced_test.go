package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
	"github.com/bowline-k8s/bowline/test/oracle"
)

// job runs a Job of one pod to its end, once and without a retry, while the fault strikes; then it
// deletes the Job.
func (n *node) job(ctx context.Context, name string, f *fault) []string {
	ctx, cancel := n.oneCase(ctx)
	defer cancel(nil)
	dir, err := shared(n.dir, name)
	if err != nil {
		return []string{err.Error()}
	}
	if err := n.arm(f); err != nil {
		return []string{err.Error()}
	}
	one, none, grace := int32(1), int32(0), int64(5)
	jobs := n.lab.Client.BatchV1().Jobs(namespace)
	if _, err := jobs.Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.JobSpec{Completions: &one, Parallelism: &one, BackoffLimit: &none, Template: v1.PodTemplateSpec{Spec: v1.PodSpec{
			NodeName: n.name, RestartPolicy: v1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
			Containers: []v1.Container{container("work", "sleep 0.2; LEAVE")}, Volumes: []v1.Volume{hostPath(dir)},
		}}},
	}, metav1.CreateOptions{}); err != nil {
		return []string{err.Error()}
	}
	var bad []string
	var end *batchv1.Job
	cut := false
	if err := labtest.Until(ctx, patience, "the Job's end", func(ctx context.Context) error {
		var err error
		if end, err = jobs.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, c := range end.Status.Conditions {
			if c.Status == v1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
				return nil
			}
		}
		return fmt.Errorf("active %d, succeeded %d, failed %d", end.Status.Active, end.Status.Succeeded, end.Status.Failed)
	}); err != nil {
		bad = append(bad, err.Error())
	} else if cut = cutStart(n.since(), startContainer); !cut && (end.Status.Succeeded != 1 || end.Status.Failed != 0) {
		bad = append(bad, fmt.Sprintf("the Job ended with %d succeeded, %d failed, want 1 and 0", end.Status.Succeeded, end.Status.Failed))
	}
	policy := metav1.DeletePropagationForeground
	if err := jobs.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		return append(bad, err.Error())
	}
	if err := n.clean(ctx, patience); err != nil {
		bad = append(bad, err.Error())
	}
	if f != nil {
		if err := n.awaitStrike(ctx, f); err != nil {
			bad = append(bad, err.Error())
		}
		if err := n.clean(ctx, patience); err != nil {
			bad = append(bad, err.Error())
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "log"))
	lines := parseLines(string(data))
	switch {
	case cut: // the runtime gave up the start: the work may be lost, and the Job has failed
		bad = append(bad, oracle.OneStart(executions(lines), 0)...)
	case err != nil:
		bad = append(bad, err.Error())
	default:
		bad = append(bad, once(lines, 0, "work")...)
	}
	return append(bad, n.badExits(f)...)
}

// testJob: a Job's work is done exactly once.
func (a *arena) testJob(t *testing.T) {
	var seen []map[call]int
	for i, n := range a.nodes[:2] {
		if bad := n.job(t.Context(), fmt.Sprintf("find-job-%d", i), nil); len(bad) > 0 {
			t.Fatalf("without a fault, on %s: %q", n.name, bad)
		}
		seen = append(seen, counts(n.since()))
	}
	// Only the runtime's calls: everything else that a pod does on the host is the same as in
	// testLife.
	cases := slices.DeleteFunc(a.matrix("job/", seen, func(string) bool { return false }), func(c testCase) bool {
		return !strings.HasPrefix(c.fault.label, "cri/") || strings.HasPrefix(c.fault.site, "syncloop/gc") ||
			a.quick && reads[c.fault.label]
	})
	cases = a.sampleBrief(cases)
	report(t, cases)
	a.spread(t, a.teams(1), cases, func(ctx context.Context, team []*node, i int, c testCase) []string {
		return team[0].job(ctx, fmt.Sprintf("job-%d", i), &c.fault)
	})
}

// set is a StatefulSet of one pod that may run on two nodes. Both see the directory that the pod
// writes to.
type set struct {
	lab   *labtest.Lab
	name  string
	file  string
	nodes []*node
}

func (s *set) pod() string { return s.name + "-0" }

func newSet(ctx context.Context, lab *labtest.Lab, name, parent string, nodes []*node) (*set, error) {
	dir, err := shared(parent, name)
	if err != nil {
		return nil, err
	}
	s := &set{lab: lab, name: name, file: filepath.Join(dir, "log"), nodes: nodes}
	var names []string
	for _, n := range nodes {
		names = append(names, n.name)
	}
	one, grace := int32(1), int64(10)
	labels := map[string]string{"set": name}
	_, err = lab.Client.AppsV1().StatefulSets(namespace).Create(ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{Replicas: &one, ServiceName: name, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1.PodSpec{
				TerminationGracePeriodSeconds: &grace,
				Containers:                    []v1.Container{container("main", untilTold)}, Volumes: []v1.Volume{hostPath(dir)},
				Affinity: &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
					NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
						{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: names}}}}}}},
			}}},
	}, metav1.CreateOptions{})
	return s, err
}

func (s *set) cordon(ctx context.Context, name string, on bool) error {
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, on)
	_, err := s.lab.Client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// ready waits until the pod is Ready and has another UID than old.
func (s *set) ready(ctx context.Context, old types.UID) (*v1.Pod, error) {
	return s.lab.Pod(ctx, namespace, s.pod(), patience, "Ready again", func(p *v1.Pod) error {
		if p.UID == old || !labtest.IsReady(p) || p.DeletionTimestamp != nil {
			return fmt.Errorf("it is not")
		}
		return nil
	})
}

// move deletes the pod while the fault strikes its node, so that it comes back on the other node,
// and returns the node it left. It keeps a killed Bowline from restarting for away.
func (s *set) move(ctx context.Context, f *fault, away time.Duration) (from *node, bad []string) {
	old, err := s.ready(ctx, "")
	if err != nil {
		return nil, []string{err.Error()}
	}
	// A container without a probe is Ready before its shell has set its trap, and would end without a
	// word.
	if err := labtest.Until(ctx, patience, "the pod's container has entered", func(context.Context) error {
		if lines := s.lines(); count(lines, "enter") <= count(lines, "leave") {
			return errors.New("it has not")
		}
		return nil
	}); err != nil {
		return nil, []string{err.Error()}
	}
	n := s.nodes[slices.IndexFunc(s.nodes, func(n *node) bool { return n.name == old.Spec.NodeName })]
	ctx, cancel := n.oneCase(ctx)
	defer cancel(nil)
	if err := s.cordon(ctx, n.name, true); err != nil {
		return n, []string{err.Error()}
	}
	before := overlaps(s.lines())
	entered := count(s.lines(), "enter")
	if err := n.arm(f); err != nil {
		return n, []string{err.Error()}
	}
	if away > 0 {
		n.hold()
		defer n.release()
	}
	if err := s.lab.Client.CoreV1().Pods(namespace).Delete(ctx, s.pod(), metav1.DeleteOptions{}); err != nil {
		bad = append(bad, err.Error())
	}
	if away > 0 {
		if err := labtest.Holds(ctx, away, "the pod stays where Bowline is away", func(ctx context.Context) error {
			p, err := s.lab.Client.CoreV1().Pods(namespace).Get(ctx, s.pod(), metav1.GetOptions{})
			if err == nil && p.UID != old.UID {
				return fmt.Errorf("another pod has its name")
			}
			return err
		}); err != nil {
			bad = append(bad, err.Error())
		}
		n.release()
	}
	if _, err := s.ready(ctx, old.UID); err != nil {
		bad = append(bad, err.Error())
	}
	if err := labtest.Until(ctx, patience, "the word of the new pod's container", func(context.Context) error {
		if count(s.lines(), "enter") <= entered {
			return fmt.Errorf("it has not entered")
		}
		return nil
	}); err != nil {
		bad = append(bad, err.Error())
	}
	if f != nil {
		if err := n.awaitStrike(ctx, f); err != nil {
			bad = append(bad, err.Error())
		}
	}
	if err := n.clean(ctx, patience); err != nil {
		bad = append(bad, err.Error())
	}
	if err := s.cordon(ctx, n.name, false); err != nil {
		bad = append(bad, err.Error())
	}
	bad = append(bad, overlaps(s.lines())[len(before):]...)
	if now := count(s.lines(), "enter"); now != entered+1 {
		bad = append(bad, fmt.Sprintf("main entered %d times, want once", now-entered))
	}
	return n, append(bad, n.badExits(f)...)
}

func (s *set) lines() [][]string {
	data, err := os.ReadFile(s.file)
	if err != nil {
		return nil
	}
	return parseLines(string(data))
}

func count(lines [][]string, what string) (n int) {
	for _, l := range lines {
		if l[1] == what {
			n++
		}
	}
	return n
}

// testStatefulSet: the pod of a StatefulSet is never in two places, whatever strikes while it moves
// from one node to the other.
func (a *arena) testStatefulSet(t *testing.T) {
	teams := a.teams(2)
	sets := map[*node]*set{}
	var seen []map[call]int
	for i, team := range teams {
		s, err := newSet(t.Context(), a.lab, fmt.Sprintf("set-%d", i), a.dir, team)
		testutil.Must(t, err)
		sets[team[0]] = s
		from, bad := s.move(t.Context(), nil, 0)
		if len(bad) > 0 {
			t.Fatalf("without a fault: %q", bad)
		}
		seen = append(seen, counts(from.since()))
	}
	cases := slices.DeleteFunc(a.matrix("statefulset/", seen, func(string) bool { return false }), func(c testCase) bool {
		return reads[c.fault.label] || strings.HasPrefix(c.fault.site, "syncloop/gc") || byClock(c)
	})
	cases = a.sampleBrief(cases)
	stop := fault{call: call{"cri/StopContainer", "syncloop.(*job).stop", 1}, point: "before", action: "kill"}
	for range teams {
		cases = append(cases, testCase{name: "statefulset/away/" + stop.String(), fault: stop})
	}
	report(t, cases)
	a.spread(t, teams, cases, func(ctx context.Context, team []*node, _ int, c testCase) []string {
		away := time.Duration(0)
		if strings.HasPrefix(c.name, "statefulset/away/") {
			away = 2 * time.Second
		}
		_, bad := sets[team[0]].move(ctx, &c.fault, away)
		return bad
	})
	for _, s := range sets {
		if err := a.lab.Client.AppsV1().StatefulSets(namespace).Delete(t.Context(), s.name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		for _, n := range s.nodes {
			if err := n.clean(t.Context(), patience); err != nil {
				t.Error(err)
			}
		}
	}
}
