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
	direct("syncloop/admit", []string{"time"}, "admission does not depend on the time; the types of package pod have times"),
	ban("syncloop/images", []string{module + "/syncloop/images/credentialprovider", "os", "os/exec"}, "the host's runtime pulls images; only credentialprovider runs programs beside this process"),
	direct("syncloop/images/credentialprovider", []string{module + "/host/...", module + "/cri/..."}, "a credential provider runs beside this process, and gets only the image; package images knows the host"),
	direct("syncloop/images/credentialprovider", []string{"k8s.io/client-go/..."}, "the caller passes a function that gets tokens"),
	ban("syncloop/podcerts", []string{module + "/..."}, "the API server signs the certificates of pods; no host takes part").except(module + "/notify"),
	ban("host/logind", []string{module + "/host/ssh/...", module + "/host/local"}, "logind speaks the same protocol on a local and on a remote host"),
	ban("wall", append([]string{module + "/..."}, impure...), "almost every package imports the clock, so it imports none"),
	ban("pod", []string{module + "/..."}, "pod has the types that all packages share, so it imports none"),
	ban("pool", []string{module + "/cri/...", module + "/host/...", module + "/syncloop/...", module + "/provider/...", "k8s.io/client-go/...", "google.golang.org/grpc/..."}, "a pool knows a host by its name and configuration, and gets the manage function as an argument").except(endpoint),
	direct("pool", []string{"os", "net"}, "a pool opens no file and no connection; the configurations that it compares have addresses and paths"),
	ban("host/...", []string{module + "/cri/...", module + "/syncloop/...", module + "/provider/...", module + "/config/..."}, "package host offers operations on a host, and decides nothing about pods"),
	ban("host/local", []string{module + "/host/ssh/..."}, "local and remote hosts share only host/internal/machine"),
	ban("host/ssh/...", []string{module + "/host/local"}, "local and remote hosts share only host/internal/machine"),
	ban("host/budget", append([]string{module + "/..."}, "net", "os", "io", "google.golang.org/grpc/...", "k8s.io/klog/..."), "every package that reads a host's answers counts them there, so it imports none of them"),
	ban("host/relisten", []string{module + "/host/ssh/...", module + "/host/local"}, "relisten gets a function that listens, for a local and for a remote host alike"),
	ban("host/internal/machine", []string{"os", "os/exec", "net/http", "golang.org/x/sys/..."}, "machine makes arguments and parses output for local and remote hosts, and runs nothing"),
	direct("host/internal/machine", []string{"io"}, "machine makes arguments and parses output for local and remote hosts, and runs nothing; the interfaces of host have readers"),
	ban("host/ssh/endpoint", []string{module + "/host", module + "/host/ssh/link", module + "/host/ssh/shell"}, "an endpoint is parsed before there is a link to its host"),
	ban("nodecert", []string{module + "/..."}, "the API server signs the certificates of nodes; no host and no pod takes part"),
	ban("cri/...", []string{module + "/syncloop/...", module + "/provider/...", module + "/config/..."}, "the loop uses the runtime's client, which does not know the loop"),
	ban("syncloop/...", []string{module + "/provider/...", module + "/config", "github.com/virtual-kubelet/..."}, "the loop works without virtual-kubelet and is configured by values"),
	ban("stats", []string{module + "/syncloop/...", module + "/provider/...", module + "/config", module + "/cri/...", module + "/host/ssh/...", module + "/host/local", "k8s.io/client-go/..."}, "host.Meters measures on local and remote hosts alike, and the caller passes a function that lists the pods"),
	ban("nodelogs", []string{module + "/syncloop/...", module + "/provider/...", module + "/config", module + "/cri/...", module + "/host/ssh/...", module + "/host/local", "k8s.io/client-go/..."}, "host.Host reads logs on local and remote hosts alike"),
	ban("kubeletmetrics", []string{module + "/syncloop/...", module + "/provider/...", module + "/config", module + "/cri/...", "k8s.io/client-go/..."}, "the parts of the loop have metrics of their own; node joins all in one registry"),
	ban("kubeletmetrics/kubelettest", []string{module + "/..."}, "tests compare the metrics of any package with it"),
	ban("provider/...", []string{module + "/config"}, "its caller reads the configuration and passes values"),
	ban("provider/clusterwide", []string{module + "/..."}, "it reads objects that are the same for every node from the API server, and knows no node"),
	ban("hostcheck", []string{module + "/provider/...", module + "/config", module + "/syncloop", "k8s.io/client-go/..."}, "a machine is checked before it is a node, so without a cluster and without the loop"),
	ban("api/...", []string{module + "/config", module + "/hosts", module + "/host/...", "k8s.io/client-go/...", "k8s.io/klog/..."}, "a client of Host objects needs only their types"),
	ban("hosts", []string{module + "/syncloop/...", module + "/provider/...", module + "/cri/...", module + "/host/...", module + "/prepare", module + "/pool"}, "hosts turns a Host object into a configuration; its Sink manages the host").except(endpoint),
	ban("hostadmin", []string{module + "/pool", module + "/prepare", "github.com/spf13/cobra"}, "the caller talks to the user; hostadmin manages no host"),
	direct("hostadmin", []string{module + "/config", module + "/provider/...", module + "/cri/...", "os", "os/exec"}, "it calls hosts and hostcheck, which read configurations and check machines"),
	ban("hosts/shard", []string{module + "/..."}, "every replica must decide the same from the same input"),
	ban("hosts/replica", []string{module + "/hosts", module + "/pool", module + "/host/...", module + "/cri/...", module + "/syncloop/...", module + "/provider/..."}, "which replica owns a host depends neither on its configuration nor on how it is managed").except(endpoint),
	ban("features", []string{module + "/..."}, "a feature gate is a name and a value; the packages that ask know what it switches"),
	ban("tracing", []string{module + "/cri/...", module + "/syncloop/...", module + "/provider/...", module + "/config", module + "/host/ssh/...", module + "/host/local", "k8s.io/client-go/..."}, "it sees calls by their label, through the hook of package host"),
	ban("drain", []string{module + "/..."}, "a node is drained through the API server alone"),
	ban("kubeclient", []string{module + "/host/...", module + "/cri/...", module + "/syncloop/...", module + "/provider/...", module + "/config"}, "a client talks to the API server alone"),
	ban("logonce", []string{module + "/...", "k8s.io/klog/...", "time"}, "it only decides whether an error is logged again"),
	ban("flap", []string{module + "/..."}, "it counts, and knows nothing of what goes and comes"),
	ban("notify", []string{module + "/..."}, "a signal carries no value"),
	ban("cluster", []string{module + "/connect", module + "/node", module + "/ownership", module + "/host/ssh/...", module + "/host/local", module + "/pool"}, "the cluster of a host is found in the same way for local and remote hosts").except(endpoint),
	ban("ownership", []string{module + "/connect", module + "/node", module + "/provider/...", module + "/pool", "k8s.io/client-go/..."}, "the owner of a host is decided on the host, before there is a node"),
	ban("connect", []string{module + "/node", module + "/provider/...", module + "/pool", module + "/cluster"}, "a host is opened in the same way to manage, prepare and release it"),
	ban("linkpull/oci", []string{module + "/..."}, "it reads documents of images, wherever they come from"),
	ban("linkpull/build", []string{module + "/..."}, "an image is made of bytes").except(module + "/linkpull/oci"),
	ban("linkpull/registry/...", []string{module + "/..."}, "it knows registries, and neither hosts nor runtimes").except(module+"/linkpull/oci", module+"/linkpull/registry", module+"/internal/testutil"),
	ban("linkpull/store/...", []string{module + "/linkpull/registry", module + "/host/ssh/...", module + "/host/local", module + "/syncloop/...", module + "/provider/...", module + "/config", "k8s.io/client-go/..."}, "it writes images to a containerd, wherever they come from"),
	ban("linkpull", []string{module + "/host/ssh/...", module + "/host/local", module + "/syncloop/...", module + "/provider/...", module + "/config", "k8s.io/client-go/..."}, "it goes between syncloop and the CRI, and knows neither pods nor the link"),
	ban("readiness", []string{module + "/node", module + "/pool", module + "/syncloop/..."}, "readiness gets the runtime's status as an argument"),
	ban("node", []string{module + "/fleet", module + "/pool", module + "/release", module + "/prepare", module + "/hostadmin", "github.com/spf13/cobra"}, "one node knows neither other nodes nor how its host is released"),
	ban("fleet", []string{"github.com/spf13/cobra", module + "/hostadmin"}, "commands start it, not the other way round"),
	ban("release", []string{module + "/node", module + "/pool", module + "/fleet", "github.com/spf13/cobra"}, "a host is released without a node and without a terminal"),
	direct("release", []string{module + "/host/ssh/...", module + "/host/local"}, "connect opens the host, local or remote"),
	ban("prepare", []string{module + "/node", module + "/cluster", module + "/pool", module + "/syncloop", module + "/provider/...", module + "/release", "github.com/spf13/cobra"}, "a machine is prepared before there is a node"),
	direct("prepare", []string{module + "/host/ssh/...", module + "/host/local"}, "connect opens the host, local or remote"),
	ban("configure", []string{module + "/node", module + "/pool", module + "/cri/...", module + "/syncloop/...", "github.com/spf13/cobra"}, "a configuration is written without managing anything"),
	direct("cmd/bowline", []string{module + "/node", module + "/cri/...", module + "/syncloop/...", module + "/provider/...", module + "/host", module + "/host/local", "google.golang.org/grpc/..."}, "a command calls a package that does the work, and reaches no node, host or runtime itself"),
	ban("hosts/clearing", []string{module + "/syncloop/...", module + "/provider/...", module + "/cri/...", module + "/host/...", module + "/pool"}, "it changes Host objects, and reaches no host").except(endpoint),
	ban("faultinject", []string{module + "/cri/...", module + "/syncloop/...", module + "/provider/...", module + "/node", module + "/config", "k8s.io/client-go/..."}, "a fault strikes a call by its label, through the hook of package host"),
	ban("hint", []string{module + "/..."}, "every package may add a hint to an error"),
	ban("mountns", []string{module + "/..."}, "the process enters the mount namespace before it does anything else"),
	ban("procmem", []string{module + "/..."}, "it reads and limits the memory of the process, and knows nothing that uses it"),
	ban("sshlogin", []string{module + "/..."}, "it finds the user's keys and agent; the command knows the host to log in to"),
	ban("version", []string{module + "/..."}, "every package may print the version"),
	ban("charts", []string{module + "/..."}, "the chart is data"),
	ban("cluster/clustertest", []string{module + "/node", module + "/cri/...", module + "/syncloop/...", module + "/provider/..."}, "the fake API server knows no node"),
	ban("internal/testutil", []string{module + "/..."}, "tests of every package use it"),
	ban("wall/walltest", []string{module + "/..."}, "tests of every package set the clock with it"),
	ban("test/audit", []string{module + "/...", "k8s.io/client-go/...", "os", "net"}, "the checks of an audit log are pure"),
	ban("config", []string{module + "/pool", module + "/hosts", module + "/syncloop/...", module + "/provider/...", module + "/cri/..."}, "the configuration describes, it does not act"),
}

