package config

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestKubeletFields: a user who brings a kubelet's configuration finds each of its fields here, or the reason
// in docs/running.md.
func TestKubeletFields(t *testing.T) {
	own := jsonFields(reflect.TypeFor[Host]()) // apiVersion and kind are of the file
	for name, typ := range jsonFields(reflect.TypeFor[BowlineConfiguration]()) {
		own[name] = typ
	}
	lacking := lackingFields(t)
	for _, name := range missing("", jsonFields(reflect.TypeFor[kubeletconfig.KubeletConfiguration]()), own) {
		if _, ok := lacking[name]; !ok {
			t.Errorf("the configuration lacks a kubelet's %s, and docs/running.md does not say why", name)
		}
		delete(lacking, name)
	}
	for name := range lacking {
		t.Errorf("docs/running.md: no kubelet has %s, or the configuration has it", name)
	}
}

// missing lists the fields of a kubelet that are not in own, those of maps within by their paths. If the whole
// map is of the same type, it has them all.
func missing(prefix string, kubelet, own map[string]reflect.Type) (names []string) {
	for _, name := range sortedKeys(kubelet) {
		typ, ok := own[name]
		if !ok {
			names = append(names, prefix+name)
			continue
		}
		theirs, ours := plain(kubelet[name]), plain(typ)
		if theirs != ours && theirs.Kind() == reflect.Struct && ours.Kind() == reflect.Struct {
			names = append(names, missing(prefix+name+".", jsonFields(theirs), jsonFields(ours))...)
		}
	}
	return names
}

func plain(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}

var (
	row    = regexp.MustCompile("(?m)^\\| (`[A-Za-z0-9.]+`(?:, `[A-Za-z0-9.]+`)*) \\| (.+) \\|$")
	quoted = regexp.MustCompile("`([A-Za-z0-9.]+)`")
)

// lackingFields are the fields in the table of docs/running.md, with the reasons.
func lackingFields(t *testing.T) map[string]string {
	t.Helper()
	_, section, ok := strings.Cut(string(testutil.ReadFile(t, "../docs/running.md")), "## Fields of a kubelet that Bowline rejects\n")
	if !ok {
		t.Fatal("docs/running.md does not list the fields that Bowline rejects")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	out := map[string]string{}
	for _, r := range row.FindAllStringSubmatch(section, -1) {
		for _, name := range quoted.FindAllStringSubmatch(r[1], -1) {
			if out[name[1]] != "" {
				t.Errorf("docs/running.md lists %s twice", name[1])
			}
			out[name[1]] = r[2]
		}
	}
	return out
}
