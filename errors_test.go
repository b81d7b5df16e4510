package bowline

import (
	"go/ast"
	"go/constant"
	"go/token"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// longestError is the length of the longest text of an error, as it is written in the code.
const longestError = 100

// longErrors are longer, with the reason for each.
var longErrors = map[string]string{
	"cri/spec/hostname.go":       "a kubelet's text",
	"syncloop/admit/room.go":     "a kubelet's text",
	"syncloop/volume/prepare.go": "a kubelet's text",
}

// TestErrorsAreShort: an error is one short sentence. What to do about it is a hint (package hint).
func TestErrorsAreShort(t *testing.T) {
	planted := "package p\nimport (\"errors\"; \"fmt\")\n" +
		"var short = errors.New(\"short\")\n" +
		"var long = errors.New(\"" + strings.Repeat("x", longestError+1) + "\")\n" +
		"func f(s string) error { return fmt.Errorf(\"" + strings.Repeat("é", longestError) + "\" + \"%s\", s) }\n" +
		"func g(s string) error { return errors.New(\"" + strings.Repeat("é", longestError+1) + "\" + s) }\n"
	used, found := set{}, 0
	for _, p := range append(typedModule(), typedText(planted)) {
		for _, file := range p.files {
			path := positions.File(file.Pos()).Name()
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				text, ok := p.errorText(call)
				switch {
				case !ok:
				case utf8.RuneCountInString(text) <= longestError:
				case path == "p.go":
					found++
				case longErrors[path] == "":
					t.Errorf("%s: an error of %d characters: make it one sentence, and put what to do into a hint", at(n), utf8.RuneCountInString(text))
				default:
					used[path] = true
				}
				return true
			})
		}
	}
	if found != 3 {
		t.Errorf("found %d of the 3 long errors that were planted", found)
	}
	for path := range longErrors {
		if !used[path] {
			t.Errorf("%s is excepted, and has no long error", path)
		}
	}
}

// errorText returns the text of a new error: what of it the code knows.
func (p typed) errorText(call *ast.CallExpr) (string, bool) {
	f := p.function(call.Fun)
	if f == nil || !slices.Contains([]string{"errors.New", "fmt.Errorf"}, f.FullName()) {
		return "", false
	}
	return p.literal(call.Args[0]), true
}

// literal returns what the code knows of a string.
func (p typed) literal(e ast.Expr) string {
	if v := p.Types[e].Value; v != nil {
		return constant.StringVal(v)
	}
	if sum, ok := ast.Unparen(e).(*ast.BinaryExpr); ok && sum.Op == token.ADD {
		return p.literal(sum.X) + p.literal(sum.Y)
	}
	return ""
}
