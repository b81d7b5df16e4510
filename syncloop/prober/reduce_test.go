package prober

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/pod"
)

func TestAdd(t *testing.T) {
	const U, S, F = Unknown, Success, Failure
	for name, c := range map[string]struct {
		kind    Kind
		th      Thresholds
		results []Result
		want    pod.Verdict
		hold    bool
	}{
		"not ready before a result":        {Readiness, Thresholds{1, 3}, nil, pod.VerdictFailure, false},
		"ready":                            {Readiness, Thresholds{1, 3}, []Result{S}, pod.VerdictSuccess, false},
		"two failures of three":            {Readiness, Thresholds{1, 3}, []Result{S, F, F}, pod.VerdictSuccess, false},
		"three failures":                   {Readiness, Thresholds{1, 3}, []Result{S, F, F, F}, pod.VerdictFailure, false},
		"a success between":                {Readiness, Thresholds{1, 3}, []Result{S, F, F, S, F, F}, pod.VerdictSuccess, false},
		"an unknown between changes none":  {Readiness, Thresholds{1, 3}, []Result{S, F, U, F, U, F}, pod.VerdictFailure, false},
		"one success of two":               {Readiness, Thresholds{2, 3}, []Result{S}, pod.VerdictFailure, false},
		"two successes":                    {Readiness, Thresholds{2, 3}, []Result{S, S}, pod.VerdictSuccess, false},
		"unknown alone":                    {Liveness, Thresholds{1, 1}, []Result{U, U}, pod.VerdictUnknown, false},
		"dead, and asked no more":          {Liveness, Thresholds{1, 2}, []Result{S, F, F, S}, pod.VerdictFailure, true},
		"started, and asked no more":       {Startup, Thresholds{1, 2}, []Result{F, S, F, F}, pod.VerdictSuccess, true},
		"did not start, and asked no more": {Startup, Thresholds{1, 2}, []Result{F, F, S}, pod.VerdictFailure, true},
	} {
		tally := First(c.kind)
		for _, r := range c.results {
			tally = tally.Add(c.kind, c.th, r)
		}
		if tally.Verdict != c.want || tally.Hold != c.hold {
			t.Errorf("%s: %v hold %v, want %v hold %v", name, tally.Verdict, tally.Hold, c.want, c.hold)
		}
	}
}

// TestAddAgainstHistory checks the tally against the whole history: the verdict is that of the last
// sequence of equal results that reached its threshold.
func TestAddAgainstHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		th := Thresholds{rapid.IntRange(1, 3).Draw(t, "success"), rapid.IntRange(1, 3).Draw(t, "failure")}
		results := rapid.SliceOf(rapid.SampledFrom([]Result{Unknown, Success, Failure})).Draw(t, "results")
		tally := First(Readiness)
		var known []Result
		for _, r := range results {
			tally = tally.Add(Readiness, th, r)
			if r != Unknown {
				known = append(known, r)
			}
		}
		want := pod.VerdictFailure
		for i := len(known) - 1; i >= 0; i-- {
			row := 0
			for j := i; j >= 0 && known[j] == known[i]; j-- {
				row++
			}
			if known[i] == Success && row >= th.Success {
				want = pod.VerdictSuccess
				break
			}
			if known[i] == Failure && row >= th.Failure {
				break
			}
		}
		if tally.Verdict != want {
			t.Fatalf("%v, want %v", tally.Verdict, want)
		}
	})
}
