package bowline

import (
	"slices"
	"strings"
	"testing"
)

// TestWholeClientsetIsNotLinked: one call of client-go's own constructor links the clients of every
// API group: 5 MB of program, a part of which is resident in every process. Package kubeclient has a
// clientset of what a node needs (clientset.go).
func TestWholeClientsetIsNotLinked(t *testing.T) {
	if got := wholeClientsets(typedText("package p\n\nimport k \"k8s.io/client-go/kubernetes\"\n\nvar _, _ = k.NewForConfig(nil)\n")); !slices.Equal(got, []string{"p.go:5: NewForConfig"}) {
		t.Fatalf("a call of NewForConfig under another name: found %q", got)
	}
	for _, p := range typedModule() {
		if !strings.HasPrefix(p.path, "provider/vktest") {
			for _, call := range wholeClientsets(p) {
				t.Errorf("%s links the clients of every API group: use kubeclient.New, or take a kubernetes.Interface", call)
			}
		}
	}
}

// wholeClientsets returns where a package names a constructor of client-go's clientset.
func wholeClientsets(p typed) (found []string) {
	for id, of := range p.Uses {
		if of.Pkg() != nil && of.Pkg().Path() == "k8s.io/client-go/kubernetes" && strings.HasPrefix(of.Name(), "New") {
			found = append(found, at(id)+": "+of.Name())
		}
	}
	return found
}
