package bowline

import (
	"go/ast"
	"go/types"
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
// other host. It does not see the goroutines of libraries; docs/fuzzing.md has those that parse what
// a host says.
func TestGoroutinesOfADriver(t *testing.T) {
	ofDriver := reached(importsOf(t), "fleet") // what a driver, or a release, is made of
	bodies, used := bodiesOf(typedModule()...), set{}
	for _, p := range typedModule() {
		if _, is := ofDriver[module+"/"+p.path]; !is && p.path != "fleet" {
			continue
		}
		for _, file := range p.files {
			path := positions.File(file.Pos()).Name()
			for _, body := range p.goroutines(file, bodies) {
				used[path] = true
				if unguarded[path] == "" && !recovers(body) {
					t.Errorf("%s has a goroutine whose panic ends the process: defer Recover of the host's budget.Account in it", path)
				}
			}
		}
	}
	for path, reason := range unguarded {
		if !used[path] || reason == "" {
			t.Errorf("%s is excepted without a reason, or has no goroutine", path)
		}
	}
}

// bodiesOf returns the bodies of functions, by their full names.
func bodiesOf(packages ...typed) map[string]*ast.BlockStmt {
	bodies := map[string]*ast.BlockStmt{}
	for _, p := range packages {
		p.functions(func(name string, body *ast.BlockStmt) { bodies[name] = body })
	}
	return bodies
}

// goroutines are the bodies of what a file starts, by go or by the Go of a WaitGroup or the like. For
// a function, or a variable of the file that has one, it is that function's body; otherwise nil.
func (p typed) goroutines(file *ast.File, bodies map[string]*ast.BlockStmt) (found []*ast.BlockStmt) {
	variables := p.variables(file)
	started := func(e ast.Expr) {
		var body *ast.BlockStmt
		switch f := e.(type) {
		case *ast.FuncLit:
			body = f.Body
		case *ast.Ident:
			body = variables[p.Uses[f]]
		}
		if f := p.function(e); f != nil {
			body = bodies[f.Origin().FullName()]
		}
		found = append(found, body)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			started(n.Call.Fun)
		case *ast.CallExpr:
			// The Go of a budget's account has a name before the function.
			if f := p.function(n.Fun); f != nil && f.Name() == "Go" && len(n.Args) == 1 {
				started(n.Args[0])
			}
		}
		return true
	})
	return found
}

// variables are the bodies of functions in a file's variables. Of two, the one with less recovery
// counts. Nothing is known of a variable that is assigned anything else, or is a parameter.
func (p typed) variables(file *ast.File) map[types.Object]*ast.BlockStmt {
	variables := map[types.Object]*ast.BlockStmt{}
	ast.Inspect(file, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
			for i, left := range a.Lhs {
				name, _ := left.(*ast.Ident)
				var body *ast.BlockStmt
				if lit, ok := a.Rhs[i].(*ast.FuncLit); ok {
					body = lit.Body
				}
				if other, seen := variables[p.ObjectOf(name)]; !seen || recovers(other) {
					variables[p.ObjectOf(name)] = body
				}
			}
		}
		return true
	})
	return variables
}

// TestGoroutinesAreSeen: goroutines are found in each form of starting one.
func TestGoroutinesAreSeen(t *testing.T) {
	p := typedText(`package p
import "sync"
type account struct{}
func (account) Recover(string) {}
func (account) Go(string, func()) {}
var a account
func well() { defer a.Recover("x") }
func ill() {}
type s struct{}
func (s) method() {}
func wrapped(f func()) func() { return f }
func f(given func(), all *sync.WaitGroup, s s) {
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
	twice := func() { defer a.Recover("x") }
	twice = ill
	all.Go(twice)

	go well()
	all.Go(well)
	fine := func() { defer a.Recover("x") }
	all.Go(fine)
	a.Go("x", look)
}`)
	var ill, well int
	for _, body := range p.goroutines(p.files[0], bodiesOf(p)) {
		if recovers(body) {
			well++
		} else {
			ill++
		}
	}
	if ill != 11 || well != 3 {
		t.Errorf("%d without Recover and %d with it were seen, want 11 and 3", ill, well)
	}
}

// recovers reports whether one of the body's own deferred calls is of Recover.
func recovers(body *ast.BlockStmt) bool {
	if body == nil {
		return false
	}
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
