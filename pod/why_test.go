package pod

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)

func report() *WhyReport {
	return &WhyReport{
		Namespace: "shop", Name: "web-0", UID: "6f1c", Node: "laptop", At: noon,
		Phase:  "Syncing",
		Reason: "container app cannot start: its image could not be pulled; trying again at 12:00:23",
		Waits:  &WhyWait{For: "the back-off of container app", Until: noon.Add(23 * time.Second)},
		Observed: WhyObserved{
			At: noon.Add(-4 * time.Second), Seq: 812,
			Sandboxes: []WhySandbox{{ID: "8f3c01d2a9b8c7d6e5", Attempt: 0, Ready: true, IPs: []string{"10.88.0.4"}}},
			Containers: []WhyContainer{
				{Name: "setup", ID: "aa11aa11aa11aa11", State: "Exited", Since: noon.Add(-61 * time.Second)},
				{Name: "app", State: "Absent", Detail: "image registry.example/app:2 is not present"},
			},
		},
		InFlight: []WhyOperation{{What: "pull log-agent", Since: noon.Add(-90 * time.Second), Reason: "image is not present"}},
		Backoffs: []WhyBackoff{{What: "app", Failures: 2, Until: noon.Add(23 * time.Second), Reason: "ImagePullBackOff", Message: "not found"}},
		Decisions: []WhyDecision{
			{At: noon.Add(-70 * time.Second), Phase: "Syncing", Reason: "the pod is new", Actions: []WhyAction{{What: "sandbox", Outcome: "done", Ended: noon.Add(-69 * time.Second)}, {What: "pull log-agent"}}},
			{At: noon.Add(-20 * time.Second), Last: noon.Add(-5 * time.Second), Times: 3, Phase: "Syncing", Reason: "waiting for the back-off of app"},
		},
	}
}

const reportText = `shop/web-0  Syncing
  container app cannot start: its image could not be pulled; trying again at 12:00:23

  node       laptop
  waits for  the back-off of container app, until 12:00:23 (in 23s)
  observed   4s ago
  uid        6f1c

SANDBOXES
  8f3c01d2a9b8  attempt 0  ready  10.88.0.4

CONTAINERS
  setup  Exited (0)  61s ago  0 restarts  aa11aa11aa11
  app    Absent               0 restarts                image registry.example/app:2 is not present

IN FLIGHT
  pull log-agent  since 90s  image is not present

BACK-OFFS
  app  2 failures  until 12:00:23 (in 23s)  ImagePullBackOff: not found

DECISIONS (newest first)
  11:59:40 to 11:59:55, 3 times  Syncing  waiting for the back-off of app
  11:58:50  Syncing  the pod is new
    - sandbox: done after 1s
    - pull log-agent: running
`

func TestWhyText(t *testing.T) {
	if d := cmp.Diff(reportText, report().Text(noon)); d != "" {
		t.Error(d)
	}
}

func TestWhyTextOfStaleEnding(t *testing.T) {
	r := &WhyReport{Namespace: "a", Name: "b", Phase: "Terminating",
		Ending:   &WhyEnding{Cause: "deleted", At: noon.Add(-2 * time.Hour), Seconds: 30},
		Observed: WhyObserved{At: noon.Add(-time.Minute), Stale: "the runtime does not answer"}}
	text := r.Text(noon)
	for _, want := range []string{"ending     deleted 120m ago, grace 30s\n", "waits for  the next change\n", "observed   60s ago, STALE: the runtime does not answer\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
}

func TestWhyJSONRoundTrip(t *testing.T) {
	data, err := json.Marshal(report())
	testutil.Must(t, err)
	var back WhyReport
	testutil.Must(t, json.Unmarshal(data, &back))
	if d := cmp.Diff(report(), &back); d != "" {
		t.Error(d)
	}
}

func TestDecisionLog(t *testing.T) {
	var log []WhyDecision
	for i := range 3 {
		log = AppendDecision(log, WhyDecision{At: noon.Add(time.Duration(i) * time.Second), Phase: "Syncing", Reason: "same"})
	}
	if len(log) != 1 || log[0].Times != 3 || !log[0].Last.Equal(noon.Add(2*time.Second)) {
		t.Errorf("three equal decisions: %+v, want one with Times 3", log)
	}
	log = AppendDecision(log, WhyDecision{At: noon, Phase: "Syncing", Reason: "same", Actions: []WhyAction{{What: "pull app"}}})
	if len(log) != 2 {
		t.Errorf("a decision with actions was merged away: %+v", log)
	}
	EndAction(log, "pull app", "done", noon.Add(time.Second))
	if got := log[1].Actions[0]; got.Outcome != "done" || !got.Ended.Equal(noon.Add(time.Second)) {
		t.Errorf("the action's end was not noted: %+v", got)
	}
	for i := range 2 * DecisionLogSize {
		log = AppendDecision(log, WhyDecision{At: noon, Phase: "Syncing", Reason: string(rune('a' + i))})
	}
	if len(log) != DecisionLogSize {
		t.Errorf("the log holds %d decisions, want %d", len(log), DecisionLogSize)
	}
	if newest := log[len(log)-1].Reason; newest != string(rune('a'+2*DecisionLogSize-1)) {
		t.Errorf("newest decision is %q", newest)
	}
}
