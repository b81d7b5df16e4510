package bowline

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unguarded are the goroutines of these packages that belong to no driver, or process no input from
// a host, by file.
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
	"faultinject/faults.go":                       "faults are for tests",
	"fleet/hostobjects.go":                        "the process's own: the Host objects",
	"release/release.go":                          "a command's, or under the account of a Host's removal",
	"cluster/identity.go":                         "credentials of the API server",
	"fleet/budget.go":                             "waits for the account itself",
	"fleet/run.go":                                "the process's own",
	"hostcheck/exposure.go":                       "a command's check of a host",
	"hostcheck/remote.go":                         "a command's check of a host",
	"hosts/remove.go":                             "waits for a release, which has an account",
	"hosts/replica/hand.go":                       "Leases of the API server",
	"hosts/replica/replica.go":                    "Leases of the API server",
	"hosts/replica/view.go":                       "Leases of the API server",
	"pool/run.go":                                 "starts the drivers, each of which recovers",
	"hosts/secrets.go":                            "objects of the API server",
	"hosts/source.go":                             "objects of the API server",
	"provider/api/server.go":                      "ends the server; requests are recovered by net/http",
	"provider/clusterwide/view.go":                "objects of the API server, of no node by itself",
	"provider/register.go":                        "waits for the API server",
	"syncloop/podconfig/file.go":                  "waits for the readers of manifests",
	"syncloop/images/credentialprovider/cache.go": "programs beside this process",
	"syncloop/objects/manager.go":                 "objects of the API server",
	"syncloop/owner/owner.go":                     "waits for locks",
	"syncloop/podcerts/run.go":                    "objects of the API server",
	"syncloop/volume/rendered.go":                 "objects of the API server",
}

// TestGoroutinesOfADriver: an unrecovered panic in one of them ends the process, and with it every
// other host.
func TestGoroutinesOfADriver(t *testing.T) {
	imports := importsOf(t)
	seen, byDir, used := 0, map[string]map[string]*ast.BlockStmt{}, map[string]bool{}
	for _, dir := range ofDrivers(imports) {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		err = func() error {
			for _, path := range files {
				if strings.HasSuffix(path, "_test.go") {
					continue
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
					used[path] = true
					if reason, except := unguarded[path]; !except && (body == nil || !recovers(body)) {
						t.Errorf("%s has a goroutine whose panic ends the process: defer Recover of the host's budget.Account in it", path)
					} else if except && reason == "" {
						t.Errorf("%s is excepted without a reason", path)
					}
				}
			}
			return nil
		}()
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen == 0 {
		t.Fatal("no goroutine was seen")
	}
	for path := range unguarded {
		if !used[path] {
			t.Errorf("%s is excepted and has no goroutine", path)
		}
	}
}

// ofDrivers lists the packages that a driver, or a release, is made of.
func ofDrivers(imports map[string][]string) []string {
	dirs := []string{"fleet"}
	for path := range reached(imports, "fleet") {
		if dir, ours := strings.CutPrefix(path, module+"/"); ours {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// functionsOf are the bodies of a package's functions and methods, by name. Of two with the same
// name, the one with less recovery counts.
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

// goroutines are the bodies of what a file starts, by go or by a WaitGroup's Go. For a function of
// the package, or a variable of the file, it is that function's body; otherwise nil.
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
			// The Go of a budget's account has a name before the function.
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Go" && len(n.Args) == 1 {
				started(n.Args[0])
			}
		}
		return true
	})
	return bodies
}

// variablesOf are the bodies of functions in a file's variables, by name. Of two with the same
// name, the one with less recovery counts. Nothing is known of a variable that is assigned anything
// else, or is a parameter.
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

// TestGoroutinesAreSeen: goroutines are found in each form of starting one.
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

// recovers reports whether one of the body's own deferred calls is of Recover.
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
