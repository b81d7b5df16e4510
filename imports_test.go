package bowline

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/bowline-k8s/bowline"

// rule forbids a package of the module to import something, itself or through other packages of the
// module, and says why.
type rule struct {
	from   string   // package path below the module; a trailing /... includes its children
	banned []string // import paths; a trailing /... includes children
	why    string
	named  bool     // what it imports through others is allowed
	but    []string // import paths that are allowed, although they match
}

// ban is a rule for all that a package imports, itself or through others.
func ban(from string, banned []string, why string) rule {
	return rule{from: from, banned: banned, why: why}
}

// direct is a rule for what a package names itself, where it is meant to reach that through others.
// The reason says how.
func direct(from string, banned []string, why string) rule {
	return rule{from: from, banned: banned, why: why, named: true}
}

// except allows some of what a rule bans. The packages that it names bring in nothing else that is
// banned.
func (r rule) except(allowed ...string) rule {
	r.but = allowed
	return r
}

const endpoint = module + "/host/ssh/endpoint" // parses addresses; configurations have them

var rules = []rule{
	direct("syncloop/admit", []string{"time"}, "what an owner allows does not depend on the time; a pod of package pod has times"),
	ban("syncloop/images", []string{module + "/syncloop/images/credentialprovider", "os", "os/exec"}, "an image is pulled on the machine; what runs beside this process is apart"),
	direct("syncloop/images/credentialprovider", []string{module + "/host/...", module + "/cri/..."}, "a program is run beside this process, for whatever machine and by whatever way; images, whose credentials these are, knows the machine"),
	direct("syncloop/images/credentialprovider", []string{"k8s.io/client-go/..."}, "tokens come by a function"),
	ban("syncloop/podcerts", []string{module + "/..."}, "a pod's certificates concern the API server, and no machine"),
	ban("host/logind", []string{module + "/host/ssh/...", module + "/host/local"}, "logind is asked the same way, however the machine is reached"),
	ban("wall", append([]string{module + "/..."}, impure...), "the clock is below everything that goes by it"),
	ban("pod", []string{module + "/..."}, "the vocabulary is at the bottom: values only"),
	ban("pool", []string{module + "/cri/...", module + "/host/...", module + "/syncloop/...", module + "/provider/...", "k8s.io/client-go/...", "google.golang.org/grpc/..."}, "a pool manages hosts by their names, and does not know what a host is").except(endpoint),
	direct("pool", []string{"os", "net"}, "a pool reaches nothing itself; its configurations have addresses and paths"),
	ban("host/...", []string{module + "/cri/...", module + "/syncloop/...", module + "/provider/...", module + "/config/..."}, "a machine knows nothing of pods' loops"),
	ban("host/local", []string{module + "/host/ssh/..."}, "two kinds of machine share what is pure (host/internal/machine), and nothing else"),
	ban("host/ssh/...", []string{module + "/host/local"}, "two kinds of machine share what is pure (host/internal/machine), and nothing else"),
	ban("host/budget", append([]string{module + "/..."}, "net", "os", "io", "google.golang.org/grpc/...", "k8s.io/klog/..."), "budgets are counted in one place, whatever is read and from which host"),
	ban("host/relisten", []string{module + "/host/ssh/...", module + "/host/local"}, "what is listened on comes and goes, by whatever way"),
	ban("host/internal/machine", []string{"os", "os/exec", "net/http", "golang.org/x/sys/..."}, "what is known of machines is the same however they are reached"),
	direct("host/internal/machine", []string{"io"}, "what is known of machines is the same however they are reached; the interfaces of host have readers"),
	ban("host/ssh/endpoint", []string{module + "/host", module + "/host/ssh/link", module + "/host/ssh/shell"}, "an endpoint is read, and knows no machine"),
	ban("nodecert", []string{module + "/..."}, "a node's certificates concern the API server, and no machine and no pod"),
	ban("cri/...", []string{module + "/syncloop/...", module + "/provider/...", module + "/config/..."}, "the runtime's client serves the loop, not the other way round"),
	ban("syncloop/...", []string{module + "/provider/...", module + "/config", "github.com/virtual-kubelet/..."}, "the loop works without virtual-kubelet and is configured by values"),
	ban("stats", []string{module + "/syncloop/...", module + "/provider/...", module + "/config", module + "/cri/...", module + "/host/ssh/...", module + "/host/local", "k8s.io/client-go/..."}, "what is used is measured on any host, and the pods come by a function"),
	ban("nodelogs", []string{module + "/syncloop/...", module + "/provider/...", module + "/config", module + "/cri/...", module + "/host/ssh/...", module + "/host/local", "k8s.io/client-go/..."}, "logs are read from any host"),
	ban("kubeletmetrics", []string{module + "/syncloop/...", module + "/provider/...", module + "/config", module + "/cri/...", "k8s.io/client-go/..."}, "the parts of the loop have metrics of their own; node joins them"),
	ban("provider/...", []string{module + "/config"}, "its callers read the configuration"),
	ban("provider/clusterwide", []string{module + "/..."}, "what is the same for every node concerns the API server, and no node by itself"),
	ban("hostcheck", []string{module + "/provider/...", module + "/config", module + "/syncloop", "k8s.io/client-go/..."}, "a look at a machine needs no cluster and no loop"),
	ban("api/...", []string{module + "/config", module + "/hosts", module + "/host/...", "k8s.io/client-go/...", "k8s.io/klog/..."}, "a client of Host objects needs only their types"),
	ban("hosts", []string{module + "/syncloop/...", module + "/provider/...", module + "/cri/...", module + "/host/...", module + "/prepare", module + "/pool"}, "a Host object becomes a host configuration; how it is managed does not matter").except(endpoint),
	ban("hostadmin", []string{module + "/pool", module + "/prepare", "github.com/spf13/cobra"}, "the caller talks to the user; hostadmin manages no host"),
	direct("hostadmin", []string{module + "/config", module + "/provider/...", module + "/cri/...", "os", "os/exec"}, "hosts and hostcheck read configurations and look at machines for it"),
	ban("hosts/shard", []string{module + "/..."}, "every replica decides the same from the same input"),
	ban("hosts/replica", []string{module + "/hosts", module + "/pool", module + "/host/...", module + "/cri/...", module + "/syncloop/...", module + "/provider/..."}, "which replica owns a host depends neither on its configuration nor on how it is managed").except(endpoint),
	ban("drain", []string{module + "/..."}, "a node is drained through the API server alone"),
	ban("kubeclient", []string{module + "/host/...", module + "/cri/...", module + "/syncloop/...", module + "/provider/...", module + "/config"}, "a client concerns the API server alone"),
	ban("logonce", []string{module + "/...", "k8s.io/klog/...", "time"}, "what was logged before decides about nothing else"),
	ban("notify", []string{module + "/..."}, "a signal carries nothing"),
	ban("cluster", []string{module + "/connect", module + "/node", module + "/ownership", module + "/host/ssh/...", module + "/host/local", module + "/pool"}, "which cluster answers does not depend on the way to the host").except(endpoint),
	ban("ownership", []string{module + "/connect", module + "/node", module + "/provider/...", module + "/pool", "k8s.io/client-go/..."}, "who owns a host is decided on the host, before anything of a node"),
	ban("connect", []string{module + "/node", module + "/provider/...", module + "/pool", module + "/cluster"}, "a host is reached whatever it is used for"),
	ban("readiness", []string{module + "/node", module + "/pool", module + "/syncloop/..."}, "readiness is made of the runtime's status and the link's"),
	ban("node", []string{module + "/fleet", module + "/pool", module + "/release", module + "/prepare", module + "/hostadmin", "github.com/spf13/cobra"}, "one node knows neither the others nor how its host is given back"),
	ban("fleet", []string{"github.com/spf13/cobra", module + "/hostadmin"}, "commands start it, not the other way round"),
	ban("release", []string{module + "/node", module + "/pool", module + "/fleet", "github.com/spf13/cobra"}, "a host is released without a node and without a terminal"),
	direct("release", []string{module + "/host/ssh/...", module + "/host/local"}, "connect opens the host; what kind it is does not matter"),
	ban("prepare", []string{module + "/node", module + "/cluster", module + "/pool", module + "/syncloop", module + "/provider/...", module + "/release", "github.com/spf13/cobra"}, "a host is prepared before it is a node"),
	direct("prepare", []string{module + "/host/ssh/...", module + "/host/local"}, "connect opens the host; what kind it is does not matter"),
	ban("configure", []string{module + "/node", module + "/pool", module + "/cri/...", module + "/syncloop/...", "github.com/spf13/cobra"}, "a configuration is written without managing anything"),
	ban("test/audit", []string{module + "/...", "k8s.io/client-go/...", "os", "net"}, "the checks of an audit log are pure"),
	ban("config", []string{module + "/pool", module + "/hosts", module + "/syncloop/...", module + "/provider/...", module + "/cri/..."}, "the configuration describes, it does not act"),
}

