package kubelettest

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/component-base/metrics"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

var update = flag.Bool("update", false, "write families.txt from the kubelet's source")

// directories are those of k8s.io/kubernetes whose packages declare a kubelet's metrics.
var directories = []string{"pkg/kubelet", "pkg/credentialprovider/plugin", "pkg/volume/util", "cmd/kubelet/app"}

// TestFamilies: families.txt has the families of the kubelet that lab/kube builds. Where its module
// is not downloaded, the committed table counts.
func TestFamilies(t *testing.T) {
	module, version := kubernetes(t)
	got := fmt.Sprintf("# The metrics that k8s.io/kubernetes %s declares in %s.\n# go test ./kubeletmetrics/kubelettest -update writes this file.\n",
		version, strings.Join(directories, ", "))
	s := source{texts: map[string]ast.Expr{}, collected: map[string]string{}, found: map[string]Family{}}
	for _, dir := range directories {
		testutil.Must(t, s.read(filepath.Join(module, dir)))
	}
	testutil.Must(t, s.declared())
	for _, name := range slices.Sorted(maps.Keys(s.found)) {
		got += s.found[name].line() + "\n"
	}
	if *update {
		testutil.Must(t, os.WriteFile("families.txt", []byte(got), 0o644))
	} else if got != families {
		t.Errorf("families.txt differs from %s: run this test with -update", module)
	}
	for name, f := range Families() {
		if f.line() != s.found[name].line() && !*update {
			t.Errorf("%s is read as %q", name, f.line())
		}
	}
}

// kubernetes returns the directory and the version of the module in the module cache.
func kubernetes(t *testing.T) (dir, version string) {
	t.Helper()
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}} {{.Version}}", "k8s.io/kubernetes")
	cmd.Dir = "../../lab/kube"
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-mod=mod")
	out, err := cmd.Output()
	if dir, version, _ = strings.Cut(strings.TrimSpace(string(out)), " "); err != nil || dir == "" {
		t.Skipf("the module k8s.io/kubernetes is not downloaded: %v", err)
	}
	return dir, version
}

// source are parsed packages.
type source struct {
	files []*ast.File
	// texts are the values of constants and variables, by name; the names differ between packages.
	texts map[string]ast.Expr
	// collected are the types of metrics that collectors make, by the variable of their description.
	collected map[string]string
	found     map[string]Family
}

func (s *source) read(root string) error {
	positions := token.NewFileSet()
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") || strings.HasSuffix(p, "_windows.go") {
			return err
		}
		f, err := parser.ParseFile(positions, p, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		s.files = append(s.files, f)
		ast.Inspect(f, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == len(v.Names) {
				for i, name := range v.Names {
					s.texts[name.Name] = v.Values[i]
				}
			}
			return true
		})
		return nil
	})
}

// declared finds the calls that declare a metric.
func (s *source) declared() error {
	var errs []error
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i := range n.Values {
					errs = append(errs, s.declare(n.Names[i].Name, n.Values[i]))
				}
			case *ast.AssignStmt:
				for i := range n.Rhs {
					errs = append(errs, s.declare("", n.Rhs[i]))
				}
			case *ast.CallExpr:
				switch called(n) {
				case "NewLazyConstMetric", "NewConstMetric":
					s.collect(n)
				case "RawMustRegister", "MustRegister":
					for _, arg := range n.Args {
						errs = append(errs, s.declare("", arg))
					}
				}
			}
			return true
		})
	}
	for name, f := range s.found {
		if kind, ok := strings.CutPrefix(f.Type, "by "); ok {
			f.Type = s.collected[kind]
			s.found[name] = f
		}
	}
	return errors.Join(errs...)
}

// collect notes the type of a metric that a collector makes.
func (s *source) collect(call *ast.CallExpr) {
	if len(call.Args) < 2 {
		return
	}
	if d, ok := call.Args[0].(*ast.Ident); ok {
		switch selected(call.Args[1]) {
		case "GaugeValue":
			s.collected[d.Name] = "gauge"
		case "CounterValue":
			s.collected[d.Name] = "counter"
		}
	}
}

