// Package corpus gives a fuzz target the inputs that earlier runs of hack/fuzz.sh found: those that
// reached new code.
package corpus

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Add adds the inputs of testdata/corpus/TARGET to the target's seeds. Without a corpus, the target
// has only its own seeds.
func Add(f *testing.F) {
	f.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "corpus", f.Name()))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	testutil.Must(f, err)
	inputs, err := parse(data)
	if err != nil {
		f.Fatalf("testdata/corpus/%s: %v", f.Name(), err)
	}
	for _, input := range inputs {
		f.Add(input...)
	}
}

// parse reads inputs, one a line. A line has the arguments of the target, as in go test's own files,
// with a tab between two of them.
func parse(data []byte) ([][]any, error) {
	var inputs [][]any
	for n, line := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
		var input []any
		for text := range strings.SplitSeq(line, "\t") {
			v, err := value(text)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", n+1, err)
			}
			input = append(input, v)
		}
		inputs = append(inputs, input)
	}
	return inputs, nil
}

// value reads one argument of an input, a conversion such as int64(5) or []byte("text").
func value(line string) (any, error) {
	e, err := parser.ParseExpr(line)
	if err != nil {
		return nil, err
	}
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return nil, fmt.Errorf("%q is not a conversion", line)
	}
	text, err := literal(call.Args[0])
	if err != nil {
		return nil, err
	}
	if _, ok := call.Fun.(*ast.ArrayType); ok {
		s, err := strconv.Unquote(text)
		return []byte(s), err
	}
	name, ok := call.Fun.(*ast.Ident)
	if !ok {
		return nil, fmt.Errorf("%q converts to no type that a target has", line)
	}
	switch name.Name {
	case "string":
		return strconv.Unquote(text)
	case "int":
		return strconv.Atoi(text)
	case "int64":
		return strconv.ParseInt(text, 10, 64)
	case "bool":
		return strconv.ParseBool(text)
	}
	return nil, fmt.Errorf("%q converts to no type that a target has", line)
}

// literal is the text of a string, of a boolean, or of a number with its sign.
func literal(e ast.Expr) (string, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return e.Value, nil
	case *ast.Ident:
		if e.Name == "true" || e.Name == "false" {
			return e.Name, nil
		}
	case *ast.UnaryExpr:
		if e.Op == token.SUB {
			text, err := literal(e.X)
			return "-" + text, err
		}
	}
	return "", errors.New("no string, number or boolean")
}
