package docs

import (
	"context"
	"fmt"
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

// reader is somebody who follows the documents, with a home, and a lab for a cluster and
// its machines.
type reader struct {
	lab   *labtest.Lab
	home  string
	host  string            // the machine of the documents
	names *strings.Replacer // the documents' names, as the lab has them
}

// ran is a command that was run.
type ran struct {
	Command
	output string
	began  time.Time
	took   time.Duration
}

// settle makes a home with what every document takes for granted: a login to the machine,
// and an administrator's way to the cluster.
func (r *reader) settle(t *testing.T) {
	t.Helper()
	h := r.lab.Host(r.host)
	key, err := os.ReadFile(h.SSH.Key)
	must(t, err)
	public, err := os.ReadFile(h.SSH.HostKey)
	must(t, err)
	admin, err := os.ReadFile(r.lab.Status.Cluster.AdminKubeconfig)
	must(t, err)
	ssh := r.path(".ssh")
	r.write(t, ".ssh/id_ed25519", string(key))
	r.write(t, ".ssh/known_hosts", h.IP+" "+string(public))
	r.write(t, ".ssh/config", fmt.Sprintf("IdentityFile %s/id_ed25519\nUserKnownHostsFile %s/known_hosts\nStrictHostKeyChecking yes\n", ssh, ssh))
	r.write(t, ".kube/config", string(admin))
	r.program(t, "ssh", fmt.Sprintf("#!/bin/sh\nexec /usr/bin/ssh -n -F %s/config \"$@\"\n", ssh))
}

func (r *reader) path(name string) string { return filepath.Join(r.home, name) }

func (r *reader) write(t *testing.T, name, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(r.path(name)), 0o755))
	must(t, os.WriteFile(r.path(name), []byte(content), 0o600))
}

// program is a script that the reader has in PATH.
func (r *reader) program(t *testing.T, name, script string) {
	t.Helper()
	r.write(t, "programs/"+name, script)
	must(t, os.Chmod(r.path("programs/"+name), 0o755))
}

// built is the program that is tested.
func built(t *testing.T) string {
	t.Helper()
	path, err := labtest.BuiltBowline()
	must(t, err)
	path, err = filepath.Abs(path)
	must(t, err)
	return path
}

// read returns the commands of a document.
func read(t *testing.T, name string) []Command {
	t.Helper()
	data, err := os.ReadFile("../../docs/" + name)
	must(t, err)
	commands, err := Extract(string(data))
	must(t, err)
	return commands
}

// mark is what the script prints before each command, and after the last.
const mark = "@@ command "

// run follows commands of one document from the first to the last, as one shell does, and
// compares what they print with what the document says.
func (r *reader) run(t *testing.T, name string, commands []Command) []ran {
	t.Helper()
	var script strings.Builder
	var todo []ran
	script.WriteString("set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || :; wait || :' EXIT\n")
	say := func() { fmt.Fprintf(&script, "printf '\\n%s%d %%s\\n' \"$EPOCHREALTIME\"\n", mark, len(todo)) }
	for _, c := range commands {
		text := r.names.Replace(c.Text)
		if c.Elsewhere() {
			continue
		}
		if c.File != "" {
			r.write(t, c.File, text)
			continue
		}
		if c.Machine {
			text = fmt.Sprintf("%s --dir %s exec %s -- sh -eu -c %s", labtest.Program("bowline-lab"), r.lab.Dir, r.host, quote(text))
		}
		say()
		todo = append(todo, ran{Command: c})
		fmt.Fprintln(&script, text)
	}
	say()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script.String())
	cmd.Dir = r.home
	cmd.Env = append(os.Environ(), "HOME="+r.home, "PATH="+r.path("programs")+":"+os.Getenv("PATH"), "LC_ALL=C", "SSH_AUTH_SOCK=", "KUBECONFIG=", "NO_COLOR=1")
	cmd.Stdin = yes{} // to every question
	cmd.WaitDelay = 20 * time.Second
	out, err := labtest.Capture(cmd)
	must(t, err)
	t.Logf("%s: exit code %d after %s\n%s%s", name, out.Code, out.Took.Round(10*time.Millisecond), out.Stdout, out.Stderr)
	parts := strings.Split("\n"+out.Stdout, "\n"+mark)[1:]
	for i, part := range parts {
		head, text, _ := strings.Cut(part, "\n")
		number, at, _ := strings.Cut(head, " ")
		if number != strconv.Itoa(i) {
			t.Fatalf("%s: a command prints what only the test prints: %q", name, head)
		}
		seconds, err := strconv.ParseFloat(at, 64)
		must(t, err)
		now := time.UnixMicro(int64(seconds * 1e6))
		if i > 0 {
			todo[i-1].took = now.Sub(todo[i-1].began)
		}
		if i < len(todo) {
			todo[i].began, todo[i].output = now, text+"\n"
		}
	}
	if out.Code != 0 || len(parts) != len(todo)+1 {
		last := todo[min(max(len(parts)-1, 0), len(todo)-1)]
		t.Fatalf("%s: exit code %d in line %d: %s", name, out.Code, last.Line, last.Text)
	}
	r.compare(t, name, todo)
	return todo
}

// compare what was printed with what the document says of it.
func (r *reader) compare(t *testing.T, name string, all []ran) {
	t.Helper()
	var block strings.Builder
	for _, c := range all {
		if c.Begins {
			block.Reset()
		}
		// What was answered for a person is not on the line of its question.
		block.WriteString(strings.ReplaceAll(c.output, "[y/N] ", "[y/N] y\n"))
		if c.Prints == "" {
			continue
		}
		if err := Matches(c.Prints, block.String(), r.names); err != nil {
			t.Errorf("%s, line %d: %s: what it prints is not what the document says: %v\n%s", name, c.Line, c.Text, err, block.String())
		}
	}
}

// gateway is the address from which the hosts of a lab see this machine, and that of the
// API server.
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
