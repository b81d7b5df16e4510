package bowline

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/bowline-k8s/bowline"

// rule forbids a package of the module to import something, and says why.
type rule struct {
	from   string   // package path below the module; a trailing /... includes its children
	banned []string // import paths; a trailing /... includes children
	why    string
	deep   bool // the packages of the module that it imports must not import them either
}

// direct is a rule for what a package imports itself.
func direct(from string, banned []string, why string) rule {
	return rule{from: from, banned: banned, why: why}
}

var rules = []rule{
	direct("syncloop/admit", []string{"time"}, "what an owner allows does not depend on the time"),
	direct("syncloop/images", []string{module + "/syncloop/images/credentialprovider", "os", "os/exec"}, "an image is pulled on the machine; what runs beside this process is apart"),
	direct("syncloop/images/credentialprovider", []string{module + "/host/...", module + "/cri/...", "k8s.io/client-go/..."}, "a program is run beside this process, for whatever machine and by whatever way"),
	direct("syncloop/podcerts", []string{module + "/..."}, "a pod's certificates concern the API server, and no machine"),
	direct("host/logind", []string{module + "/host/ssh/...", module + "/host/local"}, "logind is asked the same way, however the machine is reached"),
	direct("wall", append([]string{module + "/..."}, impure...), "the clock is below everything that goes by it"),
	direct("pod", []string{module + "/..."}, "the vocabulary is at the bottom: values only"),
	direct("pool", []string{module + "/cri/...", module + "/host/...", module + "/syncloop/...", module + "/provider/...", "k8s.io/client-go/...", "os", "net", "google.golang.org/grpc/..."}, "a pool manages hosts by their names, and does not know what a host is"),
	direct("host/...", []string{module + "/cri/...", module + "/syncloop/...", module + "/provider/...", module + "/config/..."}, "a machine knows nothing of pods' loops"),
	direct("host/local", []string{module + "/host/ssh/..."}, "two kinds of machine share what is pure (host/internal/machine), and nothing else"),
	direct("host/ssh/...", []string{module + "/host/local"}, "two kinds of machine share what is pure (host/internal/machine), and nothing else"),
	direct("host/budget", append([]string{module + "/..."}, "net", "os", "io", "google.golang.org/grpc/...", "k8s.io/klog/..."), "budgets are counted in one place, whatever is read and from which host"),
	direct("host/relisten", []string{module + "/host/ssh/...", module + "/host/local"}, "what is listened on comes and goes, by whatever way"),
	direct("host/internal/machine", []string{"os", "os/exec", "io", "net/http", "golang.org/x/sys/..."}, "what is known of machines is the same however they are reached"),
	direct("host/ssh/endpoint", []string{module + "/host", module + "/host/ssh/link", module + "/host/ssh/shell"}, "an endpoint is read, and knows no machine"),
	direct("nodecert", []string{module + "/..."}, "a node's certificates concern the API server, and no machine and no pod"),
	direct("cri/...", []string{module + "/syncloop/...", module + "/provider/...", module + "/config/..."}, "the runtime's client serves the loop, not the other way round"),
	direct("syncloop/...", []string{module + "/provider/...", module + "/config", "github.com/virtual-kubelet/..."}, "the loop works without virtual-kubelet and is configured by values"),
	direct("provider/...", []string{module + "/config"}, "its callers read the configuration"),
	direct("provider/clusterwide", []string{module + "/..."}, "what is the same for every node concerns the API server, and no node by itself"),
	direct("hostcheck", []string{module + "/provider/...", module + "/config", module + "/syncloop", "k8s.io/client-go/..."}, "a look at a machine needs no cluster and no loop"),
	direct("api/...", []string{module + "/config", module + "/hosts", module + "/host/...", "k8s.io/client-go/...", "k8s.io/klog/..."}, "a client of Host objects needs only their types"),
	direct("hosts", []string{module + "/syncloop/...", module + "/provider/...", module + "/cri/...", module + "/host/...", module + "/prepare", module + "/pool"}, "a Host object becomes a host configuration; how it is managed does not matter"),
	direct("hostadmin", []string{module + "/config", module + "/pool", module + "/provider/...", module + "/cri/...", module + "/prepare", "github.com/spf13/cobra", "os", "os/exec"}, "the caller talks to the user; hostadmin manages no host"),
	direct("hosts/shard", []string{module + "/..."}, "every replica decides the same from the same input"),
	direct("hosts/replica", []string{module + "/hosts", module + "/pool", module + "/host/...", module + "/cri/...", module + "/syncloop/...", module + "/provider/..."}, "which replica owns a host depends neither on its configuration nor on how it is managed"),
	direct("drain", []string{module + "/..."}, "a node is drained through the API server alone"),
	direct("kubeclient", []string{module + "/host/...", module + "/cri/...", module + "/syncloop/...", module + "/provider/...", module + "/config"}, "a client concerns the API server alone"),
	direct("logonce", []string{module + "/...", "k8s.io/klog/...", "time"}, "what was logged before decides about nothing else"),
	direct("notify", []string{module + "/..."}, "a signal carries nothing"),
	direct("cluster", []string{module + "/connect", module + "/node", module + "/ownership", module + "/host/ssh/...", module + "/host/local", module + "/pool"}, "which cluster answers does not depend on the way to the host"),
	direct("ownership", []string{module + "/connect", module + "/node", module + "/provider/...", module + "/pool", "k8s.io/client-go/..."}, "who owns a host is decided on the host, before anything of a node"),
	direct("connect", []string{module + "/node", module + "/provider/...", module + "/pool", module + "/cluster"}, "a host is reached whatever it is used for"),
	direct("readiness", []string{module + "/node", module + "/pool", module + "/syncloop/..."}, "readiness is made of the runtime's status and the link's"),
	direct("node", []string{module + "/fleet", module + "/pool", module + "/release", module + "/prepare", module + "/hostadmin", "github.com/spf13/cobra"}, "one node knows neither the others nor how its host is given back"),
	direct("fleet", []string{"github.com/spf13/cobra", module + "/hostadmin"}, "commands start it, not the other way round"),
	direct("release", []string{module + "/node", module + "/host/ssh/...", module + "/host/local", module + "/pool", module + "/fleet", "github.com/spf13/cobra"}, "a host is released without a node and without a terminal"),
	direct("prepare", []string{module + "/node", module + "/host/ssh/...", module + "/host/local", module + "/cluster", module + "/pool", module + "/syncloop", module + "/provider/...", module + "/release", "github.com/spf13/cobra"}, "a host is prepared before it is a node"),
	direct("configure", []string{module + "/node", module + "/pool", module + "/cri/...", module + "/syncloop/...", "github.com/spf13/cobra"}, "a configuration is written without managing anything"),
	direct("test/audit", []string{module + "/...", "k8s.io/client-go/...", "os", "net"}, "the checks of an audit log are pure"),
	direct("config", []string{module + "/pool", module + "/hosts", module + "/syncloop/...", module + "/provider/...", module + "/cri/..."}, "the configuration describes, it does not act"),
}

