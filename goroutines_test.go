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
var guarded = []string{"cmd/bowline", "cri", "syncloop", "provider"}

// unguarded are the goroutines there that are of no driver, or work on nothing that a
// host says, by file.
var unguarded = map[string]string{
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
	seen := 0
	for _, dir := range guarded {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && (d.Name() == "fake" || d.Name() == "critest" || d.Name() == "lying" || d.Name() == "testdata" || d.Name() == "vktest") {
				return fs.SkipDir
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			for _, body := range goroutines(file) {
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

// goroutines are the bodies of what a file starts: by go, or by a WaitGroup's Go. One that
// is a function elsewhere is that function's body, where the file has it, or nil.
func goroutines(file *ast.File) (bodies []*ast.BlockStmt) {
	functions := map[string]*ast.BlockStmt{}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			functions[f.Name.Name] = f.Body
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			switch f := n.Call.Fun.(type) {
			case *ast.FuncLit:
				bodies = append(bodies, f.Body)
			case *ast.SelectorExpr:
				bodies = append(bodies, functions[f.Sel.Name])
			case *ast.Ident:
				bodies = append(bodies, functions[f.Name])
			}
		case *ast.CallExpr:
			f, ok := n.Fun.(*ast.SelectorExpr)
			// An account's Go has a name before the function.
			if !ok || f.Sel.Name != "Go" || len(n.Args) != 1 {
				return true
			}
			if lit, ok := n.Args[0].(*ast.FuncLit); ok {
				bodies = append(bodies, lit.Body)
			}
		}
		return true
	})
	return bodies
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
