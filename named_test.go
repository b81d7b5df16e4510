package bowline

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

var (
	quoted = regexp.MustCompile("`([A-Za-z_*][A-Za-z0-9_.*-]*(?:/[A-Za-z0-9_.*-]+)*)`")
	goName = regexp.MustCompile("`([A-Za-z]+(?:\\.[A-Za-z]+)*)(?:\\([^`]*\\)| [*]= 2)?`")
	named  = regexp.MustCompile(`[A-Za-z0-9_*-]+(?:/[A-Za-z0-9_*-]+)*\.(?:go|md|sh)\b`)
	ended  = regexp.MustCompile(`\.(go|md|sh)$`)
)

// TestNamedFilesExist: a document that names a file (.go, .md, .sh) or a directory of the
// repository, and a package comment that names a file, name one that exists. A short name counts
// below the other paths of its line.
func TestNamedFilesExist(t *testing.T) {
	names := 0
	exists := func(name string, below ...string) bool {
		names++
		for _, dir := range append(below, ".") {
			if found, err := filepath.Glob(filepath.Join(dir, name)); err == nil && len(found) > 0 {
				return true
			}
		}
		return false
	}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		documents, err := filepath.Glob(pattern)
		testutil.Must(t, err)
		for _, path := range documents {
			src, err := os.ReadFile(path)
			testutil.Must(t, err)
			for i, line := range strings.Split(string(src), "\n") {
				var paths []string
				below := []string{"syncloop"}
				for _, m := range quoted.FindAllStringSubmatch(line, -1) {
					first, _, deep := strings.Cut(m[1], "/")
					if first == "bin" || m[1] == "hosts/status" || m[1] == "k3s-agent-uninstall.sh" {
						continue // what is built, a resource of the API, and a program of k3s
					}
					_, err := os.Stat(first)
					if dir := filepath.Dir(m[1]); deep && err == nil {
						below = append(below, dir, m[1])
					}
					if deep && err == nil && !strings.Contains(m[1], ".") || ended.MatchString(m[1]) {
						paths = append(paths, m[1])
					}
				}
				for _, name := range paths {
					if !exists(name, below...) {
						t.Errorf("%s:%d names %s, which does not exist", path, i+1, name)
					}
				}
			}
		}
	}
	for _, p := range typedModule() {
		for _, file := range p.files {
			path := positions.File(file.Pos()).Name()
			for _, name := range named.FindAllString(file.Doc.Text(), -1) {
				if !exists(name, filepath.Dir(path)) {
					t.Errorf("%s names %s, which does not exist", path, name)
				}
			}
		}
	}
	if names < 400 {
		t.Errorf("looked at %d names: there are more", names)
	}
	for text, want := range map[string]string{"`hack/x.sh`": "hack/x.sh", "`docs/y.md`": "docs/y.md", "`z.go`": "z.go"} {
		if m := quoted.FindStringSubmatch(text); m == nil || m[1] != want || !ended.MatchString(m[1]) || named.FindString(text) != want {
			t.Errorf("%s is not seen as a file", text)
		}
	}
}

// ofModels are names in docs/models that belong to the projects that Bowline learned from.
var ofModels = []string{"Advance", "CreateWithDisplayUsage", "Propose", "Provider", "Queue", "RawNode", "Tick", "doInSync", "flagpole", "folder", "getCh",
	"provider", "pull", "pullPause", "pullScheduled", "putCh", "raft", "readyc", "releaseCh", "scanScheduled"}

// TestModelsNameTheCode: each name that a page of docs/models quotes is declared in the code, or is
// one of its model's.
func TestModelsNameTheCode(t *testing.T) {
	declared := set{"time": true, "select": true}
	for _, p := range typedModule() {
		declared[filepath.Base(p.path)] = true
		for name := range p.Defs {
			declared[name.Name] = true
		}
	}
	tests, err := filepath.Glob("*_test.go")
	testutil.Must(t, err)
	for _, path := range tests {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		testutil.Must(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				declared[f.Name.Name] = true
			}
		}
	}
	pages, err := filepath.Glob("docs/models/*.md")
	testutil.Must(t, err)
	names, foreign := 0, set{}
	for _, path := range pages {
		src, err := os.ReadFile(path)
		testutil.Must(t, err)
		for _, m := range goName.FindAllStringSubmatch(string(src), -1) {
			for _, name := range strings.Split(m[1], ".") {
				names++
				if slices.Contains(ofModels, name) {
					foreign[name] = true
				} else if !declared[name] {
					t.Errorf("%s names %s, which the code does not declare", path, m[1])
				}
			}
		}
	}
	for _, name := range ofModels {
		if !foreign[name] {
			t.Errorf("no page of docs/models names %s", name)
		}
	}
	if names < 60 {
		t.Errorf("looked at %d names: there are more", names)
	}
}