// shared are the parts of syncloop that other parts may import, with the reason for each.
var shared = map[string]string{
	"probehttp": "probes and hooks make the same requests",
	"periodic":  "garbage collection and log rotation run in the same loop",
	"admit":     "the allocation manager admits pods with it, and a worker what is added to its pod later",
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
	imports := importsOf(t)
	for _, problem := range append(violations(imports, dependenciesOf(t), rules, shared), unruled(imports, rules)...) {
		t.Error(problem)
	}
}

// unruled are the packages of the product that no rule names.
func unruled(imports map[string][]string, rules []rule) (found []string) {
	for short := range imports {
		if short == module || strings.HasPrefix(short, "test/") || strings.HasPrefix(short, "hack/") {
			continue // only tests, and tools
		}
		if !slices.ContainsFunc(rules, func(r rule) bool { return matches(short, r.from) }) {
			found = append(found, "no rule names "+short)
		}
	}
	slices.Sort(found)
	return found
}

func TestUnruled(t *testing.T) {
	imports := map[string][]string{module: nil, "a": nil, "a/b": nil, "c": nil, "hack/d": nil, "test/e": nil}
	got := unruled(imports, []rule{ban("a/...", nil, "")})
	if want := []string{"no rule names c"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// goList runs go list for the module, as it is built for use and with faults, and returns the lines
// of both.
func goList(t *testing.T, args ...string) (lines []string) {
	t.Helper()
	for _, tags := range []string{"", "faults"} {
		cmd := exec.Command("go", append([]string{"list", "-tags", tags}, append(args, "./...")...)...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
		lines = append(lines, strings.Split(strings.TrimSpace(string(out)), "\n")...)
	}
	return lines
}

// dependenciesOf lists all packages that the module consists of.
func dependenciesOf(t *testing.T) []string {
	t.Helper()
	return goList(t, "-deps")
}

// importsOf lists the imports of each package of the module, by its path in the module.
func importsOf(t *testing.T) map[string][]string {
	t.Helper()
	imports := map[string][]string{}
	for _, line := range goList(t, "-f", `{{.ImportPath}}: {{join .Imports " "}}`) {
		from, list, _ := strings.Cut(line, ":")
		short := strings.TrimPrefix(from, module+"/")
		for _, imp := range strings.Fields(list) {
			if !slices.Contains(imports[short], imp) {
				imports[short] = append(imports[short], imp)
			}
		}
		imports[short] = slices.Clip(imports[short])
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
