package docs

import (
	"os"
	"strings"
	"testing"
)

func TestExtract(t *testing.T) {
	got, err := Extract("Say `bowline why`, or `kubectl get nodes`:\n\n```sh\nkubectl get nodes\n\nbowline run &\n```\n```sh machine\nreboot\n```\n")
	if err != nil || len(got) != 3 || got[1] != (Command{6, "bowline run &", false}) || got[2] != (Command{9, "reboot", true}) {
		t.Errorf("got %+v, %v", got, err)
	}
	for text, want := range map[string]string{
		"a\n```yaml\nx: y\n```\n":   "line 2",
		"a\n\n    bowline run\n":    "line 3: an indented",
		"Try `kubectl get pods`.\n": "no block has it",
		"```sh\nx\n":                "no end",
	} {
		if _, err := Extract(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestDocuments: each can be run, and the way to a node is short.
func TestDocuments(t *testing.T) {
	for _, name := range documents {
		data, err := os.ReadFile("../../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
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
		}
	}
}
