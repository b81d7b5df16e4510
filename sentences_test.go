package bowline

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// readers are the functions that look into a text which was written for people, because there is no
// typed value, or because they decide nothing by it.
var readers = map[string]string{
	"(*cri.guard).explain":                  "gRPC shows a text that is too long only in the status",
	"(*logonce.Failure).Changed":            "two error values that say the same are logged once; nothing else depends on it",
	"(*syncloop.Loop).askRuntime":           "the node's condition shows the text, and is written again when it differs",
	"(*syncloop.awaited).common":            "masks the IDs in a runtime's words: with them, a status would change at each attempt",
	"(syncloop/volume/render.Faults).Error": "shows a text once",
	"(syncloop.Metrics).mountedImages":      "as a kubelet, it counts by the message: the CRI has no code for an image that cannot be mounted",
	"cri.classify":                          "a name that is reserved has no code of its own in the CRI",
	"hint.Text":                             "joins sentences for a condition, and decides nothing",
	"host/internal/machine.SliceExists":     "busctl prints the message of a D-Bus error, but not its name, and a script over SSH has only busctl",
	"host/internal/machine.SliceMissing":    "as SliceExists",
	"host/local.unmountShared":              "umount(8) has one exit status for all failures",
	"host/ssh.errnoOf":                      "a program on the host has strerror(3) in its output, and no errno",
	"host/ssh/endpoint.loginRefused":        "x/crypto/ssh exports no types for these errors",
	"host/ssh/link.refusal":                 "sshd sends strerror(3) instead of an errno",
	"hostadmin.Live":                        "a raw terminal needs another end of each line",
	"syncloop/podconfig/manifest.plain":     "strips what libraries prefix, and decides nothing",
	"syncloop/podconfig/manifest.validate":  "sorts a list of errors for people",
}

// TestNoSentenceIsRead: a decision that depends on a message changes when someone improves the
// message.
func TestNoSentenceIsRead(t *testing.T) {
	used := set{}
	for _, p := range typedModule() {
		for name, nodes := range p.sentencesRead() {
			used[name] = true
			for _, n := range nodes {
				if readers[name] == "" {
					t.Errorf("%s: %s looks into a sentence: give the cause a type", at(n), name)
				}
			}
		}
	}
	for name := range readers {
		if !used[name] {
			t.Errorf("%s is excepted, and reads no sentence", name)
		}
	}
}

