package docs

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestExtract(t *testing.T) {
	got, err := Extract("Say `bowline why`, or `kubectl get nodes`:\n\n```sh\nkubectl get nodes\n\nbowline run &\n```\n```text\nbox-1\n```\n" +
		"```sh machine\nreboot\n```\n```yaml pod.yaml\na:\n  b: c\n```\n```yaml /etc/x.yaml\nd: e\n```\n")
	want := []Command{
		{Line: 4, Text: "kubectl get nodes", Begins: true},
		{Line: 6, Text: "bowline run &", Prints: "box-1\n"},
		{Line: 12, Text: "reboot", Machine: true, Begins: true},
		{Line: 14, Text: "a:\n  b: c\n", File: "pod.yaml", Begins: true},
		{Line: 18, Text: "d: e\n", File: "/etc/x.yaml", Begins: true},
	}
	if err != nil || len(got) != len(want) {
		t.Fatalf("got %+v, %v", got, err)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %+v, want %+v", got[i], want[i])
		}
	}
	if got[3].Elsewhere() || !got[4].Elsewhere() {
		t.Error("a file of the reader's is taken for a machine's, or the other way round")
	}
	for text, want := range map[string]string{
		"a\n```yaml\nx: y\n```\n":              "line 2",
		"a\n\n    bowline run\n":               "line 3: an indented",
		"Try `kubectl get pods`.\n":            "no block has it",
		"Try `helm list -A`.\n":                "no block has it",
		"```sh\nx\n":                           "no end",
		"```text\nx\n```\n":                    "no command before it",
		"```sh\nx\n```\n```text\n\n```\n":      "empty block",
		"```yaml f\nx: y\n```\n```text\n```\n": "no command before it",
	} {
		if _, err := Extract(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestMatches(t *testing.T) {
	const got = "a warning\nNAME    READY   AGE\nhello   1/1     17s\nno\nno\nthe node is Ready: 2 CPUs\nnode host2 at 172.29.0.4:10250\n"
	names := strings.NewReplacer("box-1", "host2", "10.0.0.7", "172.29.0.4", "10.0.0.8", "172.29.0.5")
	for _, want := range []string{
		"NAME READY AGE\nhello 1/1 3d4h\n", "hello 1/1 ...\n", "...\nno\nno\n", "the node is Ready: ...\n", "hello ... 2s\n",
		"node box-1 at 10.0.0.7:10250\n", "node other-1 at 10.0.0.9:1\n",
	} {
		if err := Matches(want, got, names); err != nil {
			t.Errorf("%q: %v", want, err)
		}
	}
	for _, want := range []string{
		"hello 0/1 17s\n", "hello 1/1\n", "no\nno\nno\n", "yes\n", "no\nNAME READY AGE\n", "the node is Ready: 4 CPUs\n", "bye 1/1 17s\n",
		"node box-1 at 10.0.0.8:10250\n",
	} {
		if Matches(want, got, names) == nil {
			t.Errorf("%q is taken for what was printed", want)
		}
	}
}

// TestDocuments: every document can be run, and a new user needs few commands to get a node.
func TestDocuments(t *testing.T) {
	for _, name := range append(clusterDocuments, documents...) {
		data := testutil.ReadFile(t, "../../docs/"+name)
		commands, err := Extract(string(data))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(commands) < 4 {
			t.Errorf("%s has %d commands", name, len(commands))
		}
		for i, c := range commands {
			if c.Text == "kubectl get nodes" && i >= 9 {
				t.Errorf("%s: it takes %d commands to get there; ten are too many", name, i+1)
			}
			if c.File == "" {
				continue
			}
			for part := range strings.SplitSeq(c.Text, "\n---\n") {
				var object map[string]any
				if err := yaml.UnmarshalStrict([]byte(part), &object); err != nil || len(object) == 0 {
					t.Errorf("%s, line %d: %s is no YAML: %v", name, c.Line, c.File, err)
				}
			}
		}
	}
}
