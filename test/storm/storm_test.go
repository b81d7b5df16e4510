package storm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
	"github.com/bowline-k8s/bowline/test/oracle"
)

const (
	host = "host1"
	// kills is how often a storm kills our process.
	kills = 3
	// pace is the mean time between two strikes.
	pace = 1500 * time.Millisecond
	// patience bounds waits without a bound of their own: the machine may be busy.
	patience = 5 * time.Minute
	// calm is how long it may take to restore the desired state after a storm. It includes the
	// back-off of containers that were struck several times.
	calm = 8 * time.Minute
)

// storm is one run. Its fields belong to the test's goroutine alone.
type storm struct {
	t         *testing.T
	lab       *labtest.Lab
	runtime   *cri.Client
	tasks     *labtest.Tasks
	bowline   *labtest.Bowline
	history   *labtest.History
	namespace string
	rand      *rand.Rand
	workloads []workload

	strikes []strike
	kills   []time.Time
	asked   map[string]bool      // pods whose deletion was requested, by UID
	struck  map[string]int       // strikes against containers, by UID
	made    map[string]time.Time // when a bare pod was last made, by name

	cpu  time.Duration // of the killed processes
	peak int64         // maximum resident memory of any process, bytes
}

func TestStorm(t *testing.T) {
	if os.Getenv("BOWLINE_E2E") != "1" || os.Getenv("BOWLINE_STORM") == "" {
		t.Skip("needs root, the lab and time: BOWLINE_E2E=1 BOWLINE_STORM=10m runs it")
	}
	length, err := time.ParseDuration(os.Getenv("BOWLINE_STORM"))
	if err != nil {
		t.Fatalf("BOWLINE_STORM: %v", err)
	}
	pods := labtest.Number(t, "BOWLINE_STORM_PODS", 110, 1)
	seed := labtest.Seed(t, "BOWLINE_STORM_SEED")
	s := newStorm(t, seed, int(pods))
	before := s.empty()

	began := time.Now()
	for _, w := range s.workloads {
		if w.kind == "Pod" {
			for i := range w.replicas {
				s.made[fmt.Sprintf("%s-%d", w.name, i)] = time.Now()
			}
		}
		testutil.Must(s.t, s.begin(t.Context(), w))
	}
	testutil.Must(s.t, labtest.Until(t.Context(), patience, "the desired state, at first", s.stands))
	filled := time.Now()
	t.Logf("%d pods stood %s after they were asked for", pods, time.Since(began).Round(time.Second))

	s.rage(length)
	raged := time.Now()
	testutil.Must(s.t, s.keep(t.Context(), true)) // finished pods and Jobs are made once more, for the last time
	testutil.Must(s.t, labtest.Until(t.Context(), calm, "the desired state, at last", func(ctx context.Context) error {
		if err := s.alive(); err != nil {
			return err
		}
		if err := s.keep(ctx, false); err != nil {
			return err
		}
		return s.desired(ctx)
	}))
	t.Logf("the desired state held %s after the storm", time.Since(raged).Round(time.Second))
	if err := labtest.Until(t.Context(), time.Minute, "each status as containerd has it", s.truthful); err != nil {
		t.Error(err)
	}

	s.leave()
	s.clean(before)
	s.account()
	s.check()
	s.measure(filled, raged)
}

// newStorm brings up a lab whose only node has no pod.
func newStorm(t *testing.T, seed uint64, pods int) *storm {
	ctx := t.Context()
	s := &storm{t: t, rand: rand.New(rand.NewPCG(seed, 0)), workloads: workloads(pods),
		asked: map[string]bool{}, struck: map[string]int{}, made: map[string]time.Time{}}
	dir := labtest.Dir(t, "bowline-storm", true)
	s.lab = labtest.StartFor(t, filepath.Join(dir, "lab"), 1)
	var err error
	s.runtime, err = s.lab.CRI(ctx, host)
	testutil.Must(s.t, err)
	t.Cleanup(func() { s.runtime.Close() })
	s.tasks, err = labtest.WatchTasks(ctx, s.lab.Host(host).OutsideSocket)
	testutil.Must(s.t, err)
	t.Cleanup(s.tasks.Stop)
	s.bowline = &labtest.Bowline{Lab: s.lab, Host: host, Args: []string{"-v=2"}, LogPath: filepath.Join(dir, "bowline.log")}
	if os.Getenv("BOWLINE_E2E_HOST") == "ssh" {
		s.bowline.Wire, err = s.lab.NewWire(host)
		testutil.Must(s.t, err)
		t.Cleanup(s.bowline.Wire.Close)
	}
	testutil.Must(s.t, s.bowline.Start())
	t.Cleanup(func() {
		if err := s.bowline.Stop(); err != nil {
			t.Error(err)
		}
	})
	_, err = s.lab.NodeReady(ctx, host, v1.ConditionTrue, patience)
	testutil.Must(s.t, err)
	testutil.Must(s.t, s.lab.Empty(ctx))
	s.namespace, err = labtest.Namespace(ctx, s.lab.Client, "storm-", patience)
	testutil.Must(s.t, err)
	_, err = s.lab.Client.CoreV1().ConfigMaps(s.namespace).Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: configMap},
		Data: map[string]string{"text": "25"}}, metav1.CreateOptions{})
	testutil.Must(s.t, err)
	s.history = s.lab.Watch(s.namespace)
	t.Cleanup(s.history.Stop)
	return s
}

