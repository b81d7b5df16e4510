package main

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	names "github.com/bowline-k8s/bowline/lab/images/applets"
)

func TestImageLinksEveryApplet(t *testing.T) {
	have := slices.Sorted(maps.Keys(table()))
	want := slices.Sorted(slices.Values(names.Names))
	if !slices.Equal(have, want) {
		t.Errorf("the program has %v,\nthe image links %v", have, want)
	}
}

func table() map[string]func(*call) int { return applets }

// run gives the shell its input as an open file, as a program gets it. The interpreter copies from
// any other reader concurrently with the parser, which may then miss the script.
func run(t *testing.T, dir, stdin string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	input := filepath.Join(t.TempDir(), "stdin")
	if err := os.WriteFile(input, []byte(stdin), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(input)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var out, errs bytes.Buffer
	status = sh(&call{ctx: context.Background(), name: "sh", args: args, dir: dir,
		env: []string{"PATH=/bin", "HOME=/root"}, stdin: file, stdout: &out, stderr: &errs})
	return out.String(), errs.String(), status
}

func TestShell(t *testing.T) {
	for _, test := range []struct {
		name, script, want string
		status             int
	}{
		{"words", `echo a  "b  c"`, "a b  c\n", 0},
		{"variables", `x=1; x=$((x+1)); echo $x ${y:-none}`, "2 none\n", 0},
		{"pipe", `seq 3 | wc -l`, "3\n", 0},
		{"exit", `exit 7; echo no`, "", 7},
		{"and", `false && echo no; true && echo yes`, "yes\n", 0},
		{"loop", `for i in 1 2 3; do echo $i; done`, "1\n2\n3\n", 0},
		{"parameters", `echo $1 $2`, "a b\n", 0},
		{"trap on exit", `trap 'echo bye' EXIT; echo hi`, "hi\nbye\n", 0},
		{"redirect", `echo x > f; append f y; cat f; [ -s f ] && echo there`, "x\ny\nthere\n", 0},
		{"status of an applet", `cat nothing-there 2> /dev/null`, "", 1},
		{"printf", `printf '%s-%d\n' a 5`, "a-5\n", 0},
		{"last status", `true; false`, "", 1},
		{"export", `export A=1; env | grep A=`, "A=1\n", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, errs, status := run(t, t.TempDir(), "", "-c", test.script, "sh", "a", "b")
			if out != test.want || status != test.status {
				t.Errorf("%s\n gives %q with %d (stderr %q)\n  want %q with %d", test.script, out, status, errs, test.want, test.status)
			}
		})
	}
}

func TestShellReadsItsInputAsItComes(t *testing.T) {
	out, _, status := run(t, t.TempDir(), "echo one\nexit 3\nthis is never (parsed\n")
	if out != "one\n" || status != 3 {
		t.Errorf("gives %q with %d", out, status)
	}
}

func TestScriptFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "s"), []byte("echo script $1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, errs, _ := run(t, dir, "", "s", "arg"); out != "script arg\n" {
		t.Errorf("gives %q, %q", out, errs)
	}
}

func TestSizes(t *testing.T) {
	for s, want := range map[string]int64{"5": 5, "2k": 2048, "3M": 3 << 20, "1Gi": 1 << 30} {
		if got, err := bytesOf(s); err != nil || got != want {
			t.Errorf("bytesOf(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
}
