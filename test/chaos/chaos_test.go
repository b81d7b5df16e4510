package chaos

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// arena is the lab with a Bowline on each host, and the faults that have struck so far.
type arena struct {
	lab   *labtest.Lab
	dir   string
	nodes []*node
	quick bool
	brief bool // quick, and each label once at each of its points in every matrix
	part  bool // brief, and each label at one of its points only
	rand  *rand.Rand
	only  *regexp.Regexp

	mu     sync.Mutex
	struck map[string]map[string]bool // label -> point/action
	cases  int
	failed int
	// unstruck are cases whose call occurred in none of their lives.
	unstruck []string
}

func TestChaos(t *testing.T) {
	if os.Getenv("BOWLINE_E2E") != "1" {
		t.Skip("needs root and the lab: BOWLINE_E2E=1 runs it")
	}
	a := newArena(t)
	began := time.Now()
	t.Run("life", a.testLife)
	t.Run("any moment", a.testAnyMoment)
	t.Run("adoption", a.testAdoption)
	t.Run("remnants", a.testRemnants)
	t.Run("job", a.testJob)
	t.Run("statefulset", a.testStatefulSet)
	t.Run("every label was struck", a.testStruck)
	t.Logf("%d labels, %d cases, %d failed, %d did not strike, %v", len(a.struck), a.cases, a.failed, len(a.unstruck), time.Since(began).Round(time.Second))
}

func newArena(t *testing.T) *arena {
	t.Helper()
	ctx := t.Context()
	a := &arena{struck: map[string]map[string]bool{}}
	switch mode := os.Getenv("BOWLINE_CHAOS"); mode {
	case "part":
		a.part, a.brief, a.quick = true, true, true
	case "brief":
		a.brief, a.quick = true, true
	case "quick":
		a.quick = true
	case "", "full":
	default:
		t.Fatalf("BOWLINE_CHAOS=%q: part, brief, quick or full", mode)
	}
	a.rand = rand.New(rand.NewPCG(labtest.Seed(t, "BOWLINE_CHAOS_SEED"), 0))
	a.only = regexp.MustCompile(os.Getenv("BOWLINE_CHAOS_ONLY"))
	hosts := int(labtest.Number(t, "BOWLINE_CHAOS_HOSTS", 4, 2))
	a.dir = labtest.Dir(t, "bowline-chaos", true)
	var err error
	program := buildWithFaults(t, a.dir)
	if dir := os.Getenv("BOWLINE_CHAOS_LAB"); dir != "" {
		if a.lab, err = labtest.Start(ctx, dir, hosts); err != nil {
			t.Fatal(err)
		}
		a.lab.Stay()
	} else {
		a.lab = startLab(t, filepath.Join(a.dir, "lab"), hosts)
	}
	a.prepare(t)
	for i := range a.lab.Status.Hosts {
		n, err := startNode(ctx, a.lab, a.lab.Status.Hosts[i].Name, program, a.dir)
		testutil.Must(t, err)
		t.Cleanup(func() { n.stop(t) })
		a.nodes = append(a.nodes, n)
	}
	for _, n := range a.nodes {
		if _, err := a.lab.NodeReady(ctx, n.name, v1.ConditionTrue, patience); err != nil {
			t.Fatal(err)
		}
	}
	a.warmUp(t)
	return a
}

// buildWithFaults builds Bowline with -tags faults.
func buildWithFaults(t *testing.T, dir string) string {
	t.Helper()
	program := filepath.Join(dir, "bowline")
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "faults", "-o", program, "github.com/bowline-k8s/bowline/cmd/bowline")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build bowline with faults: %v\n%s", err, out)
	}
	return program
}

// startLab tries three times: on a busy machine a host may take too long to come up.
func startLab(t *testing.T, dir string, hosts int) *labtest.Lab {
	t.Helper()
	for attempt := 1; attempt < 3; attempt++ {
		lab, err := labtest.Start(t.Context(), dir, hosts)
		if err == nil {
			t.Cleanup(func() { testutil.Must(t, lab.Down(context.Background())) })
			return lab
		}
		t.Logf("attempt %d: %v", attempt, err)
		testutil.Must(t, (&labtest.Lab{Dir: dir}).Down(t.Context()))
	}
	return labtest.StartFor(t, dir, hosts)
}