// TestArchitectureIsShort: it is the entry to the code, and is read as a whole.
func TestArchitectureIsShort(t *testing.T) {
	src, err := os.ReadFile("ARCHITECTURE.md")
	testutil.Must(t, err)
	if lines := strings.Count(string(src), "\n"); lines == 0 || lines > 200 {
		t.Errorf("ARCHITECTURE.md has %d lines, want at most 200", lines)
	}
}

// TestJourney: a pod's way through the code is short, does not lead through main, and is as the
// table in ARCHITECTURE.md says.
func TestJourney(t *testing.T) {
	src, err := os.ReadFile("ARCHITECTURE.md")
	testutil.Must(t, err)
	_, rest, ok := strings.Cut(string(src), "## The journey of a pod")
	table, _, _ := strings.Cut(rest, "\n## ")
	if !ok {
		t.Fatal("ARCHITECTURE.md has no journey of a pod")
	}
	for _, problem := range journey(table) {
		t.Error(problem)
	}
	for _, c := range []struct{ old, wrong, want string }{
		{"`(*Loop).handle`", "`(*Loop).observe`", "declares no (*Loop).observe"},
		{"`(*Loop).handle`", "`(*Loop).orphans`", "step 5: (*Loop).orphans does not call send"},
		{"`syncloop/report.go`", "`syncloop/reports.go`", "no such file"},
		{"`syncloop/report.go`", "`syncloop/statuswriter`", "is not the path of one Go file"},
		{"`syncloop/execute_container.go`", "`syncloop/execute_*.go`", "is not the path of one Go file"},
		{"`syncloop/podconfig/api.go` | `(*API).Handler`", "`cmd/bowline/run.go` | `main`", "leads through main"},
		{"call from 14", "call from 4", "(*Loop).handle does not call begin"},
		{"call from 14", "call from 44", "comes from no earlier step"},
		{"| 5 |", "| 6 |", "is step 5"},
		{"call, pure", "call", "is pure"},
		{"`(*job).start` | call", "`(*job).start` | call, pure", "is not pure"},
		{"mail `put` to `take`", "mail `put` to `launch`", "does not call launch"},
		{"mail `push` to `Updates`", "mail `Seen` to `Updates`", "does not call Seen"},
		{"mail `put` to `take`", "mail `put` to `read`", "no file of the journey declares both put and read"},
		{"mail `queue`", "mail `patch`", "(*Writer).Set does not use patch"},
		{"| 27 |", "| 27 | `syncloop/why.go` | `(*worker).publish` | call | x |\n| 28 |", "16 files outside pure packages"},
		{"`(*Writer).patch`", "`(*Writer).get`", "does not end in a patch"},
	} {
		planted := strings.Replace(table, c.old, c.wrong, 1)
		if problems := strings.Join(journey(planted), "\n"); planted == table || !strings.Contains(problems, c.want) {
			t.Errorf("with %s instead of %s the problems are %q, without %q", c.wrong, c.old, problems, c.want)
		}
	}
}

// step is a row of the journey's table.
type step struct {
	file, receiver, name string
	by                   string // "informer", "call" or "mail"
	from                 int    // index of the step that calls, or puts the mail
	put, take            string // the functions of a mailbox; without take, put is a field or variable
	pure                 bool
}

var (
	stepRow    = regexp.MustCompile(`(?m)^\| *(\d+) \|(.*)$`)
	stepPath   = regexp.MustCompile("^`([A-Za-z0-9_/-]+\\.go)`$")
	stepMethod = regexp.MustCompile("^`(?:\\(\\*(\\w+)\\)\\.)?(\\w+)`$")
	stepBy     = regexp.MustCompile("^(informer|call|mail)(?: from (\\d+))?(?: `(\\w+)`(?: to `(\\w+)`)?)?(, pure)?$")
)

