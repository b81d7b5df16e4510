package bowline

import (
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"
)

// lockOrder has the locks that are taken while another is held: the outer lock, then the inner ones.
// Any other mutex is taken alone, but gc.Sweeper.turn and imagegc.Collector.mu: they are outermost, held
// during calls of a whole sweep or collection, through interfaces.
var lockOrder = map[string][]string{
	"fleet.Drivers.mu":               {"fleet.hostBudgets.mu", "fleet.operations.mu", "nodelogs.Own.mu"},
	"fleet.hostBudgets.mu":           {"host/budget.Account.mu"},
	"host/ssh/link.reader.mu":        {"host/ssh/link.deadline.mu"},
	"host/ssh/link.writer.mu":        {"host/ssh/link.deadline.mu"},
	"host/ssh/shell.Pool.mu":         {"host/ssh/shell.Shell.mu"},
	"host/ssh/shell.collector.mu":    {"host/budget.Account.mu"},
	"host/ssh/shell.stream.mu":       {"host/budget.Account.mu", "host/ssh/shell.collector.mu", "host/ssh/shell.turn.mu"},
	"lifeline/cluster.Shared.mu":     {"lifeline/cluster.feed.mu"},
	"provider/clusterwide.Shared.mu": {"provider/clusterwide.sources.mu"},
	"syncloop.Loop.mu": {"syncloop.Loop.naming", "syncloop.inbox.mu", "syncloop/objects.Manager.mu", "syncloop/objects.item.mu",
		"syncloop/pleg.Cache.mu", "syncloop/podconfig.PodConfig.mu"},
	"syncloop.Loop.naming":        {"syncloop/objects.Manager.mu", "syncloop/objects.item.mu"},
	"syncloop/objects.Manager.mu": {"syncloop/objects.item.mu"},
	"syncloop/podconfig.API.mu":   {"syncloop/podconfig.PodConfig.mu"},
}

// TestLockOrder fails on a pair of locks that is not in lockOrder, on one there that does not occur,
// and on a cycle. It follows static calls, but neither interfaces nor function values.
func TestLockOrder(t *testing.T) {
	for _, problem := range lockProblems(lockOrder, typedModule()...) {
		t.Error(problem)
	}
}

