package bowline

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

var (
	polling = regexp.MustCompile(`^(until|podIs|Until|Holds|Pod)$`)
	// requiring functions end or fail the test if one request to a cluster, a node or a pod fails.
	requiring = regexp.MustCompile(`^(Must|kubectl|logs|inPod|get|reply|codeOf)$`)
)

// TestPolledConditionsReturnErrors: a node that is busy or whose link is away may fail to answer
// once. A condition that a test polls returns that error, so that it is asked again.
func TestPolledConditionsReturnErrors(t *testing.T) {
	const text = `package p
func f() { until(t, "a log", func(context.Context) error { return is(logs(t, "p")) }) }`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", text, 0)
	testutil.Must(t, err)
	if len(requiredInPolls(file)) != 1 {
		t.Error("a condition that requires a log was not found")
	}
	names, err := filepath.Glob("test/*/*_test.go")
	testutil.Must(t, err)
	polls := 0
	for _, name := range names {
		file, err := parser.ParseFile(positions, name, nil, 0)
		testutil.Must(t, err)
		polls += len(polledConditions(file))
		for _, call := range requiredInPolls(file) {
			t.Errorf("%s: return the error from the condition", at(call))
		}
	}
	if polls < 100 {
		t.Errorf("only %d polled conditions were found", polls)
	}
}

func requiredInPolls(file *ast.File) (found []*ast.CallExpr) {
	for _, condition := range polledConditions(file) {
		ast.Inspect(condition, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && requiring.MatchString(calledName(call)) && len(call.Args) > 0 {
				if first, ok := call.Args[0].(*ast.Ident); ok && first.Name == "t" {
					found = append(found, call)
				}
			}
			return true
		})
	}
	return found
}

// polledConditions returns the function literals that a test passes to what polls them.
func polledConditions(file *ast.File) (found []*ast.FuncLit) {
	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && polling.MatchString(calledName(call)) {
			for _, arg := range call.Args {
				if literal, ok := arg.(*ast.FuncLit); ok {
					found = append(found, literal)
				}
			}
		}
		return true
	})
	return found
}

func calledName(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
