package bowline

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// guarded are the packages of a host's driver in which a goroutine may work on what the
// host says.
var guarded = []string{"cmd/bowline", "cri", "handover", "host", "syncloop", "provider"}

// unguarded are the goroutines there that are of no driver, or work on nothing that a
// host says, by file.
var unguarded = map[string]string{
	"host/local/local.go":                         "this machine's kernel answers",
	"host/local/lock.go":                          "this machine's kernel answers",
	"host/local/rename.go":                        "this machine's kernel answers",
	"host/local/start.go":                         "copies a program's output",
	"host/logind/session.go":                      "writes; the words are read in the loop of Run",
	"host/ssh/rights.go":                          "copies an answer; its asker reads it",
	"host/ssh/start.go":                           "writes; drain recovers",
	"host/ssh/link/program.go":                    "closes a channel",
	"host/ssh/link/stream.go":                     "copies bytes",
	"cmd/bowline/faults.go":                       "faults are for tests",
	"cmd/bowline/hostobjects.go":                  "the process's own: the Host objects",
	"cmd/bowline/hostrelease.go":                  "a command's, or under the account of a Host's removal",
	"cmd/bowline/identity.go":                     "credentials of the API server",
	"cmd/bowline/quarantine.go":                   "waits for the account itself",
	"cmd/bowline/run.go":                          "the process's own",
	"cmd/bowline/terminal.go":                     "a person's",
	"provider/api/server.go":                      "ends the server; requests are recovered by net/http",
	"provider/clusterwide/view.go":                "objects of the API server, of no node by itself",
	"provider/register.go":                        "waits for the API server",
	"syncloop/config/file.go":                     "waits for the readers of manifests",
	"syncloop/images/credentialprovider/cache.go": "programs beside this process",
	"syncloop/objects/manager.go":                 "objects of the API server",
	"syncloop/owner/owner.go":                     "waits for locks",
	"syncloop/podcerts/run.go":                    "objects of the API server",
	"syncloop/volume/rendered.go":                 "objects of the API server",
}

// TestGoroutinesOfADriver: a panic in one of them ends the process, and with it every
// other host, unless it is recovered.
func TestGoroutinesOfADriver(t *testing.T) {
	seen, byDir := 0, map[string]map[string]*ast.BlockStmt{}
	for _, dir := range guarded {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && (d.Name() == "fake" || d.Name() == "critest" || d.Name() == "lying" || d.Name() == "testdata" || d.Name() == "vktest" ||
				d.Name() == "hosttest" || d.Name() == "shtest" || d.Name() == "sshtest") {
				return fs.SkipDir
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			functions := byDir[filepath.Dir(path)]
			if functions == nil {
				if functions, err = functionsOf(filepath.Dir(path)); err != nil {
					return err
				}
				byDir[filepath.Dir(path)] = functions
			}
			for _, body := range goroutines(file, functions) {
				seen++
				if reason, except := unguarded[path]; !except && (body == nil || !recovers(body)) {
					t.Errorf("%s has a goroutine whose panic ends the process: defer Recover of the host's budget.Account in it", path)
				} else if except && reason == "" {
					t.Errorf("%s is excepted without a reason", path)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen == 0 {
		t.Fatal("no goroutine was seen")
	}
}

// functionsOf are the bodies of a package's functions and methods, by name; of two with one
// name the one that recovers less counts.
func functionsOf(dir string) (map[string]*ast.BlockStmt, error) {
	functions := map[string]*ast.BlockStmt{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				if other := functions[f.Name.Name]; other == nil || recovers(other) {
					functions[f.Name.Name] = f.Body
				}
			}
		}
	}
	return functions, nil
}

// goroutines are the bodies of what a file starts: by go, or by a WaitGroup's Go. One that
// is a function of the package, or a variable of the file, is that function's body; what is
// neither is nil.
func goroutines(file *ast.File, functions map[string]*ast.BlockStmt) (bodies []*ast.BlockStmt) {
	variables := variablesOf(file)
	started := func(e ast.Expr) {
		switch f := e.(type) {
		case *ast.FuncLit:
			bodies = append(bodies, f.Body)
		case *ast.SelectorExpr:
			bodies = append(bodies, functions[f.Sel.Name])
		case *ast.Ident:
			if body, ok := variables[f.Name]; ok {
				bodies = append(bodies, body)
			} else {
				bodies = append(bodies, functions[f.Name])
			}
		default:
			bodies = append(bodies, nil)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			started(n.Call.Fun)
		case *ast.CallExpr:
			// An account's Go has a name before the function.
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Go" && len(n.Args) == 1 {
				started(n.Args[0])
			}
		}
		return true
	})
	return bodies
}

// variablesOf are the bodies of functions that a file's variables hold, by name; of two with
// one name the one that recovers less counts, and of a variable that is given anything
// else, or is a parameter, nothing is known.
func variablesOf(file *ast.File) map[string]*ast.BlockStmt {
	variables := map[string]*ast.BlockStmt{}
	note := func(name string, value ast.Expr) {
		lit, ok := value.(*ast.FuncLit)
		if !ok {
			if _, function := variables[name]; function {
				variables[name] = nil
			}
			return
		}
		if other, ok := variables[name]; !ok || other != nil && recovers(other) {
			variables[name] = lit.Body
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if name, ok := left.(*ast.Ident); ok && i < len(n.Rhs) {
					note(name.Name, n.Rhs[i])
				}
			}
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if i < len(n.Values) {
					note(name.Name, n.Values[i])
				}
			}
		}
		return true
	})
	return variables
}

// TestGoroutinesAreSeen: in each form in which one is started.
func TestGoroutinesAreSeen(t *testing.T) {
	const source = `package p
func well() { defer a.Recover("x") }
func ill() {}
func (s *s) method() {}
func f(given func()) {
	go func() {}()
	go ill()
	go s.method()
	all.Go(func() {})
	all.Go(ill)
	all.Go(s.method)
	all.Go(given)
	look := func() {}
	all.Go(look)
	go look()
	all.Go(wrapped(look))

	go well()
	all.Go(well)
	fine := func() { defer a.Recover("x") }
	all.Go(fine)
	a.Go("x", look)
}`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	functions := map[string]*ast.BlockStmt{}
	for _, d := range file.Decls {
		f := d.(*ast.FuncDecl)
		functions[f.Name.Name] = f.Body
	}
	var ill, well int
	for _, body := range goroutines(file, functions) {
		if body != nil && recovers(body) {
			well++
		} else {
			ill++
		}
	}
	if ill != 10 || well != 3 {
		t.Errorf("%d without Recover and %d with it were seen, want 10 and 3", ill, well)
	}
}

// recovers tells whether the first deferred call, or the second, is of Recover.
func recovers(body *ast.BlockStmt) bool {
	for _, s := range body.List {
		d, ok := s.(*ast.DeferStmt)
		if !ok {
			continue
		}
		if f, ok := d.Call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Recover" {
			return true
		}
	}
	return false
}
