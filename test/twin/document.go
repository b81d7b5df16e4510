package twin

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// titles are the columns, in the order in which they are shown.
var titles = []struct{ column, title string }{{"local", "Bowline, local socket"}, {"ssh", "Bowline, over SSH"}}

// WriteSection writes the results as a section of docs/conformance.md.
func WriteSection(to io.Writer, r Results, causes []Cause) {
	fmt.Fprint(to, "\n## Twins\n\n",
		"The same manifests and the same actions on two nodes of the real kubelet and on Bowline's, at the same time and on the same machine. ",
		"`make twin` (`test/twin`) compares every status and event that the API server receives. The two kubelets bound the noise: ",
		"it counts as a difference only if Bowline differs from both.\n\n",
		"| node | date | took | scenarios | that differ | differences without a reason | that differ between the kubelets |\n|---|---|---|---|---|---|---|\n")
	for _, c := range titles {
		column, ok := r[c.column]
		if !ok {
			continue
		}
		unknown := 0
		for _, d := range column.Differences {
			if Explain(causes, d, false) == "" {
				unknown++
			}
		}
		fmt.Fprintf(to, "| %s | %s | %s | %d | %d | %d | %d |\n", c.title, column.Date, column.Took, len(column.Scenarios),
			len(scenariosOf(column.Differences)), unknown, len(scenariosOf(column.Noise)))
	}
	for _, c := range titles {
		column, ok := r[c.column]
		if !ok {
			continue
		}
		writeDifferences(to, "What differs: "+c.title, "Bowline", column.Differences, causes, false)
		writeDifferences(to, "Noise of that run: what differs between the two kubelets", "the other kubelet", column.Noise, causes, true)
	}
}

// writeDifferences writes the differences by their causes, each with one example.
func writeDifferences(to io.Writer, title, other string, differences []Difference, causes []Cause, noise bool) {
	if len(differences) == 0 {
		return
	}
	fmt.Fprintf(to, "\n### %s\n", title)
	byCause := map[string][]Difference{}
	var order []string
	for _, d := range differences {
		why := Explain(causes, d, noise)
		if why == "" {
			why = "No reason is known."
		}
		if byCause[why] == nil {
			order = append(order, why)
		}
		byCause[why] = append(byCause[why], d)
	}
	for _, why := range order {
		d := byCause[why][0]
		fmt.Fprintf(to, "\n%s In %s.\n\n- for one, %s of %s. The kubelet: `%s`. %s: `%s`.\n", strings.TrimSpace(why),
			strings.Join(scenariosOf(byCause[why]), ", "), d.Where, d.Scenario, quoted(d.Kubelet), strings.ToUpper(other[:1])+other[1:], quoted(d.Other))
	}
}

func quoted(s string) string {
	if s == "" {
		return "(nothing)"
	}
	const most = 300
	s = strings.ReplaceAll(strings.ReplaceAll(s, "`", "'"), "\n", " ")
	if len([]rune(s)) > most {
		s = string([]rune(s)[:most]) + "…"
	}
	return s
}

func scenariosOf(differences []Difference) []string {
	var names []string
	for _, d := range differences {
		names = append(names, d.Scenario)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
