package twin

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// root is the path of the repository's root.
const root = "../.."

// atOnce is how many scenarios run concurrently, each on three nodes. With more, the machine's load
// would become noise.
const atOnce = 4

// TestTwin plays each scenario on two kubelets and on Bowline's node. BOWLINE_TWIN_RUN is a regular
// expression of scenarios: with it the results are shown, and not kept. BOWLINE_TWIN=replay
// evaluates the recordings of the last run again, without a lab, and keeps the results.
func TestTwin(t *testing.T) {
	replay := os.Getenv("BOWLINE_TWIN") == "replay"
	if !replay && (os.Getenv("BOWLINE_E2E") != "1" || os.Getenv("BOWLINE_TWIN") != "1") {
		t.Skip("set BOWLINE_E2E=1 and BOWLINE_TWIN=1 to run these tests in a lab (root)")
	}
	remote := os.Getenv("BOWLINE_E2E_HOST") == "ssh"
	column := map[bool]string{false: "local", true: "ssh"}[remote]
	only := os.Getenv("BOWLINE_TWIN_RUN")
	chosen, err := regexp.Compile(only)
	testutil.Must(t, err)
	out, err := filepath.Abs(filepath.Join(root, "bin/twin", column))
	testutil.Must(t, err)
	testutil.Must(t, os.MkdirAll(out, 0o755))
	file := func(scenario, node string) string {
		return filepath.Join(out, scenario+"."+node+".json")
	}
	var played []scenario
	for _, sc := range scenarios() {
		if chosen.MatchString(sc.name) {
			played = append(played, sc)
		}
	}
	if !replay {
		runAll(t, setUp(t, out, remote), played, file)
	}
	var result Column
	var first, last time.Time // of all recordings
	for _, sc := range played {
		var recordings []Recording
		for _, node := range nodeNames {
			r, err := Load(file(sc.name, node))
			testutil.Must(t, err)
			recordings = append(recordings, r)
			for _, e := range r.Entries {
				if first.IsZero() || e.At.Before(first) {
					first = e.At
				}
				if e.At.After(last) {
					last = e.At
				}
			}
		}
		if sc.file && LeftRunning(recordings[0]) && LeftRunning(recordings[1]) && !LeftRunning(recordings[2]) {
			recordings[2] = AsLeft(recordings[2])
			result.Differences = append(result.Differences, Difference{Scenario: sc.name, Where: "last status", Kubelet: "of a running pod", Other: "of an ended pod"})
		}
		if !sc.file && LostContainer(recordings[0]) && LostContainer(recordings[1]) && !LostContainer(recordings[2]) {
			for i := range recordings {
				recordings[i] = WithoutEnds(recordings[i])
			}
			result.Differences = append(result.Differences, Difference{Scenario: sc.name, Where: "end of the containers", Kubelet: "not known", Other: "known"})
		}
		one, two, ours := Normalise(recordings[0]), Normalise(recordings[1]), Normalise(recordings[2])
		result.Scenarios = append(result.Scenarios, sc.name)
		result.Noise = append(result.Noise, Compare(one, two)...)
		result.Differences = append(result.Differences, Both(Compare(one, ours), Compare(two, ours))...)
	}
	result.sort()
	result.Date, result.Took = first.UTC().Format(time.DateOnly), last.Sub(first).Round(time.Second).String()
	report(t, result)
	if only == "" {
		testutil.Must(t, Keep(filepath.Join(root, "docs/twin.json"), column, result))
	}
}

// runAll plays the scenarios, each on all nodes at once, and saves the recordings.
func runAll(t *testing.T, s *stage, played []scenario, file func(scenario, node string) string) {
	recorders := map[*node]*recorder{}
	for _, n := range s.nodes() {
		var err error
		recorders[n], err = record(t.Context(), s.lab.Client, n)
		testutil.Must(t, err)
	}
	// Not parallel tests, because go test runs only as many of those as there are processors, and
	// these mostly wait.
	places := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for _, sc := range played {
		places <- struct{}{}
		var nodes sync.WaitGroup
		for _, n := range s.nodes() {
			nodes.Go(func() {
				p := &play{scenario: sc, lab: s.lab, node: n, rec: recorders[n]}
				r, err := p.run(t.Context())
				if err := errors.Join(err, r.Save(file(sc.name, n.name))); err != nil {
					t.Error(err)
				}
			})
		}
		all.Go(func() {
			nodes.Wait()
			<-places
		})
	}
	all.Wait()
}

// report shows the differences; one without a cause is a failure.
func report(t *testing.T, result Column) {
	causes, err := ReadCauses("causes.yaml")
	testutil.Must(t, err)
	for _, d := range result.Noise {
		t.Logf("noise: %s: %s", Explain(causes, d, true), d)
	}
	var known []string
	for _, d := range result.Differences {
		if why := Explain(causes, d, false); why != "" {
			known = append(known, d.String()+"\n\t"+why)
			continue
		}
		t.Errorf("no cause is known: %s", d)
	}
	for _, c := range Unused(causes, result) {
		t.Logf("unused in this run: %s", c)
	}
	t.Logf("%d differences with a cause:\n%s", len(known), strings.Join(known, "\n"))
}
