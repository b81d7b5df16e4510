package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/config"
)

// TestEveryFieldIsRead: a field that can be written and does nothing is a lie to
// whoever writes it. Each one of a host must be read by its full path, as
// cfg.Authentication.Webhook.Enabled.
func TestEveryFieldIsRead(t *testing.T) {
	read := selectors(t)
	fields := leaves(reflect.TypeFor[config.Host](), "cfg.")
	if len(fields) < 30 {
		t.Fatalf("a host has the fields %v: the walk misses some", fields)
	}
	for _, f := range fields {
		if !read[f] {
			t.Errorf("nothing in cmd/bowline reads %s: make it take effect, or delete it", f)
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

// leaves are the paths of a struct's fields, through its structs of this module.
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

// selectors are the chains of names that this command selects, from cfg on.
func selectors(t *testing.T) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
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
	// cfg.SocketPath is Endpoint without its scheme.
	if found["cfg.SocketPath"] {
		found["cfg.Endpoint"] = true
	}
	if found["cfg.LogMaxSize"] { // in bytes
		found["cfg.ContainerLogMaxSize"] = true
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
