package bowline

import (
	"go/ast"
	"reflect"
	"testing"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/syncloop/plan"
	"github.com/bowline-k8s/bowline/syncloop/status"
)

// TestEveryInputFieldIsSet: a feature whose input field pure code reads, but production never sets,
// works only in its tests.
func TestEveryInputFieldIsSet(t *testing.T) {
	for name, typ := range map[string]reflect.Type{
		"cri/spec.Machine":      reflect.TypeFor[spec.Machine](),
		"syncloop/status.Input": reflect.TypeFor[status.Input](),
		"syncloop/plan.Input":   reflect.TypeFor[plan.Input](),
	} {
		set := fieldsSet(typedModule(), name)
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

// fieldsSet returns the fields of a type that the packages set, in a literal or by an assignment.
func fieldsSet(packages []typed, name string) set {
	found := set{}
	for _, p := range packages {
		for _, file := range p.files {
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CompositeLit:
					for _, e := range n.Elts {
						if kv, ok := e.(*ast.KeyValueExpr); ok && typeName(p.TypeOf(n)) == name {
							found[kv.Key.(*ast.Ident).Name] = true
						}
					}
				case *ast.AssignStmt:
					for _, left := range n.Lhs {
						if s, ok := left.(*ast.SelectorExpr); ok && p.Selections[s] != nil && typeName(p.Selections[s].Recv()) == name {
							found[s.Sel.Name] = true
						}
					}
				}
				return true
			})
		}
	}
	return found
}
