package bowline

import (
	"go/ast"
	"go/token"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/config"
)

// TestEveryFieldIsRead: a configuration field without effect misleads its users. Each field of a
// host must be read by its full path, such as cfg.Authentication.Webhook.Enabled.
func TestEveryFieldIsRead(t *testing.T) {
	read := selectors(t)
	fields := leaves(reflect.TypeFor[config.Host](), "cfg.")
	if len(fields) < 30 {
		t.Fatalf("a host has the fields %v: the walk misses some", fields)
	}
	for _, f := range fields {
		if !read[f] {
			t.Errorf("nothing reads %s: make it take effect, or delete it", f)
		}
	}
	// Load merges the rest into the hosts (config.TestInheritance).
	merged := map[string]bool{"TypeMeta": true, "NodeSettings": true, "Kubeconfig": true, "RegisterWithTaints": true}
	for i := range reflect.TypeFor[config.BowlineConfiguration]().NumField() {
		f := reflect.TypeFor[config.BowlineConfiguration]().Field(i)
		if !merged[f.Name] && !read["cfg."+f.Name] {
			t.Errorf("nothing reads cfg.%s of the configuration", f.Name)
		}
	}
	if read["cfg.Authentication.Webhook.Disabled"] || !read["cfg.Server.Port"] {
		t.Error("the search for readers finds what is not there, or misses what is")
	}
}

// leaves returns the paths of a struct's fields, including those of nested structs of this module.
func leaves(typ reflect.Type, prefix string) []string {
	var all []string
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct && f.Type.Elem().PkgPath() == typ.PkgPath() {
			f.Type = f.Type.Elem()
		}
		switch {
		case f.Anonymous:
			all = append(all, leaves(f.Type, prefix)...)
		case f.Type.Kind() == reflect.Struct && f.Type.PkgPath() == typ.PkgPath():
			all = append(all, leaves(f.Type, prefix+f.Name+".")...)
		default:
			all = append(all, prefix+f.Name)
		}
	}
	return all
}

// selectors returns the selector chains that start at cfg, in the packages that import config.
func selectors(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, p := range typedModule() {
		knows := func(f *ast.File) bool {
			return slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote(module+"/config") })
		}
		if !slices.ContainsFunc(p.files, knows) {
			continue
		}
		for _, file := range p.files {
			written := map[ast.Expr]bool{}
			ast.Inspect(file, func(n ast.Node) bool {
				if a, ok := n.(*ast.AssignStmt); ok && a.Tok == token.ASSIGN {
					for _, left := range a.Lhs {
						written[left] = true
					}
				}
				if s, ok := n.(*ast.SelectorExpr); ok && !written[s] {
					if _, after, ok := strings.Cut("."+chain(s), ".cfg."); ok {
						found["cfg."+after] = true
					}
				}
				return true
			})
		}
	}
	// cfg.SocketPath is Endpoint without its scheme.
	if found["cfg.SocketPath"] {
		found["cfg.Endpoint"] = true
	}
	if found["cfg.LogMaxSize"] { // in bytes
		found["cfg.ContainerLogMaxSize"] = true
	}
	if found["cfg.EvictionHard"] { // Load merges the defaults into it (config.TestMergedEvictions)
		found["cfg.MergeDefaultEvictionSettings"] = true
	}
	return found
}

func chain(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return chain(e.X) + "." + e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return "?"
}