func (s step) String() string {
	if s.receiver == "" {
		return s.name
	}
	return "(*" + s.receiver + ")." + s.name
}

// journey returns what is wrong with the table of a pod's journey.
func journey(table string) (problems []string) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	var steps []step
	for _, row := range stepRow.FindAllStringSubmatch(table, -1) {
		cells := strings.Split(row[2], "|")
		n := len(steps) + 1
		if row[1] != strconv.Itoa(n) || len(cells) < 4 {
			problem("the row %q is step %d, and has a file, a function, how it is reached and what happens", row[0], n)
			return problems
		}
		path := stepPath.FindStringSubmatch(strings.TrimSpace(cells[0]))
		method := stepMethod.FindStringSubmatch(strings.TrimSpace(cells[1]))
		by := stepBy.FindStringSubmatch(strings.TrimSpace(cells[2]))
		switch {
		case path == nil:
			problem("step %d: %s is not the path of one Go file", n, cells[0])
			return problems
		case method == nil:
			problem("step %d: %s is not one function", n, cells[1])
			return problems
		case by == nil || (by[1] == "mail") != (by[3] != "") || (by[1] == "informer") != (n == 1):
			problem("step %d: %s is not how a step is reached", n, cells[2])
			return problems
		}
		s := step{file: path[1], receiver: method[1], name: method[2], by: by[1], from: len(steps) - 1, put: by[3], take: by[4], pure: by[5] != ""}
		if by[2] != "" {
			from, _ := strconv.Atoi(by[2])
			s.from = from - 1
		}
		if s.from >= len(steps) {
			problem("step %d comes from no earlier step", n)
			return problems
		}
		steps = append(steps, s)
	}
	files, impure, in := map[string]*ast.File{}, set{}, make([]names, len(steps))
	pure := declaredPure(typedModule()...)
	for i, s := range steps {
		if strings.HasPrefix(s.file, "cmd/") {
			problem("step %d leads through main: %s", i+1, s.file)
		}
		file := files[s.file]
		if file == nil {
			var err error
			if file, err = parser.ParseFile(token.NewFileSet(), s.file, nil, parser.SkipObjectResolution); err != nil {
				problem("step %d: %v", i+1, err)
				return problems
			}
			files[s.file] = file
		}
		f := declared(file, s.receiver, s.name)
		if f == nil {
			problem("step %d: %s declares no %s", i+1, s.file, s)
			return problems
		}
		in[i] = namesIn(file, f)
		isPure := pure[filepath.Dir(s.file)]
		if isPure != s.pure {
			problem("step %d: %s %s", i+1, filepath.Dir(s.file), map[bool]string{true: "is pure", false: "is not pure"}[isPure])
		}
		if !isPure {
			impure[s.file] = true
		}
	}
	for i, s := range steps {
		if s.by == "informer" {
			continue
		}
		// A function of a Config has its name in upper case, and that which is assigned to it need not.
		calls, from := in[s.from].calls, steps[s.from]
		switch upper := strings.ToUpper(s.name[:1]) + s.name[1:]; {
		case s.by == "call" && !calls[s.name] && !calls[upper]:
			problem("step %d: %s does not call %s", i+1, from, s.name)
		case s.by == "mail" && s.take == "" && !in[s.from].uses[s.put]:
			problem("step %d: %s does not use %s", i+1, from, s.put)
		case s.by == "mail" && s.take == "" && !in[i].uses[s.put]:
			problem("step %d: %s does not use %s", i+1, s, s.put)
		case s.by == "mail" && s.take != "" && !calls[s.put]:
			problem("step %d: %s does not call %s", i+1, from, s.put)
		case s.by == "mail" && s.take != "" && !in[i].calls[s.take]:
			problem("step %d: %s does not call %s", i+1, s, s.take)
		case s.by == "mail" && s.take != "" && !mailbox(files, s.put, s.take):
			problem("step %d: no file of the journey declares both %s and %s", i+1, s.put, s.take)
		}
	}
	if n := len(impure); n < 8 || n > 15 {
		problem("the journey has %d files outside pure packages, want 8 to 15: %v", n, slices.Sorted(maps.Keys(impure)))
	}
	if n := len(steps); n == 0 || !in[n-1].calls["Patch"] {
		problem("the journey does not end in a patch")
	}
	return problems
}