// empty is the snapshot of the machine without a pod.
func (s *storm) empty() labtest.Snapshot {
	var before labtest.Snapshot
	testutil.Must(s.t, labtest.Until(s.t.Context(), patience, "a machine without a pod", func(ctx context.Context) error {
		pods, err := s.lab.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if before, err = s.lab.Snapshot(ctx, s.runtime, host); err != nil {
			return err
		}
		for _, kind := range []string{"sandboxes", "containers", "pod directories", "pod records", "log directories", "cgroups", "shim processes", "addresses"} {
			if len(before[kind]) > 0 {
				return fmt.Errorf("%s: %q", kind, before[kind])
			}
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("%d pods are there", len(pods.Items))
		}
		return nil
	}))
	return before
}

// stands checks that every workload has begun. Pods that end by themselves may have ended.
func (s *storm) stands(context.Context) error {
	have := map[string]int{}
	waits := ""
	for _, p := range s.history.Now() {
		if labtest.IsReady(p) || done(p) || labtest.Restarts(p) > 0 {
			have[p.Labels[labelKind]]++
		} else {
			waits = labtest.Describe(p)
		}
	}
	for _, w := range s.workloads {
		if have[w.name] < w.replicas {
			return fmt.Errorf("%d of %d pods of %s; %s", have[w.name], w.replicas, w.name, waits)
		}
	}
	return nil
}

// alive restarts our process if it ended by itself, which is an error.
func (s *storm) alive() error {
	if s.bowline.Running() {
		return nil
	}
	code, _ := s.bowline.Wait(context.Background())
	s.t.Errorf("bowline ended by itself, with %d: %s", code, s.bowline.LogTail(3000))
	s.kills = append(s.kills, time.Now())
	return s.bowline.Start()
}

// account adds the resource use of the current process.
func (s *storm) account() {
	cpu, err := labtest.CPUTime(s.bowline.PID())
	testutil.Must(s.t, err)
	peak, err := labtest.Memory(s.bowline.PID(), "VmHWM")
	testutil.Must(s.t, err)
	s.cpu, s.peak = s.cpu+cpu, max(s.peak, peak)
}

// rage is the storm.
func (s *storm) rage(length time.Duration) {
	ctx, end := context.WithTimeout(s.t.Context(), length)
	defer end()
	began := time.Now()
	var falls []time.Duration // when our process is killed: once in each part of the storm, not at its very beginning or end
	for i := range kills {
		part := length / kills
		falls = append(falls, part*time.Duration(i)+part/4+time.Duration(s.rand.Int64N(int64(part/2))))
	}
	for ctx.Err() == nil {
		testutil.Must(s.t, s.alive())
		if len(falls) > 0 && time.Since(began) > falls[0] {
			falls = falls[1:]
			s.account()
			s.t.Logf("%s: bowline is killed", oracle.Clock(time.Now()))
			s.kills = append(s.kills, time.Now())
			s.bowline.Kill()
			testutil.Must(s.t, s.bowline.Start())
		}
		s.attempt(ctx, "strike", s.strikeOnce)
		s.attempt(ctx, "keep", func(ctx context.Context) error { return s.keep(ctx, true) })
		select {
		case <-time.After(time.Duration(s.rand.ExpFloat64() * float64(pace))):
		case <-ctx.Done():
		}
	}
}

// attempt runs do. An error counts unless the storm is over. The storm's end does not cancel do.
func (s *storm) attempt(ctx context.Context, what string, do func(context.Context) error) {
	if err := do(s.t.Context()); err != nil && ctx.Err() == nil {
		s.t.Errorf("%s: %s: %v", oracle.Clock(time.Now()), what, err)
	}
}

// truthful compares all statuses with what containerd reports.
func (s *storm) truthful(ctx context.Context) error {
	pods, err := s.lab.Client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	e := s.trace()
	var bad []string
	for i := range pods.Items {
		bad = append(bad, e.truth(&pods.Items[i])...)
	}
	if len(bad) > 0 {
		return fmt.Errorf("%d statuses are not true:\n\t%s", len(bad), strings.Join(bad, "\n\t"))
	}
	return nil
}