// prepare creates the objects that the pods need, and removes the cluster's own pods: only one pod
// at a time may live on a host, so that each call belongs to it.
func (a *arena) prepare(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	core := a.lab.Client.CoreV1()
	testutil.Must(t, a.lab.Empty(ctx))
	var err error
	namespace, err = labtest.Namespace(ctx, a.lab.Client, "chaos-", patience)
	testutil.Must(t, err)
	t.Cleanup(func() {
		if err := core.Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if _, err := core.ConfigMaps(namespace).Create(ctx, &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: configMap}, Data: map[string]string{"text": "hello"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// warmUp takes a pod through its life on each node and remembers the state of the machine after
// that. What the first pod of a machine leaves for good (the network's bridge, the QoS cgroups) is
// no leak.
func (a *arena) warmUp(t *testing.T) {
	t.Helper()
	var all sync.WaitGroup
	for _, n := range a.nodes {
		all.Go(func() {
			var err error
			if n.before, err = a.lab.Snapshot(t.Context(), n.runtime, n.name); err != nil {
				t.Error(err)
				return
			}
			if bad := n.life(t.Context(), "warm-up-"+n.name, nil); len(bad) > 0 {
				t.Errorf("without a fault, on %s: %s", n.name, strings.Join(bad, "\n\t"))
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// testCase is one case. It can run on any node.
type testCase struct {
	name  string
	fault fault
	// others are cases that a sample left out for this one: the same label at the same point, by
	// another caller or at another time. One of them is run if this one does not strike.
	others []testCase
}

// teams splits the nodes into groups of size.
func (a *arena) teams(size int) [][]*node {
	var teams [][]*node
	for chunk := range slices.Chunk(a.nodes, size) {
		if len(chunk) == size {
			teams = append(teams, chunk)
		}
	}
	return teams
}

// spread runs the cases concurrently, one at a time in each team of nodes.
func (a *arena) spread(t *testing.T, teams [][]*node, cases []testCase, run func(ctx context.Context, team []*node, index int, c testCase) []string) {
	t.Helper()
	type item struct {
		index int
		c     testCase
	}
	queue := make(chan item)
	go func() {
		defer close(queue)
		for i, c := range cases {
			if a.only.MatchString(c.name) {
				queue <- item{i, c}
			}
		}
	}()
	began := time.Now()
	var slow time.Duration
	var slowest string
	ran := 0
	var all sync.WaitGroup
	for _, team := range teams {
		all.Go(func() {
			for i := range queue {
				start := time.Now()
				marks := make([]int64, len(team))
				for k, n := range team {
					marks[k] = n.calls.mark()
				}
				c, bad := i.c, run(t.Context(), team, i.index, i.c)
				// A call that occurs in every run without a fault may be missing in another run,
				// because one observation makes another request unnecessary. Such a run says
				// nothing about the fault. The case is repeated, then another one is run in its
				// place; testStruck bounds how many never strike.
				for again, next := range slices.Concat([]testCase{i.c, i.c}, i.c.others) {
					if !missed(bad) {
						break
					}
					c, bad = next, run(t.Context(), team, i.index+(again+1)*len(cases), next) // a pod of another name
				}
				unstruck := missed(bad)
				if unstruck {
					bad = nil
				}
				took := time.Since(start)
				hit := false
				for k, n := range team {
					hit = hit || struck(n.calls.since(marks[k]))
				}
				a.mu.Lock()
				a.cases++
				ran++
				if took > slow {
					slow, slowest = took, c.name
				}
				if hit {
					a.note(c.fault)
				}
				if unstruck {
					a.unstruck = append(a.unstruck, i.c.name)
				}
				if len(bad) > 0 {
					a.failed++
				}
				a.mu.Unlock()
				if c.name != i.c.name {
					t.Logf("%s never struck; %s was run in its place", i.c.name, c.name)
				}
				if len(bad) > 0 {
					t.Errorf("%s on %s, %v to %v:\n\t%s", c.name, team[0].name, start.Format("15:04:05.000"),
						time.Now().Format("15:04:05.000"), strings.Join(bad, "\n\t"))
				}
				if took > 10*time.Second {
					t.Logf("%s took %v", c.name, took.Round(time.Millisecond))
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d cases in %v; the slowest took %v: %s", ran, time.Since(began).Round(time.Second), slow.Round(time.Millisecond), slowest)
}

// missed reports whether all that a case found is that its fault did not strike.
func missed(bad []string) bool { return len(bad) == 1 && strings.HasSuffix(bad[0], notStruck) }

// note records that a fault has struck. The caller holds a.mu.
func (a *arena) note(f fault) {
	if a.struck[f.label] == nil {
		a.struck[f.label] = map[string]bool{}
	}
	a.struck[f.label][f.strikesAt()] = true
}

// matrix is every call times every point. seen holds the calls of runs without a fault, one map per
// run. A call counts as often as in the run with the fewest, so that it occurs in every run.
func (a *arena) matrix(prefix string, seen []map[call]int, often func(label string) bool) []testCase {
	least := map[call]int{}
	for i, run := range seen {
		for c, n := range run {
			if have, ok := least[c]; i == 0 || ok && n < have {
				least[c] = n
			}
		}
		for c := range least {
			if run[c] == 0 {
				delete(least, c)
			}
		}
	}
	var cases []testCase
	for _, c := range slices.SortedFunc(maps.Keys(least), func(x, y call) int { return strings.Compare(x.String(), y.String()) }) {
		times := 1
		if often(c.label) {
			times = least[c]
		}
		for n := 1; n <= times; n++ {
			for _, p := range points {
				f := fault{call: call{c.label, c.site, n}, point: p[0], action: p[1]}
				cases = append(cases, testCase{name: prefix + f.String(), fault: f})
			}
			if !strings.HasPrefix(c.label, "cri/") || reads[c.label] {
				continue
			}
			if c.label == startContainer {
				f := fault{call: call{c.label, c.site, n}, point: "during", action: "stop",
					delay: time.Duration(1+a.rand.IntN(100)) * time.Millisecond}
				cases = append(cases, testCase{name: prefix + f.String(), fault: f})
			}
			for _, most := range a.during(c.label) {
				f := fault{call: call{c.label, c.site, n}, point: "during", action: "kill",
					delay: time.Duration(1+a.rand.IntN(most)) * time.Millisecond}
				cases = append(cases, testCase{name: prefix + f.String(), fault: f})
			}
		}
	}
	return cases
}

// during returns, for each kill while a call is in flight, its greatest delay in milliseconds.
// containerd aborts starts in many ways, so starts are killed at several moments of their duration.
func (a *arena) during(label string) []int {
	switch {
	case label != "cri/RunPodSandbox" && label != "cri/StartContainer":
		return []int{40}
	case a.quick:
		return []int{40, 300}
	}
	return []int{40, 100, 200, 300, 300, 500}
}

// sample keeps every point of each label at least once; a run of a part keeps one point of each
// label. A quick run also keeps all cases of calls that change something, and one in four of those
// that only read. A case that it keeps knows the others of its label and point that it drops.
func (a *arena) sample(cases []testCase) []testCase {
	if !a.quick {
		return cases
	}
	order := slices.Clone(cases)
	a.rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	have := map[string]bool{}
	var kept, dropped []testCase
	for _, c := range order {
		key := c.fault.label
		if !a.part {
			key += c.fault.strikesAt()
		}
		if more := !a.brief && (!reads[c.fault.label] || a.rand.IntN(4) == 0); have[key] && !more {
			dropped = append(dropped, c)
		} else {
			kept = append(kept, c)
		}
		have[key] = true
	}
	for i, k := range kept {
		for _, d := range dropped {
			if d.fault.label == k.fault.label && d.fault.strikesAt() == k.fault.strikesAt() {
				kept[i].others = append(kept[i].others, d)
			}
		}
	}
	return kept
}

// sampleBrief samples in a brief run only.
func (a *arena) sampleBrief(cases []testCase) []testCase {
	if !a.brief {
		return cases
	}
	return a.sample(cases)
}

// byClock reports whether the case strikes a call that a timer of minutes makes, rather than a
// pod's life. A new process makes that call too, so the adoption matrix covers it.
func byClock(c testCase) bool {
	return strings.HasPrefix(c.fault.site, "syncloop/qos.") || strings.HasPrefix(c.fault.site, "syncloop/imagegc.")
}

// testLife is the kill matrix of a pod's whole life.
func (a *arena) testLife(t *testing.T) {
	// Once on each node, because not every run makes every call equally often.
	seen := make([]map[call]int, len(a.nodes))
	var all sync.WaitGroup
	for i, n := range a.nodes {
		all.Go(func() {
			if bad := n.life(t.Context(), "find-"+n.name, nil); len(bad) > 0 {
				t.Errorf("without a fault, on %s: %s", n.name, strings.Join(bad, "\n\t"))
			}
			seen[i] = counts(n.since())
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	cases := a.sample(slices.DeleteFunc(a.matrix("life/", seen, func(label string) bool { return !reads[label] }), byClock))
	report(t, cases)
	a.spread(t, a.teams(1), cases, func(ctx context.Context, team []*node, i int, c testCase) []string {
		return team[0].life(ctx, fmt.Sprintf("life-%d", i), &c.fault)
	})
}

// testAnyMoment kills the process at moments that are not marked by a call to the host: while it
// talks to the API server, or computes.
func (a *arena) testAnyMoment(t *testing.T) {
	n := 40
	switch {
	case a.part:
		n = 4
	case a.brief:
		n = 8
	case a.quick:
		n = 16
	}
	var cases []testCase
	for i := range n {
		// A life takes about 2 s. Spread the kills over it, with some randomness.
		delay := time.Duration((float64(i) + a.rand.Float64()) * 2.4 / float64(n) * float64(time.Second)).Round(time.Millisecond)
		f := atRandom(delay)
		cases = append(cases, testCase{name: "any moment/" + f.String(), fault: f})
	}
	a.spread(t, a.teams(1), cases, func(ctx context.Context, team []*node, i int, c testCase) []string {
		return team[0].life(ctx, fmt.Sprintf("moment-%d", i), &c.fault)
	})
}

// report logs the calls of the matrix.
func report(t *testing.T, cases []testCase) {
	t.Helper()
	labels, calls := map[string]bool{}, map[call]bool{}
	for _, c := range cases {
		labels[c.fault.label] = true
		calls[c.fault.call] = true
	}
	t.Logf("%d labels, %d calls, %d cases: %s", len(labels), len(calls), len(cases), strings.Join(slices.Sorted(maps.Keys(labels)), " "))
}

// unstrikable are labels of calls that occur in no life that a matrix repeats, with the reason.
var unstrikable = map[string]string{
	"host/Sample": "a metric of the first registration of a node, which the warm-up makes; TestStatsWithoutTheLink has the others",
}

// testStruck checks that every label seen in any run was struck at every point (in a run of a part:
// at one of them), and that all but a few cases struck.
func (a *arena) testStruck(t *testing.T) {
	if os.Getenv("BOWLINE_CHAOS_ONLY") != "" {
		t.Skip("not all cases were run")
	}
	if len(a.unstruck) > a.cases/100 {
		t.Errorf("of %d cases %d did not strike: %s", a.cases, len(a.unstruck), strings.Join(a.unstruck, " "))
	} else if len(a.unstruck) > 0 {
		t.Logf("did not strike: %s", strings.Join(a.unstruck, " "))
	}
	seen := map[string]int{}
	for _, n := range a.nodes {
		for c, times := range counts(n.calls.since(0)) {
			seen[c.label] += times
		}
	}
	for _, label := range slices.Sorted(maps.Keys(seen)) {
		if unstrikable[label] != "" {
			continue
		}
		if a.part {
			if len(a.struck[label]) == 0 {
				t.Errorf("%s was called %d times, and never struck", label, seen[label])
			}
			continue
		}
		for _, p := range points {
			if point := p[0] + "/" + p[1]; !a.struck[label][point] {
				t.Errorf("%s was called %d times, and never struck %s", label, seen[label], point)
			}
		}
	}
}
