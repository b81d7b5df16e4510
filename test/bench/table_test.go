package main

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestAims checks that an aim compares only systems that were measured.
func TestAims(t *testing.T) {
	up := func(d time.Duration) []result { return []result{{up: d}} }
	for name, c := range map[string]struct {
		results map[string][]result
		want    string
	}{
		"all measured":      {map[string][]result{sysBowline: up(8), sysKubelet: up(10), sysBare: up(7)}, "≤ 0.85 × kubelet, ≤ 1.15 × bare: met"},
		"slower than one":   {map[string][]result{sysBowline: up(8), sysKubelet: up(10), sysBare: up(6)}, "≤ 0.85 × kubelet, ≤ 1.15 × bare: missed"},
		"no bare CRI":       {map[string][]result{sysBowline: up(8), sysKubelet: up(10)}, "≤ 0.85 × kubelet: met"},
		"no kubelet":        {map[string][]result{sysBowline: up(8), sysBare: up(6)}, "≤ 1.15 × bare: missed"},
		"Bowline alone":     {map[string][]result{sysBowline: up(8)}, ""},
		"Bowline is absent": {map[string][]result{sysKubelet: up(10), sysBare: up(7)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cells, _ := rows(50, "containerd")[0].cells(&bench{results: c.results})
			if got := cells[len(cells)-1]; got != c.want {
				t.Errorf("the aim says %q, want %q", got, c.want)
			}
		})
	}
}

// TestBase checks that the table of two builds pairs the systems, and takes turns.
func TestBase(t *testing.T) {
	b := &bench{options: options{bowline: "new", base: "old", pods: 50}}
	if got := baseTable(b); got != nil {
		t.Errorf("nothing was measured: %q", got)
	}
	b.results = map[string][]result{sysBowline: {{up: 4 * time.Second}}, sysSSH: {{up: 3 * time.Second}, {up: 6 * time.Second}, {up: 5 * time.Second}}}
	b.earlier = map[string][]result{sysBowline: {{up: 5 * time.Second}}, sysSSH: {{up: 4 * time.Second}}, sysSSH10: {{up: time.Second}}}
	want := [][]string{
		{"this build / the earlier one", "local socket", "SSH, 0 ms", "SSH, 10 ms", "SSH, 50 ms"},
		{"50 pods to all Ready", "0.80: 4.00 s / 5.00 s", "1.25: 5.00 s / 4.00 s", "-", "-"},
	}
	if diff := cmp.Diff(want, baseTable(b)); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		system string
		i      int
		want   []string
	}{
		{sysSSH, 0, []string{"old", "new"}}, {sysSSH, 1, []string{"new", "old"}}, {sysBowline, 2, []string{"old", "new"}},
		{sysKubelet, 0, []string{"new"}}, {sysBare, 0, []string{"new"}},
	} {
		if got := b.programs(c.system, c.i); !slices.Equal(got, c.want) {
			t.Errorf("%s, repetition %d: %q, want %q", c.system, c.i, got, c.want)
		}
	}
}
