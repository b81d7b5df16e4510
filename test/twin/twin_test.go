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
)

// root of the repository, from here.
const root = "../.."

// atOnce is how many scenarios run beside each other, each on three nodes. More of them
// would make the machine's load the noise.
const atOnce = 8

// Each scenario, on two kubelets and on Bowline's node. BOWLINE_TWIN_RUN is a regular
// expression of scenarios: with it the results are shown, and not kept. BOWLINE_TWIN=replay
// judges the recordings of the last run anew, without a lab, and keeps what it finds.
func TestTwin(t *testing.T) {
	replay := os.Getenv("BOWLINE_TWIN") == "replay"
	if !replay && (os.Getenv("BOWLINE_E2E") != "1" || os.Getenv("BOWLINE_TWIN") != "1") {
		t.Skip("set BOWLINE_E2E=1 and BOWLINE_TWIN=1 to run these tests in a lab (root)")
	}
	far := os.Getenv("BOWLINE_E2E_HOST") == "ssh"
	column := map[bool]string{false: "local", true: "ssh"}[far]
	only := os.Getenv("BOWLINE_TWIN_RUN")
	chosen, err := regexp.Compile(only)
	must(t, err)
	out, err := filepath.Abs(filepath.Join(root, "bin/twin", column))
	must(t, err)
	must(t, os.MkdirAll(out, 0o755))
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
		runAll(t, setUp(t, out, far), played, file)
	}
	var result Column
	var first, last time.Time // of all recordings
	for _, sc := range played {
		var timelines []Timeline
		for _, node := range nodeNames {
			r, err := Load(file(sc.name, node))
			must(t, err)
			timelines = append(timelines, Normalise(r))
			for _, e := range r.Entries {
				if first.IsZero() || e.At.Before(first) {
					first = e.At
				}
				if e.At.After(last) {
					last = e.At
				}
			}
		}
		one, two, ours := timelines[0], timelines[1], timelines[2]
		result.Scenarios = append(result.Scenarios, sc.name)
		result.Noise = append(result.Noise, Compare(one, two)...)
		result.Differences = append(result.Differences, Both(Compare(one, ours), Compare(two, ours))...)
	}
	result.sort()
	result.Date, result.Took = first.UTC().Format(time.DateOnly), last.Sub(first).Round(time.Second).String()
	report(t, result)
	if only == "" {
		must(t, Keep(filepath.Join(root, "docs/twin.json"), column, result))
	}
}

// runAll plays the scenarios, each on all nodes at once, and saves the recordings.
func runAll(t *testing.T, s *stage, played []scenario, file func(scenario, node string) string) {
	recorders := map[*node]*recorder{}
	for _, n := range s.nodes() {
		var err error
		recorders[n], err = record(t.Context(), s.lab.Client, n)
		must(t, err)
	}
	// Not as parallel tests, of which go test runs as many as there are processors: these
	// wait most of the time.
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

// report shows what differs; a difference without a cause is a failure.
func report(t *testing.T, result Column) {
	causes, err := ReadCauses("causes.yaml")
	must(t, err)
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
