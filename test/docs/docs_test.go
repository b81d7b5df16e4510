package docs

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// documents in the order in which they are run.
var documents = []string{"far-machines.md", "trust.md"}

const host = "host1"

// says is what commands have to print, by a part of them.
var says = []struct{ command, output string }{
	{"host check", "a node can be made of this machine"},
	{"kubectl get nodes", host + "   Ready"},
	{"host release", "Nothing of Bowline's stays"},
	{"wc -l", "0\n"},
	{"host scan", "ssh-ed25519 "},
}

// reader is somebody who follows the documents, with a home and a lab for a machine.
type reader struct {
	lab  *labtest.Lab
	home string
}

func TestEveryCommand(t *testing.T) {
	if os.Getenv("BOWLINE_E2E") != "1" {
		t.Skip("set BOWLINE_E2E=1 to run the documents in a lab (root)")
	}
	dir, err := os.MkdirTemp("", "bowline-docs")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	lab, err := labtest.Start(t.Context(), filepath.Join(dir, "lab"), 1)
	must(t, err)
	t.Cleanup(func() {
		if err := lab.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r := &reader{lab, filepath.Join(dir, "home")}
	r.settle(t)
	said := map[string]bool{}
	for _, name := range documents {
		data, err := os.ReadFile("../../docs/" + name)
		must(t, err)
		commands, err := Extract(string(data))
		must(t, err)
		outputs := r.run(t, name, commands)
		for i, c := range commands {
			for _, s := range says {
				if strings.Contains(c.Text, s.command) {
					said[s.command] = true
					if !strings.Contains(outputs[i], s.output) {
						t.Errorf("%s, line %d: %s\ndoes not print %q, but\n%s", name, c.Line, c.Text, s.output, outputs[i])
					}
				}
			}
		}
	}
	if len(said) != len(says) {
		t.Errorf("of %d commands whose output is known only %d are in the documents", len(says), len(said))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// settle makes a home with what the documents take for granted.
func (r *reader) settle(t *testing.T) {
	t.Helper()
	h := r.lab.Host(host)
	key, err := os.ReadFile(h.SSH.Key)
	must(t, err)
	public, err := os.ReadFile(h.SSH.HostKey)
	must(t, err)
	admin, err := os.ReadFile(r.lab.Status.Cluster.AdminKubeconfig)
	must(t, err)
	bowline, err := labtest.BuiltBowline()
	must(t, err)
	bowline, err = filepath.Abs(bowline)
	must(t, err)
	ssh := r.path(".ssh")
	for name, content := range map[string]string{
		".ssh/id_ed25519":  string(key),
		".ssh/known_hosts": h.IP + " " + string(public),
		".ssh/config":      fmt.Sprintf("IdentityFile %s/id_ed25519\nUserKnownHostsFile %s/known_hosts\nStrictHostKeyChecking yes\n", ssh, ssh),
		".kube/config":     string(admin),
		"bin/ssh":          fmt.Sprintf("#!/bin/sh\nexec /usr/bin/ssh -n -F %s/config \"$@\"\n", ssh),
		"bin/kubectl":      fmt.Sprintf("#!/bin/sh\nexec %s --dir %s kubectl \"$@\"\n", labtest.Program("bowline-lab"), r.lab.Dir),
		// A machine under load may answer too late: then the command is given again.
		"bin/bowline": fmt.Sprintf(`#!/bin/bash
[ "$1" != run ] || exec %[1]s "$@"
for try in 1 2 3 4 5; do
	%[1]s "$@" 2>&1 | tee %[2]s
	code=${PIPESTATUS[0]}
	[ "$code" != 0 ] && grep -q -e "deadline exceeded" -e "no answer" -e unreachable -e "does no more" %[2]s || break
done
exit "$code"
`, bowline, r.path("said")),
	} {
		must(t, os.MkdirAll(filepath.Dir(r.path(name)), 0o755))
		mode := os.FileMode(0o600)
		if strings.HasPrefix(name, "bin/") {
			mode = 0o755
		}
		must(t, os.WriteFile(r.path(name), []byte(content), mode))
	}
	must(t, os.MkdirAll(r.path("sudoers.d"), 0o755))
}

func (r *reader) path(name string) string { return filepath.Join(r.home, name) }

// mark is what the script prints before each command.
const mark = "@@ command "

// run follows one document from its first command to its last, as one shell does, and
// returns what each has printed.
func (r *reader) run(t *testing.T, name string, commands []Command) []string {
	t.Helper()
	lab, h := r.lab, r.lab.Host(host)
	// The documents' names, and files of the machine that a host of the lab shares.
	names := strings.NewReplacer("10.0.0.7", h.IP, "10.0.0.2", gateway(t, lab), "box-1", host,
		"/root/.ssh/authorized_keys", filepath.Join(lab.Dir, "ssh/authorized_keys"), "/etc/sudoers.d", r.path("sudoers.d"))
	var script strings.Builder
	script.WriteString("set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || :; wait || :' EXIT\n")
	for i, c := range commands {
		text := names.Replace(c.Text)
		if c.Machine {
			text = fmt.Sprintf("%s --dir %s exec %s -- sh -eu -c %s", labtest.Program("bowline-lab"), lab.Dir, host, quote(text))
		}
		fmt.Fprintf(&script, "echo %s\n%s\n", quote(mark+strconv.Itoa(i)), text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script.String())
	cmd.Dir = r.home
	cmd.Env = append(os.Environ(), "HOME="+r.home, "PATH="+r.path("bin")+":"+os.Getenv("PATH"))
	cmd.Stdin = yes{} // to every question
	cmd.WaitDelay = 20 * time.Second
	out, err := labtest.Capture(cmd)
	must(t, err)
	t.Logf("%s: exit code %d after %s\n%s%s", name, out.Code, out.Took.Round(10*time.Millisecond), out.Stdout, out.Stderr)
	outputs := make([]string, len(commands))
	ran := 0
	for _, part := range strings.Split("\n"+out.Stdout, "\n"+mark)[1:] {
		number, text, _ := strings.Cut(part, "\n")
		i, err := strconv.Atoi(number)
		must(t, err)
		outputs[i], ran = text+"\n", ran+1
	}
	if out.Code != 0 || ran != len(commands) {
		t.Fatalf("%s: %d of %d commands were run, exit code %d; the last is in line %d: %s", name, ran, len(commands), out.Code,
			commands[max(ran-1, 0)].Line, commands[max(ran-1, 0)].Text)
	}
	return outputs
}

// gateway is the address from which the hosts of a lab see this machine.
func gateway(t *testing.T, lab *labtest.Lab) string {
	t.Helper()
	u, err := url.Parse(lab.Status.Cluster.APIURL)
	must(t, err)
	return u.Hostname()
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// yes is a person who says y without end.
type yes struct{}

func (yes) Read(p []byte) (int, error) { return copy(p, "y\n"), nil }

var _ io.Reader = yes{}