// shared are the parts of syncloop that other parts may import, with the reason for each.
var shared = map[string]string{
	"probehttp": "probes and hooks make the same requests",
	"periodic":  "garbage collection and log rotation run in the same loop",
	"admit":     "the allocation manager decides by it, and a worker on what is added to its pod later",
}

// The clock imports what it needs to read the time.
const (
	clock   = module + "/wall"
	logonce = module + "/logonce"
	hints   = module + "/hint"
)

// everywhere may be imported where a rule bans the whole module, unless the rule names it: these
// packages only concern time, what was logged before, and the remedy for an error.
var everywhere = []string{clock, logonce, hints}

// TestImports: a part of syncloop is a directory below it. Parts do not import each other, so that
// each can be read alone.
func TestImports(t *testing.T) {
	for _, problem := range violations(importsOf(t), dependenciesOf(t), rules, shared) {
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
func violations(imports map[string][]string, dependencies []string, rules []rule, shared map[string]string) (found []string) {
	fromUsed, butUsed, sharedUsed := make([]bool, len(rules)), map[string]bool{}, map[string]bool{}
	exists := func(pattern string) bool {
		return slices.ContainsFunc(dependencies, func(path string) bool { return matches(path, pattern) })
	}
	for short, list := range imports {
		for i, r := range rules {
			if !matches(short, r.from) {
				continue
			}
			fromUsed[i] = true
			for imp, via := range reached(imports, short, r.but...) {
				if via != "" && r.named || imp == module+"/"+short {
					continue
				}
				for _, b := range r.banned {
					switch {
					case !matches(imp, b), slices.Contains(everywhere, imp) && imp != b:
					case slices.Contains(r.but, imp):
						butUsed[r.from+imp] = true
					default:
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
			if !exists(b) {
				found = append(found, "the rule for "+r.from+" bans "+b+", which the module does not consist of")
			}
		}
		for _, b := range r.but {
			if !butUsed[r.from+b] {
				found = append(found, "the rule for "+r.from+" excepts "+b+", which it does not reach")
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

// reached returns what a package imports, itself or through other packages of the module, but not
// through the clock or the packages in but. The value is empty for its own imports, and otherwise
// names the package in between.
func reached(imports map[string][]string, short string, but ...string) map[string]string {
	closed := append(but, clock)
	all := map[string]string{}
	var walk func(from, via string)
	walk = func(from, via string) {
		for _, imp := range imports[from] {
			if _, seen := all[imp]; seen {
				continue
			}
			all[imp] = via
			if inner, ours := strings.CutPrefix(imp, module+"/"); ours && !slices.Contains(closed, imp) {
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
		"wall": {"os"}, "logonce": nil, "low": {clock, logonce}, "timeless": {clock},
		"helper": {"os"}, "between": {module + "/helper"}, "deep": {module + "/between"}, "named": {module + "/helper"},
		"excepted": {module + "/helper"}, "half": {module + "/helper", module + "/between"},
		"syncloop/b": {"os"}, "syncloop/b/sub": {module + "/syncloop/b"}, "syncloop/c": {module + "/syncloop/tool"}, "syncloop/tool": nil,
	}
	dependencies := []string{"os", "time"}
	for short := range imports {
		dependencies = append(dependencies, module+"/"+short)
	}
	helper := module + "/helper"
	got := violations(imports, dependencies, []rule{
		direct("syncloop/b", []string{"os"}, "pure"),
		ban("syncloop/renamed", []string{"os"}, "pure"),
		ban("pod", []string{module + "/gone", "example.org/gone/...", module + "/syncloop/..."}, "low"),
		ban("low", []string{module + "/...", "os"}, "low"),
		ban("timeless", []string{clock}, "no clock"),
		ban("deep", []string{"os"}, "deep"),
		direct("named", []string{"os"}, "named"),
		ban("excepted", []string{helper, "os"}, "excepted").except(helper),
		ban("half", []string{module + "/...", "os"}, "half").except(helper),
		ban("named", []string{"time"}, "named").except(helper),
	}, map[string]string{"tool": "used by all", "b/old": "not there"})
	want := []string{
		"deep imports os through helper: deep",
		"half imports " + module + "/between: half",
		"no package matches the rule for syncloop/renamed",
		"no part of syncloop imports b/old, which is excepted",
		"syncloop/a imports " + module + "/syncloop/b: the parts of syncloop do not know each other",
		"syncloop/b imports os: pure",
		"the rule for named excepts " + helper + ", which it does not reach",
		"the rule for pod bans example.org/gone/..., which the module does not consist of",
		"the rule for pod bans " + module + "/gone, which the module does not consist of",
		"timeless imports " + clock + ": no clock",
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