// names are what a function calls and what it uses.
type names struct{ calls, uses set }

// namesIn returns the names in a function, and in the functions of the same file that it calls.
func namesIn(file *ast.File, f *ast.FuncDecl) names {
	found := names{set{}, set{}}
	var walk func(f *ast.FuncDecl)
	walk = func(f *ast.FuncDecl) {
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				found.uses[n.Name] = true
			case *ast.CallExpr:
				name := ""
				switch fun := n.Fun.(type) {
				case *ast.Ident:
					name = fun.Name
				case *ast.SelectorExpr:
					name = fun.Sel.Name
				}
				if name != "" && !found.calls[name] {
					found.calls[name] = true
					for _, d := range file.Decls {
						if g, ok := d.(*ast.FuncDecl); ok && g.Name.Name == name && g.Body != nil {
							walk(g)
						}
					}
				}
			}
			return true
		})
	}
	walk(f)
	return found
}

// declared returns the function or method of a file, or nil.
func declared(file *ast.File, receiver, name string) *ast.FuncDecl {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != name || f.Body == nil || (f.Recv != nil) != (receiver != "") {
			continue
		}
		if receiver == "" {
			return f
		}
		if star, ok := f.Recv.List[0].Type.(*ast.StarExpr); ok {
			if id, ok := star.X.(*ast.Ident); ok && id.Name == receiver {
				return f
			}
		}
	}
	return nil
}

// mailbox reports whether one of the files declares both functions.
func mailbox(files map[string]*ast.File, put, take string) bool {
	for _, file := range files {
		has := set{}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				has[f.Name.Name] = true
			}
		}
		if has[put] && has[take] {
			return true
		}
	}
	return false
}

// TestCommentsNameTheirFunction: a comment that begins with the name of another function was left
// behind by a move or a rename. Sentences begin in upper case, so what begins in lower case is a name.
// The comment of a test may begin with what is tested.
func TestCommentsNameTheirFunction(t *testing.T) {
	packages, comments := map[string][]*ast.File{}, 0
	testutil.Must(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != "."):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		file, err := parser.ParseFile(positions, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], file)
		return err
	}))
	for _, files := range packages {
		for _, f := range documented(files) {
			comments++
			if strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			if first := misnamed(f, files); first != "" {
				t.Errorf("%s: the comment of %s begins with %s", at(f), f.Name.Name, first)
			}
		}
	}
	if comments < 3000 {
		t.Errorf("looked at %d comments: there are more", comments)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "p.go",
		"package p\n// tell does it.\nfunc report() {}\n// Make does it.\nfunc New() {}\nfunc Make() {}\n// run runs.\nfunc run() {}\n// Runs.\nfunc g() {}", parser.ParseComments)
	testutil.Must(t, err)
	var found []string
	for _, f := range documented([]*ast.File{file}) {
		found = append(found, misnamed(f, []*ast.File{file}))
	}
	if want := []string{"tell", "Make", "", ""}; !slices.Equal(found, want) {
		t.Errorf("planted comments begin with %q, want %q", found, want)
	}
}

// documented returns the functions and methods that have a comment.
func documented(files []*ast.File) (all []*ast.FuncDecl) {
	for _, file := range files {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && strings.TrimSpace(f.Doc.Text()) != "" {
				all = append(all, f)
			}
		}
	}
	return all
}

// misnamed returns the name that the comment of f begins with, if it is not that of f, or "".
func misnamed(f *ast.FuncDecl, files []*ast.File) string {
	first := strings.TrimRight(strings.Fields(f.Doc.Text())[0], ":,.;")
	if first == "" || first == f.Name.Name {
		return ""
	}
	another := 'a' <= first[0] && first[0] <= 'z'
	for _, file := range files {
		for _, d := range file.Decls {
			g, ok := d.(*ast.FuncDecl)
			another = another || ok && g.Name.Name == first
		}
	}
	if another {
		return first
	}
	return ""
}