// declare records the family that an expression declares, if it does; variable is assigned to it.
func (s *source) declare(variable string, e ast.Expr) error {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return nil
	}
	var f Family
	kind := called(call)
	switch kind {
	case "NewDesc":
		name, ok := s.text(call.Args[0])
		if !ok {
			return nil // of the container runtime
		}
		f = Family{Name: name, Type: "by " + variable}
	case "NewCounter", "NewCounterVec", "NewGauge", "NewGaugeVec", "NewGaugeFunc", "NewHistogram", "NewHistogramVec":
		f.Type = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(kind, "New"), "Vec"), "Func"))
		if err := s.options(call.Args[0], &f); err != nil {
			return err
		}
		if f.Type == "histogram" {
			f.Buckets = buckets(f.Buckets)
		}
	default:
		return nil
	}
	at := map[bool]int{true: 2, false: 1}[kind == "NewDesc"]
	if (kind == "NewDesc" || strings.HasSuffix(kind, "Vec")) && len(call.Args) > at {
		labels, err := s.labels(call.Args[at])
		if err != nil {
			return fmt.Errorf("the labels of %s: %w", f.Name, err)
		}
		f.Labels = labels
	}
	s.found[f.Name] = f
	return nil
}

// options reads &metrics.CounterOpts{...}.
func (s *source) options(e ast.Expr, f *Family) error {
	pointer, ok := e.(*ast.UnaryExpr)
	if !ok {
		return fmt.Errorf("no options: %v", e)
	}
	parts := map[string]string{}
	for _, field := range pointer.X.(*ast.CompositeLit).Elts {
		kv := field.(*ast.KeyValueExpr)
		switch key := kv.Key.(*ast.Ident).Name; key {
		case "Namespace", "Subsystem", "Name":
			text, ok := s.text(kv.Value)
			if !ok {
				return fmt.Errorf("the %s %v of a metric is no constant", key, kv.Value)
			}
			parts[key] = text
		case "Buckets":
			bounds, err := s.buckets(kv.Value)
			if err != nil {
				return err
			}
			f.Buckets = bounds
		}
	}
	f.Name = metrics.BuildFQName(parts["Namespace"], parts["Subsystem"], parts["Name"])
	return nil
}

func (s *source) labels(e ast.Expr) ([]string, error) {
	switch e := e.(type) {
	case *ast.Ident:
		if e.Name == "nil" {
			return nil, nil
		}
		if at, ok := s.texts[e.Name]; ok {
			return s.labels(at)
		}
	case *ast.CompositeLit:
		var out []string
		for _, part := range e.Elts {
			text, ok := s.text(part)
			if !ok {
				return nil, fmt.Errorf("%v is no constant", part)
			}
			out = append(out, text)
		}
		slices.Sort(out)
		return out, nil
	}
	return nil, fmt.Errorf("%T is no list", e)
}

// text evaluates a string.
func (s *source) text(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.Ident, *ast.SelectorExpr:
		at, ok := s.texts[selected(e)]
		if !ok {
			return "", false
		}
		return s.text(at)
	case *ast.BinaryExpr:
		x, ok1 := s.text(e.X)
		y, ok2 := s.text(e.Y)
		return x + y, ok1 && ok2
	case *ast.CallExpr:
		if called(e) == "string" {
			return s.text(e.Args[0])
		}
		if called(e) != "BuildFQName" {
			return "", false
		}
		var parts [3]string
		for i := range parts {
			text, ok := s.text(e.Args[i])
			if !ok {
				return "", false
			}
			parts[i] = text
		}
		return metrics.BuildFQName(parts[0], parts[1], parts[2]), true
	}
	return "", false
}

// buckets evaluates the bounds of a histogram.
func (s *source) buckets(e ast.Expr) ([]float64, error) {
	switch e := e.(type) {
	case *ast.Ident, *ast.SelectorExpr:
		if selected(e) == "DefBuckets" {
			return metrics.DefBuckets, nil
		}
		if at, ok := s.texts[selected(e)]; ok {
			return s.buckets(at)
		}
	case *ast.CompositeLit:
		return numbers(e.Elts)
	case *ast.CallExpr:
		if v, err := numbers(e.Args); err == nil && len(v) == 3 {
			switch called(e) {
			case "ExponentialBuckets":
				return metrics.ExponentialBuckets(v[0], v[1], int(v[2])), nil
			case "ExponentialBucketsRange":
				return metrics.ExponentialBucketsRange(v[0], v[1], int(v[2])), nil
			}
		}
	}
	return nil, fmt.Errorf("%v are no buckets", e)
}

func numbers(list []ast.Expr) (out []float64, err error) {
	for _, e := range list {
		lit, ok := e.(*ast.BasicLit)
		if !ok {
			return nil, fmt.Errorf("%v is no number", e)
		}
		n, err := strconv.ParseFloat(lit.Value, 64)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// selected is the last name of a name.
func selected(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// called is the name of the called function.
func called(call *ast.CallExpr) string { return selected(call.Fun) }
