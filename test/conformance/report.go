package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/bowline-k8s/bowline/test/twin"
)

// The nodes under test, each a column of the document.
const (
	columnKubelet = "kubelet"
	columnLocal   = "local"
	columnSSH     = "ssh"
)

var columns = []string{columnKubelet, columnLocal, columnSSH}

// States of a spec: ginkgo's own words, and missing for a spec that did not run.
const (
	statePassed  = "passed"
	stateSkipped = "skipped"
	stateMissing = "missing"
)

// spec is the result of one spec.
type spec struct {
	Name    string  `json:"name"`
	State   string  `json:"state"`
	Message string  `json:"message,omitempty"` // why it did not pass; one line
	Seconds float64 `json:"seconds,omitempty"`
}

// column is one run of the selection.
type column struct {
	Date  string `json:"date"` // of its start, 2006-01-02
	Took  string `json:"took"`
	Specs []spec `json:"specs"` // by name
}

// notPassed returns the specs of a column that did not pass.
func (c column) notPassed() []spec {
	return slices.DeleteFunc(slices.Clone(c.Specs), func(s spec) bool { return s.State == statePassed })
}

// readReport reads ginkgo's JSON report: the specs, without the suite's own nodes.
func readReport(path string) ([]spec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	specs, err := parseReport(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return specs, nil
}

func parseReport(data []byte) ([]spec, error) {
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeText            string
			LeafNodeType            string
			State                   string
			RunTime                 time.Duration
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("not a report of ginkgo's: %w", err)
	}
	var specs []spec
	for _, suite := range suites {
		for _, r := range suite.SpecReports {
			failed := r.State != statePassed && r.State != stateSkipped
			if r.LeafNodeType != "It" && !failed {
				continue
			}
			name := strings.Join(append(slices.Clone(r.ContainerHierarchyTexts), r.LeafNodeText), " ")
			if r.LeafNodeType != "It" {
				name = "[" + r.LeafNodeType + "]" + name
			}
			specs = append(specs, spec{Name: strings.TrimSpace(name), State: r.State,
				Message: oneLine(r.Failure.Message), Seconds: float64(r.RunTime.Milliseconds()) / 1000})
		}
	}
	return specs, nil
}

// maxMessage bounds the text that is kept of a failure, because some hold whole objects. The
// beginning is kept, and the end, which often says the most.
const maxMessage = 400

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage/2], "") + " … " + strings.ToValidUTF8(s[len(s)-maxMessage/2:], "")
	}
	return s
}

// makeColumn makes the column of a run. A wanted spec that did not run is missing. If wanted is
// nil, the specs that ran are the wanted ones.
func makeColumn(got []spec, wanted []string, began time.Time) column {
	c := column{Date: began.UTC().Format(time.DateOnly), Took: time.Since(began).Round(time.Second).String()}
	ran := map[string]bool{}
	for _, s := range got {
		// Specs outside the selection are reported as skipped too, without a message.
		if s.State == stateSkipped && s.Message == "" && !slices.Contains(wanted, s.Name) {
			continue
		}
		if ran[s.Name] {
			continue
		}
		ran[s.Name] = true
		c.Specs = append(c.Specs, s)
	}
	for _, name := range wanted {
		if !ran[name] {
			c.Specs = append(c.Specs, spec{Name: name, State: stateMissing, Message: "the spec did not run"})
		}
	}
	slices.SortFunc(c.Specs, func(a, b spec) int { return strings.Compare(a.Name, b.Name) })
	return c
}

// printColumn prints the result of a run and each spec that did not pass, with the reason.
func printColumn(to io.Writer, node string, c column) error {
	counts := map[string]int{}
	for _, s := range c.Specs {
		counts[s.State]++
	}
	fmt.Fprintf(to, "\n%s: %d specs in %s:", node, len(c.Specs), c.Took)
	for _, state := range sortedKeys(counts) {
		fmt.Fprintf(to, " %d %s", counts[state], state)
	}
	fmt.Fprint(to, "\n\n")
	w := tabwriter.NewWriter(to, 0, 4, 2, ' ', 0)
	for _, s := range c.notPassed() {
		fmt.Fprintf(w, "%s\t%s\n\t  %s\n", s.State, s.Name, s.Message)
	}
	return w.Flush()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// results are the last runs of each set, by the set's name and the column.
type results map[string]map[string]column

// readResults reads the file that keepColumn writes. A missing file is no error.
func readResults(path string) (results, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return results{}, nil
	}
	if err != nil {
		return nil, err
	}
	r := results{}
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// keepColumn replaces one column of the results and rewrites the document. Another run may replace another
// column at the same time.
func keepColumn(resultsPath, documentPath, set, node string, c column) error {
	return twin.Locked(resultsPath, func() error {
		r, err := readResults(resultsPath)
		if err != nil {
			return err
		}
		if r[set] == nil {
			r[set] = map[string]column{}
		}
		r[set][node] = c
		data, err := json.MarshalIndent(r, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(resultsPath, append(data, '\n'), 0o644); err != nil {
			return err
		}
		return writeDocumentOf(resultsPath, documentPath)
	})
}

// keepDocument writes the document from the results.
func keepDocument(resultsPath, documentPath string) error {
	return twin.Locked(resultsPath, func() error { return writeDocumentOf(resultsPath, documentPath) })
}

func writeDocumentOf(resultsPath, documentPath string) error {
	r, err := readResults(resultsPath)
	if err != nil {
		return err
	}
	causes, err := readCauses(causesFile)
	if err != nil {
		return err
	}
	var document bytes.Buffer
	writeDocument(&document, r, causes)
	if err := writeTwins(&document, "."); err != nil {
		return err
	}
	return os.WriteFile(documentPath, document.Bytes(), 0o644)
}

// readList reads one name a line.
func readList(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n"), nil
}
