package bowline

import (
	"go/ast"
	"slices"
	"testing"
)

// readers are the files that look into a text which was written for people, because there is no typed
// value.
var readers = map[string]string{
	"cri/errors.go":           "a name that is reserved has no code of its own in the CRI",
	"cri/guard.go":            "gRPC shows a text that is too long only in the status",
	"host/local/shared.go":    "umount(8) has one exit status for all failures",
	"host/ssh/link/errors.go": "sshd sends strerror(3) instead of an errno",
}

// TestNoSentenceIsRead: a decision that depends on a message changes when someone improves the
// message. It finds calls of package strings on what errors and statuses say.
func TestNoSentenceIsRead(t *testing.T) {
	used := set{}
	for _, p := range append(typedModule(), typedText("package p\nimport \"strings\"\nfunc f(err error) bool { return strings.Contains(err.Error(), \"x\") }\n")) {
		for _, file := range p.files {
			path := positions.File(file.Pos()).Name()
			suite := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` })
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && !suite && p.looks(call) {
					if used[path] = true; readers[path] == "" && path != "p.go" {
						t.Errorf("%s looks into a sentence: give the cause a type", at(n))
					}
				}
				return true
			})
		}
	}
	for path := range readers {
		if !used[path] || !used["p.go"] {
			t.Errorf("%s is excepted, and reads no sentence", path)
		}
	}
}

// looks reports whether a call searches a text that was written for people.
func (p typed) looks(call *ast.CallExpr) (found bool) {
	search := []string{"Contains", "HasPrefix", "HasSuffix", "Cut", "CutPrefix", "CutSuffix", "EqualFold", "Index", "Split", "ToLower", "TrimPrefix"}
	f := p.function(call.Fun)
	if f == nil || f.Pkg() == nil || f.Pkg().Path() != "strings" || !slices.Contains(search, f.Name()) {
		return false
	}
	ast.Inspect(call.Args[0], func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		found = found || ok && slices.Contains([]string{"Error", "Message", "Reason", "Words", "Err"}, s.Sel.Name)
		return true
	})
	return found
}