// TestSentencesAreSeen plants each form: the lines that end with "reads" must be found, and no
// others.
func TestSentencesAreSeen(t *testing.T) {
	text := `package p
import ("bufio"; "bytes"; "errors"; "fmt"; "io"; "regexp"; "slices"; "strings"; "google.golang.org/grpc/status")
type fault struct { Message, Text, Reason string; Code int }
func (f *fault) Error() string { return f.Message + f.Text }
type condition struct { Message, Reason, Words, Err, Name string }
var pattern = regexp.MustCompile("x")
func f(err error, s *fault, c condition, known string, all map[string]int, st *status.Status) string {
	_ = strings.Contains(err.Error(), "x") // reads
	_ = strings.HasPrefix(c.Message, "x") // reads
	_ = strings.Contains(c.Words, known) // reads
	_ = strings.Contains(known, c.Err) // reads
	_ = strings.Contains(st.Message(), "x") // reads
	text := err.Error()
	_ = strings.Contains(text, "x") // reads
	_, _, _ = strings.Cut(text, ":") // reads
	_, _ = strings.CutPrefix("a: " + text[1:], "x") // reads
	_ = strings.EqualFold(text, "x") // reads
	for line := range strings.SplitSeq(text, "\n") { // reads
		_ = strings.Contains(line, "x") // reads
	}
	var later string
	later = strings.TrimSpace(fmt.Sprintf("the error %v", err))
	_ = strings.LastIndex(later, "x") // reads
	var declared = string([]byte(text))
	_ = strings.Count(declared, "x") // reads
	_ = bytes.Contains([]byte(text), []byte("x")) // reads
	_ = pattern.MatchString(text) // reads
	_ = pattern.ReplaceAllString(c.Message, "x") // reads
	_, _ = regexp.MatchString("x", text) // reads
	_ = err.Error() == known // reads
	_ = known != text // reads
	_ = s.Text == "x" // reads
	switch text { // reads
	case "x":
	}
	switch {
	case text == known: // reads
	}
	_ = slices.Contains([]string{known}, text) // reads
	lines := []string{text}
	_ = slices.Index(lines, "x") // reads
	_ = all[text] // reads
	func() { _ = strings.Contains(text, "x") }() // reads

	_ = text == "" || "" != err.Error()
	switch text {
	case "":
	}
	_ = c.Message == known
	_ = c.Reason == "NotReady"
	_ = strings.Contains(c.Name, "x")
	_ = strings.Join(lines, ", ") + strings.TrimSpace(text)
	_ = strings.ReplaceAll(known, "%s", text)
	_ = len(text) > 100
	again := fmt.Errorf("again: %w", err)
	_ = again != nil && again != err
	_ = s.Reason == "NodeAffinity" || s.Code == 3 || errors.Is(err, s)
	known = strings.Repeat(known, 2)
	return text
}
func given(said, name string, msg []byte, message int) bool {
	return strings.Contains(said, "exists") // reads
}
type config struct { Out io.Writer; Name string }
func (c config) do(io.Writer) {}
func release(out io.Writer, name string) { fmt.Fprintf(out, "released %s\n", name) }
func printed(err error, log func(io.Writer), known string) {
	var out strings.Builder
	release(&out, "box")
	for line := range strings.SplitSeq(out.String(), "\n") { // reads
		_ = strings.HasPrefix(line, "released") // reads
	}
	buf := &bytes.Buffer{}
	config{Name: "box", Out: buf}.do(nil)
	_ = bytes.Contains(buf.Bytes(), []byte("x")) // reads
	_, _ = buf.ReadString('\n') // reads
	scanner := bufio.NewScanner(buf) // reads
	var logged bytes.Buffer
	log(&logged)
	words := strings.Fields(logged.String()) // reads
	var said strings.Builder
	fmt.Fprintf(&said, "the error %v", err)
	_ = strings.Contains(said.String(), "x") // reads
	var all strings.Builder
	all.WriteString(err.Error())
	_ = all.String() == known // reads

	var own, page strings.Builder
	own.WriteString(known)
	fmt.Fprintf(&own, "%d", len(known))
	_ = strings.Contains(own.String(), "x") || out.String() == known || out.Len() > 0
	fmt.Print(out.String(), strings.TrimSpace(logged.String()), words, scanner)
	_, _ = io.WriteString(&page, known)
	_ = strings.Contains(page.String(), "x")
}
func again(message, reason string) bool {
	words := strings.Fields(message) // reads
	return strings.HasPrefix(reason, "x") || message == "" || message == reason || words == nil
}
`
	var want, got []int
	for i, line := range strings.Split(text, "\n") {
		if strings.HasSuffix(line, "// reads") {
			want = append(want, i+1)
		}
	}
	for _, nodes := range typedText(text).sentencesRead() {
		for _, n := range nodes {
			got = append(got, positions.Position(n.Pos()).Line)
		}
	}
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("found the lines %v, want %v", got, want)
	}
}

// origin is where a text comes from.
type origin int

const (
	unknown  origin = iota
	phrase          // a field with the words of an event, a condition or a status
	sentence        // the text of an error
)

// reading follows the texts that were written for people through the variables of a function. It
// does not follow them into other functions, but believes the name of a parameter (messages), and
// takes for such a text what a function of this module printed into a buffer (printed_test.go).
type reading struct {
	typed
	holds map[types.Object]origin
}

