package twin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// Results holds the columns by how Bowline reached its host: "local" or "ssh".
type Results map[string]Column

// Column is one run.
type Column struct {
	Date        string       `json:"date"` // of its start, 2006-01-02
	Took        string       `json:"took"`
	Scenarios   []string     `json:"scenarios"`
	Differences []Difference `json:"differences"` // between both kubelets and Bowline
	Noise       []Difference `json:"noise"`       // between the kubelets
}

func (c *Column) sort() {
	slices.Sort(c.Scenarios)
	by := func(a, b Difference) int {
		return strings.Compare(a.Scenario+"\x00"+a.Where+"\x00"+a.Kubelet+"\x00"+a.Other, b.Scenario+"\x00"+b.Where+"\x00"+b.Kubelet+"\x00"+b.Other)
	}
	slices.SortFunc(c.Differences, by)
	slices.SortFunc(c.Noise, by)
}

// Both returns the differences to one kubelet in places that also differ from the other kubelet.
func Both(one, two []Difference) []Difference {
	return slices.DeleteFunc(slices.Clone(one), func(d Difference) bool {
		return !slices.ContainsFunc(two, func(o Difference) bool { return o.Where == d.Where })
	})
}

// ReadResults reads the file that Keep writes; the file may be missing.
func ReadResults(path string) (Results, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Results{}, nil
	}
	if err != nil {
		return nil, err
	}
	var r Results
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Keep replaces a column of the results. Another run may replace another column at the same time.
func Keep(path, column string, c Column) error {
	return Locked(path, func() error {
		r, err := ReadResults(path)
		if err != nil {
			return err
		}
		r[column] = c
		data, err := json.MarshalIndent(r, "", "\t")
		if err != nil {
			return err
		}
		return os.WriteFile(path, append(data, '\n'), 0o644)
	})
}

// Locked runs change while no other process runs a change of a file in the directory of path.
func Locked(path string, change func() error) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir.Name(), err)
	}
	return change()
}

// Cause explains differences: why Bowline behaves differently, or why two kubelets differ. Every
// field that is set must match; scenario and where are regular expressions of the whole.
type Cause struct {
	Scenario string `json:"scenario,omitempty"`
	Where    string `json:"where,omitempty"`
	Kubelet  string `json:"kubelet,omitempty"` // part of the kubelet's text; "nothing": it has none
	Other    string `json:"other,omitempty"`   // the same for the other side
	Noise    bool   `json:"noise,omitempty"`   // it explains only differences between two kubelets
	Rare     bool   `json:"rare,omitempty"`    // few runs have it: the recorded ones need not
	Why      string `json:"why"`

	scenario, where *regexp.Regexp
}

// ReadCauses reads the causes, in the order in which they are tried.
func ReadCauses(path string) ([]Cause, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var causes []Cause
	if err := yaml.UnmarshalStrict(data, &causes); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	whole := func(s string) (*regexp.Regexp, error) {
		if s == "" {
			s = ".*"
		}
		return regexp.Compile("^(?s:" + s + ")$")
	}
	for i := range causes {
		c := &causes[i]
		if c.Why == "" || c.Where == "" {
			return nil, fmt.Errorf("%s: cause %d says not where or why", path, i)
		}
		var errScenario, errWhere error
		c.scenario, errScenario = whole(c.Scenario)
		c.where, errWhere = whole(c.Where)
		if err := errors.Join(errScenario, errWhere); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return causes, nil
}

// Explain returns the reason of a difference, of one between two kubelets if noise is set; "" if no
// cause matches.
func Explain(causes []Cause, d Difference, noise bool) string {
	if i := causeOf(causes, d, noise); i >= 0 {
		return causes[i].Why
	}
	return ""
}

// causeOf is the index of the first cause that matches, or -1.
func causeOf(causes []Cause, d Difference, noise bool) int {
	return slices.IndexFunc(causes, func(c Cause) bool {
		return (noise || !c.Noise) && c.scenario.MatchString(d.Scenario) && c.where.MatchString(d.Where) &&
			says(d.Kubelet, c.Kubelet) && says(d.Other, c.Other)
	})
}

// Unused returns the causes that explain none of the differences and none of the noise of the
// columns.
func Unused(causes []Cause, columns ...Column) []Cause {
	used := make([]bool, len(causes))
	for _, column := range columns {
		for _, d := range column.Differences {
			if i := causeOf(causes, d, false); i >= 0 {
				used[i] = true
			}
		}
		for _, d := range column.Noise {
			if i := causeOf(causes, d, true); i >= 0 {
				used[i] = true
			}
		}
	}
	var unused []Cause
	for i, c := range causes {
		if !used[i] {
			unused = append(unused, c)
		}
	}
	return unused
}

func (c Cause) String() string {
	return fmt.Sprintf("scenario %q, where %q, kubelet %q, other %q: %s", c.Scenario, c.Where, c.Kubelet, c.Other, c.Why)
}

// says reports whether a text contains a part; with "$" at the part's end, whether it ends with it.
func says(text, part string) bool {
	if part == "nothing" {
		return text == ""
	}
	if end, ok := strings.CutSuffix(part, "$"); ok {
		return strings.HasSuffix(text, end)
	}
	return strings.Contains(text, part)
}
