package main

import (
	"testing"
	"time"
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
