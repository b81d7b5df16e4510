package bowline

import (
	"fmt"
	"go/ast"
	"go/types"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMainHasNoLoops: cmd/bowline parses, validates, calls and prints. What runs until it is stopped
// is in a package, where it can be imported and tested.
func TestMainHasNoLoops(t *testing.T) {
	lines := 0
	for _, p := range typedModule() {
		if p.path != "cmd/bowline" {
			continue
		}
		for _, file := range p.files {
			lines += positions.File(file.Pos()).LineCount()
		}
		for _, found := range p.loops() {
			t.Errorf("%s: move it to a package", found)
		}
	}
	if lines == 0 || lines > 2000 {
		t.Errorf("cmd/bowline has %d lines, not 1 to 2000", lines)
	}
}

var (
	longRunning = regexp.MustCompile(`(?i)^(run|watch|keep|serve)$`)
	waits       = regexp.MustCompile(`Until|Poll|Forever|Backoff`)
)

// loops returns what runs until it is stopped: functions that are named so and are methods or take a
// context, loops without a condition or over a channel, loops that wait, and calls of package wait.
func (p typed) loops() (found []string) {
	add := func(n ast.Node, what string) { found = append(found, at(n)+" has "+what) }
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if longRunning.MatchString(n.Name.Name) && (n.Recv != nil || p.takesContext(n)) {
					add(n, "the function "+n.Name.Name)
				}
			case *ast.ForStmt:
				switch {
				case n.Cond == nil:
					add(n, "a loop without a condition")
				case p.pauses(n.Body):
					add(n, "a loop that waits")
				}
			case *ast.RangeStmt:
				_, channel := p.TypeOf(n.X).Underlying().(*types.Chan)
				switch {
				case channel:
					add(n, "a loop over a channel")
				case p.pauses(n.Body):
					add(n, "a loop that waits")
				}
			case *ast.CallExpr:
				if f := p.function(n.Fun); f != nil && f.Pkg() != nil && f.Pkg().Path() == "k8s.io/apimachinery/pkg/util/wait" && waits.MatchString(f.Name()) {
					add(n, "a call of wait."+f.Name())
				}
			}
			return true
		})
	}
	slices.Sort(found)
	return found
}

func (p typed) takesContext(f *ast.FuncDecl) bool {
	return slices.ContainsFunc(f.Type.Params.List, func(field *ast.Field) bool { return p.TypeOf(field.Type).String() == "context.Context" })
}

// pauses reports whether a loop's body waits for a channel or for time to pass.
func (p typed) pauses(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.SelectStmt:
			found = true
		case *ast.UnaryExpr:
			found = found || n.Op.String() == "<-"
		case *ast.CallExpr:
			f := p.function(n.Fun)
			found = found || f != nil && f.FullName() == "time.Sleep"
		}
		return true
	})
	return found
}

// TestLoops plants each form: the lines that end with "runs" must be found, and no others.
func TestLoops(t *testing.T) {
	text := `package p
import ("context"; "time"; "k8s.io/apimachinery/pkg/util/wait")
type x struct{}
func (x) Watch() {} // runs
func watch(ctx context.Context) {} // runs
func Serve(name string, ctx context.Context) {} // runs
func f(ctx context.Context, c chan int, done func() bool) {
	for { // runs
		select {}
	}
	for { // runs
		time.Sleep(time.Second)
	}
	for i := 0; ; i++ { // runs
		if done() { break }
	}
	for ctx.Err() == nil { // runs
		if !done() { time.Sleep(time.Second) }
	}
	for !done() { // runs
		<-c
	}
	for !done() { // runs
		select { case <-c: case <-ctx.Done(): }
	}
	for range time.NewTicker(time.Second).C { // runs
	}
	for range c { // runs
	}
	for range 3 { // runs
		<-c
	}
	wait.Until(func() {}, time.Second, ctx.Done()) // runs
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, nil) // runs
	go wait.UntilWithContext(ctx, nil, time.Second) // runs
}
func run() {
	for range 3 { func() {}() }
	for i := 0; i < 3; i++ { go func() { time.Sleep(time.Second) }() }
	for _, s := range []string{"a"} { _ = s }
}
func runs(ctx context.Context, c chan int) {
	select { case <-c: case <-ctx.Done(): }
	_ = wait.Jitter(time.Second, 1)
}
`
	var want, got []string
	for i, line := range strings.Split(text, "\n") {
		if strings.HasSuffix(line, "// runs") {
			want = append(want, fmt.Sprintf("p.go:%d", i+1))
		}
	}
	for _, found := range typedText(text).loops() {
		place, _, _ := strings.Cut(found, " ")
		got = append(got, place)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}