// TestLockOrderFinds plants an inversion: a takes y through calls while it holds x, b the reverse.
func TestLockOrderFinds(t *testing.T) {
	got := strings.Join(lockProblems(map[string][]string{"p.s.x": {"p.s.y"}, "p.s.z": {"p.s.y"}}, typedText(`package p
		import "sync"
		type s struct{ x, y, z sync.Mutex }
		func (s *s) a() { s.x.Lock(); defer s.x.Unlock(); func() { s.lockY() }() }
		func (s *s) lockY() { s.y.Lock(); s.y.Unlock() }
		func (s *s) b(early bool) {
			s.y.Lock()
			if early { s.y.Unlock(); s.z.Lock(); s.z.Unlock(); return }
			s.x.Lock(); s.x.Unlock(); s.y.Unlock()
			s.z.Lock(); go s.a(); s.z.Unlock()
		}`)), "\n")
	want := "p.go:9: p.s.x is taken while p.s.y is held\np.s.y is never taken while p.s.z is held\nthere is a cycle among [p.s.x p.s.y]"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// locks collects which function takes which lock, and what is held then.
type locks struct {
	takes, callees map[string]set       // of each function
	calls          map[[2]string]string // lock that is held and function that is called, to a position
	pairs          map[[2]string]string // outer and inner lock, to a position
}

// lockWalk walks one function in the order of its statements.
type lockWalk struct {
	*locks
	typed
	name string
}

// later walks what does not run under the locks of the function, such as a goroutine.
func (w *lockWalk) later(n ast.Node) { w.start(w.typed, at(n), n) }

// start walks a function, and notes what it takes and calls under a name.
func (l *locks) start(p typed, name string, body ast.Node) {
	l.takes[name], l.callees[name] = set{}, set{}
	(&lockWalk{l, p, name}).walk(body, set{})
}

// walk changes held to what may be held after n. It reports whether n returns.
func (w *lockWalk) walk(n ast.Node, held set) (returns bool) {
	branch := func(n ast.Node) {
		if in := maps.Clone(held); !w.walk(n, in) {
			maps.Copy(held, in)
		}
	}
	ast.Inspect(n, func(n ast.Node) bool {
		if returns {
			return false
		}
		switch n := n.(type) {
		case *ast.ReturnStmt:
			for _, r := range n.Results {
				w.walk(r, held)
			}
			returns = true
		case *ast.IfStmt:
			if n.Init != nil {
				w.walk(n.Init, held)
			}
			w.walk(n.Cond, held)
			if branch(n.Body); n.Else != nil {
				branch(n.Else)
			}
		case *ast.CaseClause:
			branch(&ast.BlockStmt{List: n.Body})
		case *ast.CommClause:
			branch(&ast.BlockStmt{List: n.Body})
		case *ast.FuncLit:
			w.later(n.Body)
		case *ast.GoStmt:
			w.later(n.Call)
		case *ast.DeferStmt: // an unlock is after all others
			w.call(n.Call, maps.Clone(held))
		case *ast.CallExpr:
			w.call(n, held)
		default:
			return true
		}
		return false
	})
	return returns
}

func (w *lockWalk) call(c *ast.CallExpr, held set) {
	f, on := w.function(c.Fun), ast.Expr(nil)
	switch fun := ast.Unparen(c.Fun).(type) {
	case *ast.SelectorExpr:
		on = fun.X
		w.walk(on, held)
	case *ast.FuncLit:
		w.walk(fun.Body, maps.Clone(held))
	}
	for _, arg := range c.Args {
		if lit, ok := arg.(*ast.FuncLit); ok && (f == nil || f.Name() != "AfterFunc" && f.Name() != "Go") {
			w.walk(lit.Body, maps.Clone(held))
		} else {
			w.walk(arg, held)
		}
	}
	if f == nil {
		return
	}
	switch callee := f.Origin().FullName(); callee {
	case "(*sync.Mutex).Lock", "(*sync.Mutex).TryLock", "(*sync.RWMutex).Lock", "(*sync.RWMutex).RLock":
		lock := w.lock(on)
		for outer := range held {
			w.pairs[[2]string{outer, lock}] = at(c)
		}
		held[lock], w.takes[w.name][lock] = true, true
	case "(*sync.Mutex).Unlock", "(*sync.RWMutex).Unlock", "(*sync.RWMutex).RUnlock":
		delete(held, w.lock(on))
	default:
		w.callees[w.name][callee] = true
		for outer := range held {
			w.calls[[2]string{outer, callee}] = at(c)
		}
	}
}

// lock names a mutex by its package, type and field.
func (w *lockWalk) lock(x ast.Expr) string {
	if s, ok := ast.Unparen(x).(*ast.SelectorExpr); ok && w.Selections[s] != nil {
		return typeName(w.Selections[s].Recv()) + "." + s.Sel.Name
	}
	return w.path + "." + types.ExprString(x)
}

// lockProblems compares what the packages do with the declared order.
func lockProblems(order map[string][]string, packages ...typed) (found []string) {
	l := &locks{map[string]set{}, map[string]set{}, map[[2]string]string{}, map[[2]string]string{}}
	for _, p := range packages {
		p.functions(func(name string, body *ast.BlockStmt) { l.start(p, name, body) })
	}
	for more := true; more; {
		more = false
		for name, takes := range l.takes {
			before := len(takes)
			for callee := range l.callees[name] {
				maps.Copy(takes, l.takes[callee])
			}
			more = more || len(takes) != before
		}
	}
	for call, at := range l.calls {
		for inner := range l.takes[call[1]] {
			l.pairs[[2]string{call[0], inner}] = at
		}
	}
	inner := map[string][]string{}
	for pair, at := range l.pairs {
		inner[pair[0]] = append(inner[pair[0]], pair[1])
		if !slices.Contains(order[pair[0]], pair[1]) {
			found = append(found, fmt.Sprintf("%s: %s is taken while %s is held", at, pair[1], pair[0]))
		}
	}
	for outer, all := range order {
		for _, in := range all {
			if !slices.Contains(inner[outer], in) {
				found = append(found, fmt.Sprintf("%s is never taken while %s is held", in, outer))
			}
		}
	}
	slices.Sort(found)
	for more := true; more; {
		before := len(inner)
		maps.DeleteFunc(inner, func(_ string, all []string) bool {
			return !slices.ContainsFunc(all, func(in string) bool { return inner[in] != nil })
		})
		more = len(inner) != before
	}
	if len(inner) > 0 {
		found = append(found, fmt.Sprintf("there is a cycle among %v", slices.Sorted(maps.Keys(inner))))
	}
	return found
}
