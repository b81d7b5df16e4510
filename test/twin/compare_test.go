package twin

import (
	"strings"
	"testing"
	"time"
)

// values makes a track from words; a word that ends in ~ lasts for a moment.
func values(kind func(string) string, words ...string) (track []Value) {
	for _, w := range words {
		v := Value{Text: strings.TrimSuffix(w, "~"), Lasted: time.Minute}
		if v.Text != w {
			v.Lasted = time.Second
		}
		v.Kind = kind(v.Text)
		track = append(track, v)
	}
	return track
}

func TestTracks(t *testing.T) {
	status := func(s string) string { first, _, _ := strings.Cut(s, " "); return first }
	state := func(s string) string {
		words := strings.Fields(s)
		if words[1] == "waiting" {
			return words[2]
		}
		return words[1]
	}
	for _, test := range []struct {
		what, track string
		kind        func(string) string
		a, b        []string
		differ      bool
	}{
		{"alike", "phase", status, []string{"Pending", "Running"}, []string{"Pending", "Running"}, false},
		{"another value", "phase", status, []string{"Pending", "Failed"}, []string{"Pending", "Running"}, true},
		{"Running was short", "phase", status, []string{"Pending", "Running~", "Failed"}, []string{"Pending", "Failed"}, false},
		{"Running was not short", "phase", status, []string{"Pending", "Running", "Failed"}, []string{"Pending", "Failed"}, true},
		{"the last is missing", "phase", status, []string{"Pending", "Running~"}, []string{"Pending"}, true},
		{"a condition with another reason in between", "condition Ready", status, []string{"False a", "False b~", "True"}, []string{"False a", "True"}, false},
		{"which lasted", "condition Ready", status, []string{"False a", "False b", "True"}, []string{"False a", "True"}, true},
		{"a flip", "condition Ready", status, []string{"True", "False~", "True"}, []string{"True"}, true},
		{"being created", "container main", state, []string{"#0 waiting ContainerCreating~", "#0 running"}, []string{"#0 running"}, false},
		{"an end that is reported after", "container main", state,
			[]string{"#0 running", "#0 terminated Error exit 1~", "#1 running, before: terminated Error exit 1"},
			[]string{"#0 running", "#1 running, before: terminated Error exit 1"}, false},
		{"an end that is not", "container main", state,
			[]string{"#0 running", "#0 terminated Error exit 2~", "#1 running, before: terminated Error exit 1"},
			[]string{"#0 running", "#1 running, before: terminated Error exit 1"}, true},
		{"two short ones that differ", "container main", state,
			[]string{"#0 running", "#0 terminated Error exit 1~", "#1 running, before: terminated Error exit 1"},
			[]string{"#0 running", "#0 terminated Oops exit 1~", "#1 running, before: terminated Error exit 1"}, true},
		{"a back-off that was short", "container main", state,
			[]string{"#0 running", "#0 waiting CrashLoopBackOff~", "#1 running"}, []string{"#0 running", "#1 running"}, true},
	} {
		for _, swap := range []bool{false, true} {
			a, b := values(test.kind, test.a...), values(test.kind, test.b...)
			if swap {
				a, b = b, a
			}
			c := &comparison{}
			c.track(test.track, a, b)
			if (len(c.found) > 0) != test.differ {
				t.Errorf("%s (swapped %t): %v", test.what, swap, c.found)
			}
		}
	}
}

func TestCountsOfEvents(t *testing.T) {
	for _, test := range []struct {
		cause  string
		a, b   int32
		differ bool
	}{
		{"Created", 1, 1, false}, {"Created", 1, 2, true}, {"Killing", 3, 4, true},
		{"BackOff", 1, 2, false}, {"BackOff", 1, 3, true}, {"BackOff", 10, 13, false}, {"BackOff", 10, 16, true},
	} {
		c := &comparison{}
		c.events("", []EventLine{{Text: "x", Cause: test.cause, Count: test.a}}, []EventLine{{Text: "x", Cause: test.cause, Count: test.b}})
		if (len(c.found) > 0) != test.differ {
			t.Errorf("%v: %v", test, c.found)
		}
	}
}

func TestOrder(t *testing.T) {
	moments := func(seconds ...int) (all []Moment) {
		for i, s := range seconds {
			all = append(all, Moment{string(rune('a' + i)), time.Unix(int64(s), 0)})
		}
		return all
	}
	for _, test := range []struct {
		a, b   []Moment
		differ bool
	}{
		{moments(0, 5), moments(0, 3), false},
		{moments(0, 5), moments(3, 0), true},
		{moments(0, 5), moments(1, 0), true},
		{moments(0, 1), moments(1, 0), false}, // to the second, both may be simultaneous
		{moments(0, 1), moments(2, 0), true},
		{moments(0, 0), moments(9, 0), false},
	} {
		c := &comparison{}
		c.order(test.a, test.b)
		if (len(c.found) > 0) != test.differ {
			t.Errorf("%v, %v: %v", test.a, test.b, c.found)
		}
	}
}

// Both returns the places that differ from both kubelets, and no others.
func TestBoth(t *testing.T) {
	one := []Difference{{Where: "a", Other: "1"}, {Where: "b", Other: "1"}}
	two := []Difference{{Where: "b", Other: "2"}, {Where: "c", Other: "2"}}
	if got := Both(one, two); len(got) != 1 || got[0] != one[1] {
		t.Error(got)
	}
}