// leave deletes everything.
func (s *storm) leave() {
	began := time.Now()
	testutil.Must(s.t, s.lab.Client.CoreV1().Namespaces().Delete(s.t.Context(), s.namespace, metav1.DeleteOptions{}))
	testutil.Must(s.t, labtest.Until(s.t.Context(), patience, "all pods to be gone", func(context.Context) error {
		if left := s.history.Now(); len(left) > 0 {
			return fmt.Errorf("%d are there; %s", len(left), labtest.Describe(left[0]))
		}
		return nil
	}))
	s.t.Logf("all pods had gone %s after their namespace was deleted", time.Since(began).Round(time.Second))
}

// clean waits until the machine is as it was. The remnants of starts that were cut off are swept
// once a minute, once they are a minute old.
func (s *storm) clean(before labtest.Snapshot) {
	began := time.Now()
	testutil.Must(s.t, oracle.NothingLeft(s.t.Context(), s.lab, s.runtime, host, before, patience))
	s.t.Logf("the machine was as before %s later", time.Since(began).Round(time.Second))
}

// trace returns what is known so far.
func (s *storm) trace() *trace {
	e := &trace{lives: map[string]life{}, strikes: s.strikes, kills: s.kills}
	all, err := s.tasks.Instances()
	testutil.Must(s.t, err)
	for _, i := range all {
		if i.Namespace == s.namespace {
			e.instances = append(e.instances, i)
		}
	}
	for _, uid := range s.history.Pods() {
		var l life
		l.versions, l.gone = s.history.Seen(uid)
		e.lives[string(uid)] = l
	}
	return e
}

func (s *storm) check() {
	bad := s.trace().check()
	for n, what := range bad {
		if n == 40 {
			s.t.Errorf("and %d more", len(bad)-n)
			break
		}
		s.t.Error(what)
	}
}

// measure prints what the storm did and how long things took.
func (s *storm) measure(filled, raged time.Time) {
	e := s.trace()
	kinds, ended := map[string]int{}, map[string]int{}
	for _, x := range s.strikes {
		kinds[x.kind]++
		for _, i := range e.instances {
			if i.ID == x.id && !i.Exited.IsZero() {
				ended[x.kind]++
			}
		}
	}
	var lines []string
	for kind, n := range kinds {
		line := fmt.Sprintf("%d %s", n, kind)
		if kind != strikeDelete && kind != strikeForce {
			line += fmt.Sprintf(" (%d ended by it)", ended[kind])
			if ended[kind] == 0 && n > 5 {
				s.t.Errorf("of %d containers %s none has ended", n, kind)
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	restarts := 0
	for _, l := range e.lives {
		if p := l.pod(); p != nil {
			restarts += int(labtest.Restarts(p))
		}
	}
	s.t.Logf("%d pods lived, %d instances of containers, %d restarts; %s; bowline was killed %d times",
		len(e.lives), len(e.instances), restarts, strings.Join(lines, ", "), len(s.kills))
	var first, starts, ends []time.Duration
	for _, l := range e.lives {
		bound, ready, asked := l.times()
		if !bound.IsZero() && !ready.IsZero() {
			if bound.Before(filled) {
				first = append(first, ready.Sub(bound))
			} else {
				starts = append(starts, ready.Sub(bound))
			}
		}
		if !asked.IsZero() && !l.gone.IsZero() && asked.Before(raged) {
			ends = append(ends, l.gone.Sub(asked))
		}
	}
	s.t.Logf("from its node's name to Ready: of the first, at once, %s; in the storm %s; from the deletion to the end in the storm, with up to 10 s of grace: %s",
		quantiles(first), quantiles(starts), quantiles(ends))
	took := time.Since(filled)
	s.t.Logf("bowline: %s of CPU (%.1f %% of a core since the node was full), at most %d MiB resident; load %s",
		s.cpu.Round(10*time.Millisecond), 100*s.cpu.Seconds()/took.Seconds(), s.peak>>20, labtest.Load())
}

// times returns when the pod was first seen to have a node, to be Ready, and to be deleted; zero:
// never.
func (l life) times() (bound, ready, asked time.Time) {
	for _, v := range l.versions {
		if bound.IsZero() && v.Spec.NodeName != "" {
			bound = v.At
		}
		if ready.IsZero() && labtest.IsReady(v.Pod) {
			ready = v.At
		}
		if asked.IsZero() && v.DeletionTimestamp != nil {
			asked = v.At
		}
	}
	return bound, ready, asked
}

func quantiles(list []time.Duration) string {
	if len(list) == 0 {
		return "none"
	}
	slices.Sort(list)
	at := func(q float64) time.Duration { return list[int(q*float64(len(list)-1))].Round(10 * time.Millisecond) }
	return fmt.Sprintf("p50 %s, p99 %s (of %d)", at(0.5), at(0.99), len(list))
}
