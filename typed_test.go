package bowline

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync"
)

// typed is a package of the module, without its tests, and the types of its expressions.
type typed struct {
	path  string // below the module
	files []*ast.File
	*types.Info
}

type set map[string]bool

var positions = token.NewFileSet()

// at returns the file and line of n.
func at(n ast.Node) string {
	p := positions.Position(n.Pos())
	p.Column = 0
	return p.String()
}

// typedModule returns all packages of the product.
var typedModule = sync.OnceValue(func() []typed {
	imports, sources := listExports()
	var all []typed
	for dir, names := range sources {
		if !strings.HasPrefix(dir, "test/") {
			all = append(all, typedPackage(imports, dir, nil, names...))
		}
	}
	return all
})

// typedText returns a package with one file, p.go.
func typedText(text string) typed {
	imports, _ := listExports()
	return typedPackage(imports, "p", text, "p.go")
}

// listExports returns the compiled packages that the module imports, and the module's own files.
var listExports = sync.OnceValues(func() (types.Importer, map[string][]string) {
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", `{{.ImportPath}} {{.Export}}{{range .GoFiles}} {{.}}{{end}}`, "./...").Output()
	if err != nil {
		panic(err)
	}
	exports, sources := map[string]string{}, map[string][]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		exports[f[0]] = f[1]
		if dir, ours := strings.CutPrefix(f[0], module+"/"); ours {
			for _, name := range f[2:] {
				sources[dir] = append(sources[dir], path.Join(dir, name))
			}
		}
	}
	return importer.ForCompiler(positions, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }), sources
})

func typedPackage(imports types.Importer, dir string, text any, names ...string) typed {
	p := typed{path: dir, Info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
		Defs: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}}
	for _, name := range names {
		file, err := parser.ParseFile(positions, name, text, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			panic(err)
		}
		p.files = append(p.files, file)
	}
	if _, err := (&types.Config{Importer: imports}).Check(module+"/"+dir, positions, p.files, p.Info); err != nil {
		panic(err)
	}
	return p
}

// functions calls do with each function that has a body, and its full name.
func (p typed) functions(do func(name string, body *ast.BlockStmt)) {
	for _, file := range p.files {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				do(p.Defs[f.Name].(*types.Func).FullName(), f.Body)
			}
		}
	}
}

// function returns the function or method that e names, or nil if it names none or is not known
// before the program runs.
func (p typed) function(e ast.Expr) *types.Func {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		f, _ := p.Uses[e].(*types.Func)
		return f
	case *ast.SelectorExpr:
		return p.function(e.Sel)
	}
	return nil
}

// typeName returns the name of a type or of what it points to, with its package below the module.
func typeName(t types.Type) string {
	return strings.TrimPrefix(strings.TrimPrefix(t.String(), "*"), module+"/")
}
