package bowline

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// A release once printed its lines into a buffer, and its caller parsed them. So TestNoSentenceIsRead
// also follows what is printed into a bytes.Buffer or a strings.Builder: it is written for people if
// a function of this module prints it, or if it has the text of an error.

// buffer returns the variable or the field that e names if it is a buffer, or nil. e may be its
// address.
func (r *reading) buffer(e ast.Expr) types.Object {
	e = ast.Unparen(e)
	if u, ok := e.(*ast.UnaryExpr); ok && u.Op == token.AND {
		e = ast.Unparen(u.X)
	}
	var o types.Object
	switch e := e.(type) {
	case *ast.Ident:
		o = r.ObjectOf(e)
	case *ast.SelectorExpr:
		o = r.ObjectOf(e.Sel)
	}
	if v, ok := o.(*types.Var); ok && slices.Contains([]string{"bytes.Buffer", "strings.Builder"}, typeName(v.Type())) {
		return v
	}
	return nil
}

// printed returns the buffers into which n prints a text for people, and where the text comes from.
func (r *reading) printed(n ast.Node) map[types.Object]origin {
	into := map[types.Object]origin{}
	add := func(e ast.Expr, to types.Type, from origin) {
		if o := r.buffer(e); o != nil && to != nil && to.String() == "io.Writer" {
			into[o] = max(into[o], from)
		}
	}
	switch n := n.(type) {
	case *ast.CompositeLit: // the configuration of something that prints
		t := r.TypeOf(n)
		if t == nil || !strings.HasPrefix(strings.TrimPrefix(t.String(), "*"), module+"/") {
			return nil
		}
		for _, e := range n.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				if key, ok := kv.Key.(*ast.Ident); ok && r.ObjectOf(key) != nil && r.ObjectOf(key).Type() != nil {
					add(kv.Value, r.ObjectOf(key).Type(), phrase)
				}
			}
		}
	case *ast.CallExpr:
		signature, ok := r.TypeOf(n.Fun).(*types.Signature)
		if !ok {
			return nil
		}
		from := r.prints(n)
		for i, e := range n.Args {
			if i < signature.Params().Len() {
				add(e, signature.Params().At(i).Type(), from)
			}
		}
		if s, ok := ast.Unparen(n.Fun).(*ast.SelectorExpr); ok && strings.HasPrefix(s.Sel.Name, "Write") && r.buffer(s.X) != nil {
			into[r.buffer(s.X)] = r.any(n.Args)
		}
	}
	return into
}

// prints returns where the text comes from that a call writes into its io.Writer. A function of this
// module, and one that is not known before the program runs, writes for people.
func (r *reading) prints(call *ast.CallExpr) origin {
	f := r.function(call.Fun)
	switch {
	case f == nil || f.Pkg() != nil && strings.HasPrefix(f.Pkg().Path(), module+"/"):
		return phrase
	case f.Pkg() == nil:
		return unknown
	case f.Pkg().Path() == "fmt" && slices.ContainsFunc(call.Args, func(e ast.Expr) bool { return isError(r.TypeOf(e)) }):
		return sentence
	case f.Pkg().Path() == "fmt" || f.Pkg().Path() == "io":
		return r.any(call.Args[min(1, len(call.Args)):])
	}
	return unknown
}

// readsBuffer reports whether the call reads such a text out of its buffer, piece by piece.
func (r *reading) readsBuffer(call *ast.CallExpr, f *types.Func) bool {
	s, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	return ok && strings.HasPrefix(f.Name(), "Read") && f.Name() != "ReadFrom" && r.buffer(s.X) != nil && r.of(s.X) != unknown
}
