// Package corpus gives a fuzz target the inputs that earlier runs of hack/fuzz.sh found: those that
// reached new code.
package corpus

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// header begins each input, in the format of go test's files in testdata/fuzz.
const header = "go test fuzz v1\n"

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

// parse reads inputs, one after the other.
func parse(data []byte) ([][]any, error) {
	var inputs [][]any
	for n, line := range bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
		if string(line)+"\n" == header {
			inputs = append(inputs, nil)
			continue
		}
		if len(inputs) == 0 {
			return nil, fmt.Errorf("line %d: no %q before it", n+1, header)
		}
		v, err := value(string(line))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
		last := len(inputs) - 1
		inputs[last] = append(inputs[last], v)
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
	}
	return nil, fmt.Errorf("%q converts to no type that a target has", line)
}

// literal is the text of a string or of a number, with its sign.
func literal(e ast.Expr) (string, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return e.Value, nil
	case *ast.UnaryExpr:
		if e.Op == token.SUB {
			text, err := literal(e.X)
			return "-" + text, err
		}
	}
	return "", errors.New("neither a string nor a number")
}
