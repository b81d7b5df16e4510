package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// causesFile says why specs fail on the kubelet too: a regular expression of their name or message,
// and the cause in the machine.
const causesFile = "test/conformance/causes.yaml"

// cause explains failures that the machine causes.
type cause struct {
	Spec string `json:"spec"` // part of a spec's name
	Why  string `json:"why"`
}

func readCauses(path string) ([]cause, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var causes []cause
	if err := yaml.UnmarshalStrict(data, &causes); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return causes, nil
}

// verdict rates a spec on a node, compared with the kubelet's run.
type verdict string

const (
	good    verdict = "✓"              // it passed, or was skipped as on the kubelet
	same    verdict = "as kubelet"     // it failed, as on the kubelet
	bad     verdict = "✗"              // the kubelet passes it
	unknown verdict = "not comparable" // there is no run of the kubelet
)

// compare compares a spec of a node with the kubelet's. A skip counts only if the kubelet's run skips
// the spec with the same message.
func compare(s spec, kubelet *spec) verdict {
	switch {
	case s.State == statePassed:
		return good
	case kubelet == nil:
		return unknown
	case s.State == stateSkipped && kubelet.State == stateSkipped && s.Message == kubelet.Message:
		return good
	case kubelet.State == statePassed || s.State == stateMissing || s.State == stateSkipped || kubelet.State == stateSkipped:
		return bad
	}
	return same
}

// writeDocument writes the results side by side.
func writeDocument(to io.Writer, r results, causes []cause) {
	fmt.Fprint(to, "# Conformance\n\n",
		"<!-- Made by test/conformance of docs/conformance.json. Run make conformance or make conformance-kubelet instead of editing. -->\n\n",
		"The Kubernetes project's own e2e suite, run against Bowline's node and against the real kubelet: the same Kubernetes, the same container runtime, the same machine. ",
		"A spec that was skipped counts as failed, unless the kubelet's run skips it with the same message; so does one that is missing.\n")
	for _, s := range sets {
		if len(r[s.Name]) > 0 {
			writeSet(to, s, r[s.Name], causes)
		}
	}
}

// writeSet writes a set's results.
func writeSet(to io.Writer, set set, r map[string]column, causes []cause) {
	fmt.Fprintf(to, "\n## %s\n\nThe specs of `%s`: `%s`", set.Title, set.file(), set.Focus)
	if set.Skip != "" {
		fmt.Fprintf(to, " without `%s`", set.Skip)
	}
	if set.hosts() > 1 {
		fmt.Fprintf(to, ". The cluster has %d nodes", set.hosts())
	}
	fmt.Fprint(to, ".\n\n")
	byName := map[string]map[string]spec{}
	for node, c := range r {
		for _, s := range c.Specs {
			if byName[s.Name] == nil {
				byName[s.Name] = map[string]spec{}
			}
			byName[s.Name][node] = s
		}
	}
	of := func(name, node string) *spec {
		if s, ok := byName[name][node]; ok {
			return &s
		}
		return nil
	}
	fmt.Fprint(to, "| node | date | took | specs | passed | skipped | failed | where the kubelet passes |\n|---|---|---|---|---|---|---|---|\n")
	for _, node := range columns {
		c, ok := r[node]
		if !ok {
			continue
		}
		counts, worse := map[string]int{}, 0
		for _, s := range c.Specs {
			counts[s.State]++
			if node != columnKubelet && compare(s, of(s.Name, columnKubelet)) == bad {
				worse++
			}
		}
		fmt.Fprintf(to, "| %s | %s | %s | %d | %d | %d | %d | %d |\n", set.title(node), c.Date, c.Took, len(c.Specs),
			counts[statePassed], counts[stateSkipped], len(c.Specs)-counts[statePassed]-counts[stateSkipped], worse)
	}
	var open []string
	for _, name := range sortedKeys(byName) {
		for _, node := range columns {
			if s := of(name, node); s != nil && s.State != statePassed {
				open = append(open, name)
				break
			}
		}
	}
	fmt.Fprintf(to, "\n%d of %d specs did not pass somewhere; all others passed on each node.\n", len(open), len(byName))
	for _, name := range open {
		fmt.Fprintf(to, "\n**%s**\n\n", name)
		if i := slices.IndexFunc(causes, func(c cause) bool { return strings.Contains(name, c.Spec) }); i >= 0 {
			fmt.Fprintf(to, "%s\n\n", causes[i].Why)
		}
		for _, node := range columns {
			s := of(name, node)
			switch {
			case s == nil && len(r[node].Specs) > 0:
				fmt.Fprintf(to, "- %s: not in this run\n", set.title(node))
			case s == nil:
			case node == columnKubelet:
				fmt.Fprintf(to, "- %s: %s%s\n", set.title(node), s.State, because(s))
			default:
				fmt.Fprintf(to, "- %s: %s (%s)%s\n", set.title(node), s.State, compare(*s, of(name, columnKubelet)), because(s))
			}
		}
	}
}

func because(s *spec) string {
	if s.Message == "" {
		return ""
	}
	return ": `" + strings.ReplaceAll(s.Message, "`", "'") + "`"
}

// title names a column of the set's table.
func (s set) title(node string) string {
	switch {
	case node == columnKubelet && s.hosts() > 1:
		return "kubelets"
	case node == columnKubelet:
		return "kubelet"
	case node == columnLocal:
		return "Bowline, local socket"
	case s.hosts() > 1:
		return "Bowline, local socket and over SSH"
	}
	return "Bowline, over SSH"
}
