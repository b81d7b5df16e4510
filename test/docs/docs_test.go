package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// documents describe a machine without Bowline in the cluster, in the order in which they run.
var documents = []string{"remote-hosts.md", "trust.md"}

// says lists output that commands must print, by a part of the command.
var says = []struct{ command, output string }{
	{"host check", "This host can be a node"},
	{"kubectl get nodes", "host1   Ready"},
	{"host release", "Nothing of Bowline is left"},
	{"wc -l", "0\n"},
	{"host scan", "ssh-ed25519 "},
}

func TestEveryCommand(t *testing.T) {
	r := newReader(t, 1, "host1")
	r.makeHome(t)
	r.program(t, "kubectl", fmt.Sprintf("#!/bin/sh\nexec %s --dir %s kubectl \"$@\"\n", labtest.Program("bowline-lab"), r.lab.Dir))
	// A machine under load may answer too late: then the script repeats the command.
	r.program(t, "bowline", fmt.Sprintf(`#!/bin/bash
[ "$1" != run ] || exec %[1]s "$@"
for try in 1 2 3 4 5; do
	%[1]s "$@" 2>&1 | tee %[2]s
	code=${PIPESTATUS[0]}
	[ "$code" != 0 ] && grep -q -e "deadline exceeded" -e "no answer" -e unreachable -e "does not answer any more" %[2]s || break
done
exit "$code"
`, built(t), r.path("said")))
	testutil.Must(t, os.MkdirAll(r.path("sudoers.d"), 0o755))
	// The documents' names, and the machine's files that a host of the lab shares.
	r.names = strings.NewReplacer("10.0.0.7", r.lab.Host(r.host).IP, "10.0.0.2", gateway(t, r.lab), "box-1", r.host,
		"/root/.ssh/authorized_keys", filepath.Join(r.lab.Dir, "ssh/authorized_keys"), "/etc/sudoers.d", r.path("sudoers.d"))
	said := map[string]bool{}
	for _, name := range documents {
		for _, c := range r.run(t, name, read(t, name)) {
			for _, s := range says {
				if strings.Contains(c.Text, s.command) {
					said[s.command] = true
					if !strings.Contains(c.output, s.output) {
						t.Errorf("%s, line %d: %s\ndoes not print %q, but\n%s", name, c.Line, c.Text, s.output, c.output)
					}
				}
			}
		}
	}
	if len(said) != len(says) {
		t.Errorf("of %d commands whose output is known only %d are in the documents", len(says), len(said))
	}
}

// newReader makes a lab with that many hosts, one of which is the machine of the documents.
func newReader(t *testing.T, hosts int, machine string) *reader {
	t.Helper()
	if os.Getenv("BOWLINE_E2E") != "1" {
		t.Skip("set BOWLINE_E2E=1 to run the documents in a lab (root); hack/test-machine.sh docs does")
	}
	dir := labtest.Dir(t, "bowline-docs", false)
	lab := labtest.StartFor(t, filepath.Join(dir, "lab"), hosts)
	return &reader{lab: lab, home: filepath.Join(dir, "home"), host: machine}
}
