package bowline

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestParts: a test of test/e2e that calls neither serial nor parallel would run in both parts of
// the suite. One that calls onlyLocal after them may be left out on both kinds of hosts.
func TestParts(t *testing.T) {
	files, err := filepath.Glob("test/e2e/*_test.go")
	testutil.Must(t, err)
	tests := 0
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		testutil.Must(t, err)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || f.Name.Name == "TestMain" {
				continue
			}
			tests++
			says, late := false, false
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					id, ok := call.Fun.(*ast.Ident)
					says = says || ok && (id.Name == "serial" || id.Name == "parallel")
					late = late || ok && id.Name == "onlyLocal" && says
				}
				return true
			})
			if !says {
				t.Errorf("%s in %s calls neither serial nor parallel", f.Name.Name, path)
			}
			if late {
				t.Errorf("%s in %s calls onlyLocal after serial or parallel", f.Name.Name, path)
			}
		}
	}
	if tests == 0 {
		t.Error("no test was seen")
	}
}

// TestNamedTestsExist: go test -run passes over a name that no test has. Here are the names that the
// step crio of hack/test-machine.sh chooses from test/e2e.
func TestNamedTestsExist(t *testing.T) {
	script, err := os.ReadFile("hack/test-machine.sh")
	testutil.Must(t, err)
	chosen := regexp.MustCompile(`-test\.run '\^Test\(([A-Za-z|]+)\)\$'`).FindSubmatch(script)
	if chosen == nil {
		t.Fatal("no choice of tests was seen")
	}
	files, err := filepath.Glob("test/e2e/*_test.go")
	testutil.Must(t, err)
	var all []byte
	for _, path := range files {
		text, err := os.ReadFile(path)
		testutil.Must(t, err)
		all = append(all, text...)
	}
	for name := range strings.SplitSeq(string(chosen[1]), "|") {
		if !strings.Contains(string(all), "\nfunc Test"+name+"(t *testing.T)") {
			t.Errorf("test/e2e has no Test%s", name)
		}
	}
}
