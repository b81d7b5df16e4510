package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

const aReport = `[{"SpecReports":[
 {"LeafNodeType":"SynchronizedBeforeSuite","State":"passed"},
 {"ContainerHierarchyTexts":["[sig-node] Pods"],"LeafNodeText":"should run [NodeConformance]","LeafNodeType":"It","State":"passed","RunTime":1500000000},
 {"ContainerHierarchyTexts":["[sig-node] Pods"],"LeafNodeText":"should fail [NodeConformance]","LeafNodeType":"It","State":"failed","RunTime":2000000000,"Failure":{"Message":"expected\n  one\tgot two"}},
 {"ContainerHierarchyTexts":["[sig-node] Pods"],"LeafNodeText":"needs a GPU","LeafNodeType":"It","State":"skipped","Failure":{"Message":"no GPU"}},
 {"ContainerHierarchyTexts":["[sig-apps] Job"],"LeafNodeText":"is not selected","LeafNodeType":"It","State":"skipped"}]}]`

// A column has each wanted spec once: with its result, or missing.
func TestColumn(t *testing.T) {
	got, err := parseReport([]byte(aReport))
	testutil.Must(t, err)
	wanted := []string{"[sig-node] Pods should run [NodeConformance]", "[sig-node] Pods should fail [NodeConformance]",
		"[sig-node] Pods needs a GPU", "[sig-node] Pods was renamed"}
	c := makeColumn(got, wanted, time.Now())
	want := []spec{
		{Name: "[sig-node] Pods needs a GPU", State: stateSkipped, Message: "no GPU"},
		{Name: "[sig-node] Pods should fail [NodeConformance]", State: "failed", Message: "expected one got two", Seconds: 2},
		{Name: "[sig-node] Pods should run [NodeConformance]", State: statePassed, Seconds: 1.5},
		{Name: "[sig-node] Pods was renamed", State: stateMissing, Message: "the spec did not run"},
	}
	if diff := cmp.Diff(want, c.Specs); diff != "" {
		t.Error(diff)
	}
	if n := len(c.notPassed()); n != 3 {
		t.Errorf("%d did not pass", n)
	}
	// Without a list, the specs that ran count, and those outside the selection do not.
	if n := len(makeColumn(got, nil, time.Now()).Specs); n != 3 {
		t.Errorf("without a list there are %d specs", n)
	}
	if _, err := parseReport([]byte("{")); err == nil {
		t.Error("half a report is read")
	}
	broken, err := parseReport([]byte(`[{"SpecReports":[{"LeafNodeType":"SynchronizedBeforeSuite","State":"failed","Failure":{"Message":"no node"}}]}]`))
	if err != nil || len(broken) != 1 || broken[0].Name != "[SynchronizedBeforeSuite]" {
		t.Errorf("a suite that could not begin: %v, %v", broken, err)
	}
}

// oneLine keeps the beginning and the end of a long message, and never half of a character.
func TestOneLine(t *testing.T) {
	if got := oneLine(" a\n\tb "); got != "a b" {
		t.Errorf("%q", got)
	}
	long := oneLine("begin " + strings.Repeat("ä", maxMessage) + " end")
	if !strings.HasPrefix(long, "begin ää") || !strings.HasSuffix(long, "ää end") || len(long) > maxMessage+5 || !utf8.ValidString(long) {
		t.Errorf("%d bytes: %q", len(long), long)
	}
}