// sentencesRead returns what looks into such texts, by the name of the function. Searching is
// looking into both origins. Comparing is only looking into the text of an error, because a status
// is compared with another one to see whether it must be written.
func (p typed) sentencesRead() map[string][]ast.Node {
	found := map[string][]ast.Node{}
	for _, file := range p.files {
		if slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` }) {
			continue // a suite of tests
		}
		for _, d := range file.Decls {
			name := p.path
			if f, ok := d.(*ast.FuncDecl); ok {
				name = strings.ReplaceAll(p.Defs[f.Name].(*types.Func).FullName(), module+"/", "")
			}
			r := &reading{p, map[types.Object]origin{}}
			if f, ok := d.(*ast.FuncDecl); ok {
				r.given(f)
			}
			for r.follow(d) {
			}
			ast.Inspect(d, func(n ast.Node) bool {
				if r.reads(n) {
					found[name] = append(found[name], n)
				}
				return true
			})
		}
	}
	return found
}

// messages are the names of parameters that hold what a program, a server or an error said.
var messages = []string{"said", "message", "msg", "stderr"}

// given notes the parameters of a function that have the name of a message.
func (r *reading) given(f *ast.FuncDecl) {
	for _, field := range f.Type.Params.List {
		for _, name := range field.Names {
			if o := r.Defs[name]; slices.Contains(messages, name.Name) && isString(o.Type()) {
				r.holds[o] = phrase
			}
		}
	}
}

// follow finds the variables that hold such texts. It reports whether there was a new one.
func (r *reading) follow(d ast.Decl) (more bool) {
	assign := func(left ast.Expr, from origin) {
		name, ok := left.(*ast.Ident)
		if !ok || from == unknown || r.ObjectOf(name) == nil || isError(r.ObjectOf(name).Type()) {
			return
		}
		if basic, ok := r.ObjectOf(name).Type().Underlying().(*types.Basic); ok && basic.Info()&types.IsString == 0 {
			return // a number or a bool that was made of it
		}
		if from > r.holds[r.ObjectOf(name)] {
			r.holds[r.ObjectOf(name)], more = from, true
		}
	}
	assignAll := func(left, right []ast.Expr) {
		for i, l := range left {
			assign(l, r.of(right[min(i, len(right)-1)]))
		}
	}
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			assignAll(n.Lhs, n.Rhs)
		case *ast.ValueSpec:
			if len(n.Values) > 0 {
				var names []ast.Expr
				for _, name := range n.Names {
					names = append(names, name)
				}
				assignAll(names, n.Values)
			}
		case *ast.CallExpr, *ast.CompositeLit:
			for o, from := range r.printed(n) {
				if from > r.holds[o] {
					r.holds[o], more = from, true
				}
			}
		case *ast.RangeStmt:
			for _, e := range []ast.Expr{n.Key, n.Value} {
				if e != nil {
					assign(e, r.of(n.X))
				}
			}
		}
		return true
	})
	return more
}

// of returns where the text of an expression comes from.
func (r *reading) of(e ast.Expr) origin {
	if isError(r.TypeOf(e)) {
		return unknown // the error itself
	}
	if o := r.buffer(e); o != nil {
		return r.holds[o]
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return r.holds[r.ObjectOf(e)]
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return max(r.of(e.X), r.of(e.Y))
		}
	case *ast.IndexExpr:
		return r.of(e.X)
	case *ast.SliceExpr:
		return r.of(e.X)
	case *ast.CompositeLit:
		if _, is := r.TypeOf(e).Underlying().(*types.Slice); is {
			return r.any(e.Elts)
		}
	case *ast.SelectorExpr:
		s := r.Selections[e]
		if s == nil || s.Kind() != types.FieldVal || !isString(s.Type()) || !slices.Contains([]string{"Message", "Text", "Reason", "Words", "Err"}, e.Sel.Name) {
			return unknown
		}
		if isError(s.Recv()) && e.Sel.Name != "Reason" { // a reason may be compared: it is a constant
			return sentence
		}
		return phrase
	case *ast.CallExpr:
		return r.ofCall(e)
	}
	return unknown
}

func (r *reading) ofCall(call *ast.CallExpr) origin {
	if r.Types[call.Fun].IsType() || r.Types[call.Fun].IsBuiltin() {
		return r.any(call.Args) // a conversion, or append
	}
	f := r.function(call.Fun)
	if f == nil || f.Pkg() == nil && f.Name() != "Error" {
		return unknown
	}
	if s, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok && (f.Name() == "String" || f.Name() == "Bytes") && r.buffer(s.X) != nil {
		return r.of(s.X)
	}
	signature := f.Signature()
	if signature.Recv() != nil && signature.Params().Len() == 0 && signature.Results().Len() == 1 && isString(signature.Results().At(0).Type()) {
		switch f.Name() {
		case "Error", "Message":
			return sentence
		case "GetMessage", "GetReason":
			return phrase
		}
	}
	switch from := r.any(call.Args); {
	case f.Pkg() == nil:
		return unknown
	case f.Pkg().Path() == "fmt" && slices.ContainsFunc(call.Args, func(e ast.Expr) bool { return isError(r.TypeOf(e)) }):
		return sentence
	case slices.Contains([]string{"strings", "bytes", "fmt", "regexp", "slices", "maps"}, f.Pkg().Path()):
		return from
	}
	return unknown
}

func (r *reading) any(all []ast.Expr) (from origin) {
	for _, e := range all {
		from = max(from, r.of(e))
	}
	return from
}

// harmless are the functions that only pass a text on.
var harmless = map[string]bool{"Join": true, "TrimSpace": true, "Repeat": true, "ToValidUTF8": true, "Clone": true, "NewReader": true, "NewBufferString": true}

// reads reports whether n looks into a text that was written for people.
func (r *reading) reads(n ast.Node) bool {
	compared := func(e, with ast.Expr) bool {
		value := r.Types[with].Value
		return r.of(e) == sentence && (value == nil || value.ExactString() != `""`)
	}
	switch n := n.(type) {
	case *ast.BinaryExpr:
		return (n.Op == token.EQL || n.Op == token.NEQ) && (compared(n.X, n.Y) || compared(n.Y, n.X))
	case *ast.SwitchStmt:
		for _, s := range n.Body.List {
			if n.Tag != nil && slices.ContainsFunc(s.(*ast.CaseClause).List, func(e ast.Expr) bool { return compared(n.Tag, e) }) {
				return true
			}
		}
	case *ast.IndexExpr:
		_, is := r.TypeOf(n.X).Underlying().(*types.Map)
		return is && r.of(n.Index) == sentence
	case *ast.CallExpr:
		f := r.function(n.Fun)
		if f == nil || f.Pkg() == nil {
			return false
		}
		method := f.Signature().Recv() != nil
		if method && r.readsBuffer(n, f) {
			return true
		}
		switch f.Pkg().Path() {
		case "bufio":
			return !method && r.any(n.Args) != unknown
		case "strings", "bytes": // the third argument is what replaces
			return !method && !harmless[f.Name()] && r.any(n.Args[:min(2, len(n.Args))]) != unknown
		case "regexp":
			return r.any(n.Args[:min(2, len(n.Args))]) != unknown
		case "slices":
			return slices.Contains([]string{"Contains", "Index"}, f.Name()) && r.any(n.Args) == sentence
		}
	}
	return false
}

func isString(t types.Type) bool {
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsString != 0
}

func isError(t types.Type) bool {
	e := types.Universe.Lookup("error").Type().Underlying().(*types.Interface)
	return t != nil && t != types.Typ[types.UntypedNil] && (types.Implements(t, e) || types.Implements(types.NewPointer(t), e))
}
