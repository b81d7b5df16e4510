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

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// reader is a user who follows the documents, with a home directory, and a lab as cluster and
// machines.
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

// makeHome makes a home with what every document takes for granted: a login to the machine, and an
// administrator's access to the cluster.
func (r *reader) makeHome(t *testing.T) {
	t.Helper()
	h := r.lab.Host(r.host)
	key := testutil.ReadFile(t, h.SSH.Key)
	public := testutil.ReadFile(t, h.SSH.HostKey)
	admin := testutil.ReadFile(t, r.lab.Status.Cluster.AdminKubeconfig)
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
	testutil.Must(t, os.MkdirAll(filepath.Dir(r.path(name)), 0o755))
	testutil.Must(t, os.WriteFile(r.path(name), []byte(content), 0o600))
}

// program installs a script in the reader's PATH.
func (r *reader) program(t *testing.T, name, script string) {
	t.Helper()
	r.write(t, "programs/"+name, script)
	testutil.Must(t, os.Chmod(r.path("programs/"+name), 0o755))
}

// built is the path of the program under test.
func built(t *testing.T) string {
	t.Helper()
	path, err := labtest.BuiltBowline()
	testutil.Must(t, err)
	path, err = filepath.Abs(path)
	testutil.Must(t, err)
	return path
}

// read returns the commands of a document.
func read(t *testing.T, name string) []Command {
	t.Helper()
	data := testutil.ReadFile(t, "../../docs/"+name)
	commands, err := Extract(string(data))
	testutil.Must(t, err)
	return commands
}

// mark is printed by the script before each command, and after the last.
const mark = "@@ command "

// run runs the commands of one document in one shell, and compares their output with the document.
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
	cmd.Stdin = yes{} // answers y to every question
	cmd.WaitDelay = 20 * time.Second
	out, err := labtest.Capture(cmd)
	testutil.Must(t, err)
	t.Logf("%s: exit code %d after %s\n%s%s", name, out.Code, out.Took.Round(10*time.Millisecond), out.Stdout, out.Stderr)
	parts := strings.Split("\n"+out.Stdout, "\n"+mark)[1:]
	for i, part := range parts {
		head, text, _ := strings.Cut(part, "\n")
		number, at, _ := strings.Cut(head, " ")
		if number != strconv.Itoa(i) {
			t.Fatalf("%s: a command prints what only the test prints: %q", name, head)
		}
		seconds, err := strconv.ParseFloat(at, 64)
		testutil.Must(t, err)
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

// compare compares the output with the document.
func (r *reader) compare(t *testing.T, name string, all []ran) {
	t.Helper()
	var block strings.Builder
	for _, c := range all {
		if c.Begins {
			block.Reset()
		}
		// A person's answer would be on the line of its question.
		block.WriteString(strings.ReplaceAll(c.output, "[y/N] ", "[y/N] y\n"))
		if c.Prints == "" {
			continue
		}
		if err := Matches(c.Prints, block.String(), r.names); err != nil {
			t.Errorf("%s, line %d: %s: what it prints is not what the document says: %v\n%s", name, c.Line, c.Text, err, block.String())
		}
	}
}

// gateway is the address under which the hosts of a lab see this machine and the API server.
func gateway(t *testing.T, lab *labtest.Lab) string {
	t.Helper()
	u, err := url.Parse(lab.Status.Cluster.APIURL)
	testutil.Must(t, err)
	return u.Hostname()
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// yes answers y without end.
type yes struct{}

func (yes) Read(p []byte) (int, error) { return copy(p, "y\n"), nil }