// Every pair of states has its verdict.
func TestCompare(t *testing.T) {
	state := func(s string) *spec { return &spec{State: s, Message: "why"} }
	for _, c := range []struct {
		ours    string
		kubelet *spec
		want    verdict
	}{
		{"passed", state("passed"), good},
		{"passed", state("failed"), good},
		{"passed", nil, good},
		{"failed", state("passed"), bad},
		{"failed", state("failed"), same},
		{"failed", state("skipped"), bad},
		{"failed", nil, unknown},
		{"timedout", state("failed"), same},
		{"skipped", state("skipped"), good},
		{"skipped", &spec{State: "skipped", Message: "something else"}, bad},
		{"skipped", state("passed"), bad},
		{"skipped", state("failed"), bad},
		{"missing", state("passed"), bad},
		{"missing", state("failed"), bad},
		{"missing", state("missing"), bad},
	} {
		if got := compare(*state(c.ours), c.kubelet); got != c.want {
			t.Errorf("%s beside %v: %s, not %s", c.ours, c.kubelet, got, c.want)
		}
	}
}

// A run replaces its own column of the document and leaves the others.
func TestKeepColumn(t *testing.T) {
	dir := t.TempDir()
	results, document := filepath.Join(dir, "r.json"), filepath.Join(dir, "d.md")
	kubelet := column{Date: "2026-01-02", Took: "1m", Specs: []spec{{Name: "a", State: "passed"}, {Name: "b", State: "failed", Message: "no `c`"}}}
	ours := column{Date: "2026-01-03", Took: "2m", Specs: []spec{{Name: "a", State: "failed", Message: "late"}, {Name: "b", State: "failed", Message: "no c"}}}
	for _, c := range []struct {
		node   string
		column column
	}{{columnKubelet, kubelet}, {columnLocal, kubelet}, {columnLocal, ours}} {
		testutil.Must(t, keepColumn(results, document, sets[0].Name, c.node, c.column))
	}
	data := testutil.ReadFile(t, document)
	for _, want := range []string{
		"| kubelet | 2026-01-02 | 1m | 2 | 1 | 0 | 1 | 0 |",
		"| Bowline, local socket | 2026-01-03 | 2m | 2 | 0 | 0 | 2 | 1 |",
		"## NodeConformance\n", "2 of 2 specs",
		"**a**\n\n- kubelet: passed\n- Bowline, local socket: failed (✗): `late`",
		"**b**\n\n- kubelet: failed: `no 'c'`\n- Bowline, local socket: failed (as kubelet): `no c`",
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("the document lacks %q:\n%s", want, data)
		}
	}
}

// The committed document matches the committed results and causes.
func TestDocumentIsGenerated(t *testing.T) {
	for _, name := range []string{resultsFile, documentFile, causesFile} {
		if _, err := os.Stat(filepath.Join("../..", name)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := readResults(filepath.Join("../..", resultsFile))
	testutil.Must(t, err)
	causes, err := readCauses(filepath.Join("../..", causesFile))
	testutil.Must(t, err)
	var b bytes.Buffer
	writeDocument(&b, r, causes)
	testutil.Must(t, writeTwins(&b, "../.."))
	have := testutil.ReadFile(t, filepath.Join("../..", documentFile))
	if diff := cmp.Diff(string(have), b.String()); diff != "" {
		t.Errorf("%s was edited, or its causes changed: run conformance -document\n%s", documentFile, diff)
	}
	for _, set := range sets {
		specs, err := readList(filepath.Join("../..", set.file()))
		testutil.Must(t, err)
		for node, c := range r[set.Name] {
			if len(c.Specs) < len(specs) {
				t.Errorf("%s, %s: %d of %d specs", set.Name, node, len(c.Specs), len(specs))
			}
		}
	}
}

// follow counts the suite's bullets, one a spec, on one line or many.
func TestFollow(t *testing.T) {
	var out bytes.Buffer
	follow(strings.NewReader("Running\n••••\n• [FAILED] [2.133 seconds]\n[sig-node] Pods [It] should run\n/a.go:1\n"+strings.Repeat("•", 5)+"\n"), &out)
	got := out.String()
	if !strings.Contains(got, "5 specs ended  • [FAILED] [2.133 seconds] [sig-node] Pods [It] should run") || !strings.Contains(got, "10 specs ended") {
		t.Errorf("shown is\n%s", got)
	}
}
