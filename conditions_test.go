package bowline

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// TestOneWriterOfReady: two writers set the conditions of a node, and never at the same time. The
// reporter of package readiness does while the driver runs, as a part that (*Node).run waits for. The
// quarantine does after that: it is shown only by deferred calls of the functions around run.
func TestOneWriterOfReady(t *testing.T) {
	seen := set{}
	for _, p := range typedModule() {
		for _, w := range p.writers() {
			seen[w.name] = true
			if !w.allowed() {
				t.Errorf("%s: %s uses %s, so that two may write the conditions of a node", at(w.at), w.in, w.name)
			}
		}
	}
	for name, users := range writers {
		if users != nil && !seen[name] {
			t.Errorf("nothing uses %s", name)
		}
	}
}

// TestWritersAreSeen shows that TestOneWriterOfReady fails for another writer.
func TestWritersAreSeen(t *testing.T) {
	p := typedText(`package p
import ("context"; "github.com/bowline-k8s/bowline/provider"; "github.com/bowline-k8s/bowline/readiness")
func f(ctx context.Context, n *provider.Node, w readiness.Node, r *readiness.Reporter) {
	n.SetReady(true, "", "")
	w.SetReady(true, "", "")
	set := n.SetReady
	set(true, "", "")
	_ = r.Run(ctx)
	_ = provider.PatchConditions
}
`)
	found := p.writers()
	if len(found) != 5 || slices.ContainsFunc(found, writer.allowed) {
		t.Errorf("found %+v, want five that are not allowed", found)
	}
	for w, want := range map[writer]bool{
		{name: "node.quarantine.show", in: "node.Run", deferred: true}:               true,
		{name: "node.quarantine.show", in: "node.Run"}:                               false,
		{name: "node.quarantine.show", in: "node.Node.startCluster", deferred: true}: false,
		{name: "readiness.Reporter.Run", in: "node.Node.startCluster", part: true}:   true,
		{name: "readiness.Reporter.Run", in: "node.Node.startCluster"}:               false,
	} {
		if w.allowed() != want {
			t.Errorf("%+v is allowed: %v", w, !want)
		}
	}
}

// writers are the functions that write the conditions, or lead to one that does, and the functions
// that may use each.
var writers = map[string][]string{
	"provider.Node.SetReady":   nil, // by the interface of package readiness only
	"readiness.Node.SetReady":  {"readiness.Reporter.Run"},
	"readiness.Reporter.Run":   {"node.Node.startCluster"},
	"provider.PatchConditions": {"node.writeQuarantine"},
	"node.writeQuarantine":     {"node.showQuarantine", "node.showUnclaimed"},
	"node.showQuarantine":      {"node.quarantine.report"},
	"node.showUnclaimed":       {"node.quarantine.report"},
	"node.quarantine.report":   {"node.quarantine.show"},
	"node.quarantine.show":     {"node.Run", "node.Node.hold"},
	"node.Node.run":            {"node.Node.hold"},
}

// writer is one use of one of writers.
type writer struct {
	name, in string
	deferred bool
	part     bool // an argument of part, which (*Node).run waits for
	at       ast.Node
}

func (w writer) allowed() bool {
	switch {
	case w.name == "node.quarantine.show" && !w.deferred, w.name == "readiness.Reporter.Run" && !w.part:
		return false
	}
	return slices.Contains(writers[w.name], w.in)
}

// writers returns each use of a writer in the package.
func (p typed) writers() (found []writer) {
	short := strings.NewReplacer(module+"/", "", "(", "", ")", "", "*", "").Replace
	p.functions(func(in string, body *ast.BlockStmt) {
		var walk func(n ast.Node, deferred, part bool)
		walk = func(n ast.Node, deferred, part bool) {
			ast.Inspect(n, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.DeferStmt:
					if !deferred {
						walk(n.Call, true, part)
						return false
					}
				case *ast.CallExpr:
					if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "part" && !part {
						for _, arg := range n.Args {
							walk(arg, deferred, true)
						}
						return false
					}
				case *ast.Ident:
					if f := p.function(n); f != nil {
						if name := short(f.FullName()); writers[name] != nil || name == "provider.Node.SetReady" {
							found = append(found, writer{name: name, in: short(in), deferred: deferred, part: part, at: n})
						}
					}
				}
				return true
			})
		}
		walk(body, false, false)
	})
	return found
}
