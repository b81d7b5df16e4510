package bowline

import (
	"go/types"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// declaration is how a package comment says that the functions of its package depend on their
// arguments alone. The rest of the sentence says on which.
const declaration = "The package is pure: "

// impure is what a pure package must not import.
var impure = []string{"context", "sync", "sync/atomic", "os", "os/exec", "os/signal", "syscall", "io", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand",
	"google.golang.org/grpc/...", "k8s.io/klog/...", "log", "log/slog", "k8s.io/client-go/...", "golang.org/x/sys/...", "golang.org/x/sync/...",
	"k8s.io/apimachinery/pkg/util/rand", "k8s.io/apimachinery/pkg/util/uuid", "k8s.io/apimachinery/pkg/util/wait", "k8s.io/utils/clock/..."}

// impureNames is what a pure package must not use of packages that it may import, or that a change
// of the list above would allow; "*" is everything.
var impureNames = map[string][]string{
	"time":                                 {"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"},
	"k8s.io/apimachinery/pkg/apis/meta/v1": {"Now"},
	"context":                              {"*"},
	"os":                                   {"*"},
	"crypto/rand":                          {"*"},
	"k8s.io/klog/v2":                       {"*"},
}

// TestPure: what a package decides can only be replayed if its comment is true.
func TestPure(t *testing.T) {
	for _, problem := range pureProblems(importsOf(t), typedModule()...) {
		t.Error(problem)
	}
	dependencies := dependenciesOf(t)
	for _, banned := range impure {
		if !slices.ContainsFunc(dependencies, func(p string) bool { return matches(p, banned) }) {
			t.Errorf("pure packages may not import %s, which the module does not consist of", banned)
		}
	}
}

// pureProblems finds pure packages that are not pure, and packages that should be by their names.
// Whatever a pure package imports of the module must be pure as well.
func pureProblems(imports map[string][]string, packages ...typed) (found []string) {
	declared := declaredPure(packages...)
	for _, p := range packages {
		name := path.Base(p.path)
		if (strings.HasSuffix(name, "policy") || slices.Contains([]string{"plan", "status", "spec"}, name)) && !declared[p.path] {
			found = append(found, p.path+" decides by its name, and its comment does not say: "+declaration+"...")
		}
		if !declared[p.path] {
			continue
		}
		for _, imp := range imports[p.path] {
			if short, ours := strings.CutPrefix(imp, module+"/"); ours && !declared[short] || slices.ContainsFunc(impure, func(b string) bool { return matches(imp, b) }) {
				found = append(found, p.path+" says that it is pure, and imports "+imp)
			}
		}
		found = append(found, p.impureUses()...)
	}
	if len(declared) == 0 {
		found = append(found, "no package says that it is pure")
	}
	slices.Sort(found)
	return found
}

// declaredPure are the packages whose comments say so.
func declaredPure(packages ...typed) set {
	declared := set{}
	for _, p := range packages {
		for _, file := range p.files {
			if strings.Contains(strings.Join(strings.Fields(file.Doc.Text()), " "), declaration) {
				declared[p.path] = true
			}
		}
	}
	return declared
}

// impureUses returns what a package uses of the clock, the machine, the log, or chance without a
// seed.
func (p typed) impureUses() (found []string) {
	for id, used := range p.Uses {
		if used.Pkg() == nil {
			continue
		}
		banned := impureNames[used.Pkg().Path()]
		is := slices.Contains(banned, used.Name()) || slices.Contains(banned, "*")
		if f, ok := used.(*types.Func); ok {
			if f.Signature().Recv() != nil && !slices.Contains(banned, "*") {
				continue // such as After of a time
			}
			is = is || strings.HasPrefix(f.Pkg().Path()+"/", "math/rand/") && f.Signature().Recv() == nil && !strings.HasPrefix(f.Name(), "New")
		}
		if is {
			found = append(found, at(id)+" uses "+used.Pkg().Name()+"."+used.Name()+" in a pure package")
		}
	}
	return found
}

// TestPureFinds plants each kind of violation.
func TestPureFinds(t *testing.T) {
	p := typedText(`// Package p decides. The package
// is pure: it depends on nothing.
package p
import ("context"; "math/rand"; "os"; "time"; metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"; "k8s.io/klog/v2")
func f(t time.Time, r *rand.Rand) bool {
	_ = time.Now()
	_ = time.Since(t)
	read := time.Now
	time.Sleep(time.Second)
	_ = metav1.Now()
	_ = rand.Int()
	_ = os.Args
	_ = context.TODO()
	klog.Info("x")
	_ = read

	_ = rand.New(rand.NewSource(1)).Int() + r.Int()
	_ = metav1.NewTime(t)
	return t.After(t.Add(time.Until(t)))
}
`)
	policy := typed{path: "syncloop/some/somepolicy"}
	got := pureProblems(map[string][]string{"p": {"os", "time", module + "/pod", "k8s.io/klog/v2"}}, p, policy)
	want := []string{
		"p says that it is pure, and imports " + module + "/pod",
		"p says that it is pure, and imports k8s.io/klog/v2",
		"p says that it is pure, and imports os",
		"p.go:10 uses v1.Now in a pure package",
		"p.go:11 uses rand.Int in a pure package",
		"p.go:12 uses os.Args in a pure package",
		"p.go:13 uses context.TODO in a pure package",
		"p.go:14 uses klog.Info in a pure package",
		"p.go:19 uses time.Until in a pure package",
		"p.go:6 uses time.Now in a pure package",
		"p.go:7 uses time.Since in a pure package",
		"p.go:8 uses time.Now in a pure package",
		"p.go:9 uses time.Sleep in a pure package",
		"syncloop/some/somepolicy decides by its name, and its comment does not say: " + declaration + "...",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	if got := pureProblems(nil, policy); !slices.Contains(got, "no package says that it is pure") {
		t.Errorf("got %v", got)
	}
}

// TestPureList: ARCHITECTURE.md lists the pure packages.
func TestPureList(t *testing.T) {
	src, err := os.ReadFile("ARCHITECTURE.md")
	testutil.Must(t, err)
	_, rest, _ := strings.Cut(string(src), "- **Pure packages** ")
	line, _, _ := strings.Cut(rest, "\n")
	_, list, ok := strings.Cut(line, "They are ")
	declared, listed := declaredPure(typedModule()...), set{}
	for _, m := range quoted.FindAllStringSubmatch(list, -1) {
		for _, name := range []string{m[1], "syncloop/" + m[1]} {
			listed[name] = true
		}
		if !declared[m[1]] && !declared["syncloop/"+m[1]] && m[1] != "syncloop" {
			t.Errorf("ARCHITECTURE.md lists %s among the pure packages, and its comment does not say: %s...", m[1], declaration)
		}
	}
	for name := range declared {
		if !listed[name] || !ok {
			t.Errorf("ARCHITECTURE.md does not list %s among the pure packages", name)
		}
	}
}
