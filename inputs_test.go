package bowline

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/syncloop/plan"
	"github.com/bowline-k8s/bowline/syncloop/status"
)

// TestEveryInputFieldIsSet: a feature whose input field pure code reads, but production never sets,
// works only in its tests.
func TestEveryInputFieldIsSet(t *testing.T) {
	files := production(t)
	for name, typ := range map[string]reflect.Type{
		"spec.Machine": reflect.TypeFor[spec.Machine](),
		"status.Input": reflect.TypeFor[status.Input](),
		"plan.Input":   reflect.TypeFor[plan.Input](),
	} {
		set := fieldsSet(files, name)
		if len(set) == 0 {
			t.Errorf("no production code makes a %s: the search misses it", name)
		}
		for i := range typ.NumField() {
			if f := typ.Field(i).Name; !set[f] {
				t.Errorf("production code never sets %s.%s: set it, or delete it", name, f)
			}
		}
	}
}

// source is a file, the directory of its package, and its length.
type source struct {
	dir   string
	lines int
	*ast.File
}

// production parses the files that a build of the program may contain: no tests, no tools.
func production(t *testing.T) []source {
	t.Helper()
	var files []source
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "test" || path == "lab" || d.Name() == "testdata" || path != "." && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, source{filepath.Dir(path), set.File(file.Pos()).LineCount(), file})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// fieldsSet returns the fields of the type ("package.Type") that the files set: in a literal of the
// type, or on a variable made by a literal, by a function that returns the type, or as a copy of a
// field of that type.
func fieldsSet(files []source, name string) map[string]bool {
	makers := map[string]bool{}
	for _, file := range files {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Type.Results != nil && isType(f.Type.Results.List[0].Type, name) {
				makers[f.Name.Name] = true
			}
		}
		ast.Inspect(file.File, func(n ast.Node) bool {
			if s, ok := n.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					for _, id := range f.Names {
						makers[id.Name] = makers[id.Name] || isType(f.Type, name) || returns(f.Type, name)
					}
				}
			}
			return true
		})
	}
	set := map[string]bool{}
	for _, file := range files {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				fieldsSetIn(f, name, makers, set)
			}
		}
	}
	return set
}

func fieldsSetIn(f *ast.FuncDecl, name string, makers, set map[string]bool) {
	mine := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			if !isType(n.Type, name) {
				return true
			}
			for _, e := range n.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					set[chain(kv.Key)] = true
				}
			}
		case *ast.Field:
			for _, id := range n.Names {
				mine[id.Name] = mine[id.Name] || isType(n.Type, name)
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if id, ok := left.(*ast.Ident); ok && i < len(n.Rhs) && makes(n.Rhs[i], name, makers) {
					mine[id.Name] = true
				}
				if s, ok := left.(*ast.SelectorExpr); ok && mine[chain(s.X)] {
					set[s.Sel.Name] = true
				}
			}
		}
		return true
	})
}

// returns reports whether e is a function type that returns the named type.
func returns(e ast.Expr, name string) bool {
	f, ok := e.(*ast.FuncType)
	return ok && f.Results != nil && isType(f.Results.List[0].Type, name)
}

func makes(e ast.Expr, name string, makers map[string]bool) bool {
	switch e := e.(type) {
	case *ast.CompositeLit:
		return isType(e.Type, name)
	case *ast.StarExpr:
		return makes(e.X, name, makers)
	case *ast.SelectorExpr:
		return makers[e.Sel.Name]
	case *ast.CallExpr:
		_, last, _ := strings.Cut("."+chain(e.Fun), ".")
		return makers[last[strings.LastIndexByte(last, '.')+1:]]
	}
	return false
}

func isType(e ast.Expr, name string) bool {
	if s, ok := e.(*ast.StarExpr); ok {
		e = s.X
	}
	return e != nil && chain(e) == name
}
