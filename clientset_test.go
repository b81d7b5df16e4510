package bowline

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWholeClientsetIsNotLinked: one call of client-go's own constructor links the clients of every
// API group: 5 MB of program, a part of which is resident in every process. Package kubeclient has a
// clientset of what a node needs (clientset.go).
func TestWholeClientsetIsNotLinked(t *testing.T) {
	if got := wholeClientsets(t, "package p\n\nimport k \"k8s.io/client-go/kubernetes\"\n\nvar _, _ = k.NewForConfig(nil)\n", "p.go"); len(got) != 1 {
		t.Fatalf("a call of NewForConfig under another name: found %q, want one", got)
	}
	files := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "hack", "lab", "test", "testdata", "vktest"}, d.Name()):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files++
		for _, call := range wholeClientsets(t, nil, path) {
			t.Errorf("%s uses %s, which links the clients of every API group: use kubeclient.New, or take a kubernetes.Interface", path, call)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 300 {
		t.Errorf("looked at %d files: the product has more", files)
	}
}

// wholeClientsets returns the constructors of client-go's clientset that a file names. src is its
// content, or nil to read it.
func wholeClientsets(t *testing.T, src any, path string) (found []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := ""
	for _, i := range file.Imports {
		if i.Path.Value == `"k8s.io/client-go/kubernetes"` {
			if name = "kubernetes"; i.Name != nil {
				name = i.Name.Name
			}
		}
	}
	if name == "" {
		return nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == name && (s.Sel.Name == "New" || strings.HasPrefix(s.Sel.Name, "NewForConfig")) {
				found = append(found, x.Name+"."+s.Sel.Name)
			}
		}
		return true
	})
	return found
}
