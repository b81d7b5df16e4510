package bowline

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestDependencies: docs/dependencies.md gives a reason for each module that go.mod requires
// directly, and for each directory that is a separate module, and for nothing else.
func TestDependencies(t *testing.T) {
	src, err := os.ReadFile("docs/dependencies.md")
	testutil.Must(t, err)
	required, own, ok := strings.Cut(string(src), "Separate modules")
	if !ok {
		t.Fatal("docs/dependencies.md has no separate modules")
	}
	out, err := exec.Command("go", "mod", "edit", "-json").Output()
	testutil.Must(t, err)
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	testutil.Must(t, json.Unmarshal(out, &mod))
	var direct []string
	for _, r := range mod.Require {
		if !r.Indirect {
			direct = append(direct, r.Path)
		}
	}
	for _, problem := range rowProblems(required, direct) {
		t.Errorf("docs/dependencies.md, compared with go.mod: %s", problem)
	}

	var modules []string
	testutil.Must(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "testdata"}, d.Name()):
			return fs.SkipDir
		case d.Name() == "go.mod" && path != "go.mod":
			modules = append(modules, filepath.ToSlash(filepath.Dir(path)))
		}
		return nil
	}))
	for _, problem := range rowProblems(own, modules) {
		t.Errorf("docs/dependencies.md, compared with the go.mod files below: %s", problem)
	}
}

// rowProblems compares the rows of a table, each with names and a reason, with the names that it
// must have.
func rowProblems(table string, names []string) (found []string) {
	rows := map[string]int{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || slices.Contains([]string{"module", "directory", "---"}, strings.TrimSpace(cells[1])) {
			continue
		}
		for name := range strings.SplitSeq(cells[1], ",") {
			name = strings.Trim(name, " `")
			rows[name]++
			switch {
			case strings.TrimSpace(cells[2]) == "":
				found = append(found, name+" has no reason")
			case !slices.Contains(names, name):
				found = append(found, name+" has a row, and is not there")
			case rows[name] > 1:
				found = append(found, name+" has two rows")
			}
		}
	}
	for _, name := range names {
		if rows[name] == 0 {
			found = append(found, name+" has no row")
		}
	}
	slices.Sort(found)
	return found
}

func TestRowProblems(t *testing.T) {
	table := "| module | why |\n|---|---|\n| a/x, a/y | good |\n| b | |\n| gone | once |\n| `c` | twice |\n| c | twice |\n"
	got := rowProblems(table, []string{"a/x", "a/y", "b", "c", "new"})
	if want := []string{"b has no reason", "c has two rows", "gone has a row, and is not there", "new has no row"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