// shared are the parts of syncloop that other parts may import, with the reason for each.
var shared = map[string]string{
	"probehttp": "probes and hooks make the same requests",
	"periodic":  "garbage collection and log rotation run in the same loop",
	"admit":     "the allocation manager decides by it, and a worker on what is added to its pod later",
}

// Two packages may be imported where a rule bans the whole module, unless the rule names them: one
// only concerns time, the other only what was logged before.
const (
	clock   = module + "/wall"
	logonce = module + "/logonce"
)

// TestImports: a part of syncloop is a directory below it. Parts do not import each other, so that
// each can be read alone.
func TestImports(t *testing.T) {
	imports := importsOf(t)
	for _, problem := range violations(imports, rules, shared) {
		t.Error(problem)
	}
}

// dependenciesOf lists all packages that the module consists of.
func dependenciesOf(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return strings.Fields(string(out))
}

// importsOf lists the imports of each package of the module, by its path in the module.
func importsOf(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}: {{join .Imports " "}}`, "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	imports := map[string][]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		from, list, _ := strings.Cut(line, ":")
		imports[strings.TrimPrefix(from, module+"/")] = strings.Fields(list)
	}
	return imports
}

// violations are the forbidden imports, and the rules and exceptions that match nothing: a rule for
// a renamed package guards nothing.
func violations(imports map[string][]string, rules []rule, shared map[string]string) (found []string) {
	fromUsed, sharedUsed := make([]bool, len(rules)), map[string]bool{}
	exists := func(pattern string) bool {
		for short := range imports {
			if matches(module+"/"+short, pattern) {
				return true
			}
		}
		return false
	}
	for short, list := range imports {
		for i, r := range rules {
			if !matches(short, r.from) {
				continue
			}
			fromUsed[i] = true
			for imp, via := range reached(imports, short) {
				if via != "" && !r.deep {
					continue
				}
				for _, b := range r.banned {
					if matches(imp, b) && imp != module+"/"+short && (imp != clock && imp != logonce || b == imp) {
						found = append(found, short+" imports "+imp+via+": "+r.why)
					}
				}
			}
		}
		for _, imp := range list {
			a, b := part(short), part(strings.TrimPrefix(imp, module+"/"))
			switch {
			case a == "" || b == "" || a == b:
			case shared[b] != "":
				sharedUsed[b] = true
			default:
				found = append(found, short+" imports "+imp+": the parts of syncloop do not know each other")
			}
		}
	}
	for i, r := range rules {
		if !fromUsed[i] {
			found = append(found, "no package matches the rule for "+r.from)
		}
		for _, b := range r.banned {
			if strings.HasPrefix(b, module+"/") && b != module+"/..." && !exists(b) {
				found = append(found, "the rule for "+r.from+" bans "+b+", which does not exist")
			}
		}
	}
	for name := range shared {
		if !sharedUsed[name] {
			found = append(found, "no part of syncloop imports "+name+", which is excepted")
		}
	}
	slices.Sort(found)
	return found
}

// reached returns what a package imports, itself or through other packages of the module. The value
// is empty for its own imports, and else names the package in between. The clock imports what it
// needs to read the time.
func reached(imports map[string][]string, short string) map[string]string {
	all := map[string]string{}
	var walk func(from, via string)
	walk = func(from, via string) {
		for _, imp := range imports[from] {
			if _, seen := all[imp]; seen {
				continue
			}
			all[imp] = via
			if inner, ours := strings.CutPrefix(imp, module+"/"); ours && imp != clock {
				walk(inner, " through "+inner)
			}
		}
	}
	walk(short, "")
	return all
}

// part is the directory of syncloop that a package belongs to, or empty.
func part(short string) string {
	rest, ok := strings.CutPrefix(short, "syncloop/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

func TestViolations(t *testing.T) {
	imports := map[string][]string{
		"pod": {"time"}, "syncloop": {module + "/syncloop/a"}, "syncloop/a": {module + "/syncloop/b"},
		"wall": nil, "low": {clock}, "pure": {clock},
		"helper": {"os"}, "between": {module + "/helper"}, "deep": {module + "/between"}, "flat": {module + "/helper"},
		"syncloop/b": {"os"}, "syncloop/b/sub": {module + "/syncloop/b"}, "syncloop/c": {module + "/syncloop/tool"}, "syncloop/tool": nil,
	}
	got := violations(imports, []rule{
		direct("syncloop/b", []string{"os"}, "pure"),
		direct("syncloop/renamed", []string{"os"}, "pure"),
		direct("pod", []string{module + "/gone", module + "/syncloop/..."}, "low"),
		direct("low", []string{module + "/..."}, "low"),
		direct("pure", []string{clock}, "no clock"),
		{from: "deep", banned: []string{"os"}, why: "deep", deep: true},
		direct("flat", []string{"os"}, "flat"),
	}, map[string]string{"tool": "used by all", "b/old": "not there"})
	want := []string{
		"deep imports os through helper: deep",
		"no package matches the rule for syncloop/renamed",
		"no part of syncloop imports b/old, which is excepted",
		"pure imports " + clock + ": no clock",
		"syncloop/a imports " + module + "/syncloop/b: the parts of syncloop do not know each other",
		"syncloop/b imports os: pure",
		"the rule for pod bans " + module + "/gone, which does not exist",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
}

func matches(path, pattern string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == base || strings.HasPrefix(path, base+"/")
	}
	return path == pattern
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		path, pattern string
		want          bool
	}{
		{"cri", "cri/...", true}, {"cri/fake", "cri/...", true}, {"crisp", "cri/...", false},
		{"net", "net", true}, {"net/netip", "net", false},
	} {
		if got := matches(c.path, c.pattern); got != c.want {
			t.Errorf("matches(%q, %q) = %v", c.path, c.pattern, got)
		}
	}
}
