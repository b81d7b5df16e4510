package bowline

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/bowline-k8s/bowline"

// rule forbids a package of ours to import something, and says why.
type rule struct {
	from   string   // package path below the module; a trailing /... takes its children
	banned []string // import paths; a trailing /... takes children, "std:" is a standard package
	why    string
}

var impure = []string{module + "/wall", "context", "sync", "sync/atomic", "os", "os/exec", "io", "net", "net/http", "math/rand", "math/rand/v2",
	"google.golang.org/grpc/...", "k8s.io/klog/...", "log", "log/slog", "k8s.io/client-go/..."}

var rules = []rule{
	{"syncloop/plan", impure, "a decision depends on its input alone, or it cannot be replayed"},
	{"syncloop/admit", append([]string{"time"}, impure...), "what an owner allows is a function of the pod and the policy"},
	{"syncloop/allot", append([]string{module + "/..."}, impure...), "whether a resize fits depends on the pods and the node, and nothing else"},
	{"syncloop/status", impure, "a status is a function of what was observed"},
	{"syncloop/config/manifest", impure, "one manifest makes one pod, the same after each restart"},
	{"cri/spec", impure, "a config is a function of the pod and the machine"},
	{"syncloop/volume/render", impure, "a volume's content is a function of the objects it shows"},
	{"syncloop/imagegc/choose", impure, "which image may go is decided on what was seen, and nothing else"},
	{"syncloop/eviction/choose", impure, "who gives way is decided on what was measured, and nothing else"},
	{"syncloop/images", []string{module + "/syncloop/images/credentialprovider", "os", "os/exec"}, "an image is pulled on the machine; what runs beside this process is apart"},
	{"syncloop/images/credentialprovider", []string{module + "/host/...", module + "/cri/...", "k8s.io/client-go/..."}, "a program is run beside this process, for whatever machine and by whatever way"},
	{"syncloop/podcerts", []string{module + "/..."}, "a pod's certificates concern the API server, and no machine"},
	{"syncloop/shutdown/order", impure, "in which order pods end is a function of the pods and the periods"},
	{"host/logind", []string{module + "/host/ssh/...", module + "/host/local"}, "logind is asked the same way, however the machine is reached"},
	{"syncloop/gc/choose", impure, "what may be removed is decided on what was seen, and nothing else"},
	{"wall", append([]string{module + "/..."}, impure[1:]...), "the clock is below everything that goes by it"},
	{"pod", append([]string{module + "/..."}, impure...), "the vocabulary is at the bottom: values only"},
	{"pool", []string{module + "/cri/...", module + "/host/...", module + "/syncloop/...", module + "/provider/...", "k8s.io/client-go/...", "os", "net", "google.golang.org/grpc/..."}, "what a host is, and how it is driven, is nothing to who drives many"},
	{"host/...", []string{module + "/cri/...", module + "/syncloop/...", module + "/provider/...", module + "/config/..."}, "a machine knows nothing of pods' loops"},
	{"host/local", []string{module + "/host/ssh/..."}, "two kinds of machine share what is pure (host/internal/machine), and nothing else"},
	{"host/ssh/...", []string{module + "/host/local"}, "two kinds of machine share what is pure (host/internal/machine), and nothing else"},
	{"host/budget", append([]string{module + "/..."}, "net", "os", "io", "google.golang.org/grpc/...", "k8s.io/klog/..."), "budgets are counted in one place, whatever is read and from which host"},
	{"host/standing", []string{module + "/host/ssh/...", module + "/host/local"}, "what is listened on comes and goes, by whatever way"},
	{"host/internal/machine", []string{"os", "os/exec", "io", "net/http", "golang.org/x/sys/..."}, "what is known of machines is the same however they are reached"},
	{"host/ssh/endpoint", []string{module + "/host", module + "/host/ssh/link", module + "/host/ssh/shell"}, "an endpoint is read, and knows no machine"},
	{"nodecert", []string{module + "/..."}, "a node's certificates concern the API server, and no machine and no pod"},
	{"cri/...", []string{module + "/syncloop/...", module + "/provider/...", module + "/config/..."}, "the runtime's client serves the loop, not the other way round"},
	{"syncloop/...", []string{module + "/provider/...", module + "/config", "github.com/virtual-kubelet/..."}, "the loop works without virtual-kubelet and is configured by values"},
	{"provider/...", []string{module + "/config"}, "only cmd reads the configuration"},
	{"provider/clusterwide", []string{module + "/..."}, "what is the same for every node concerns the API server, and no node by itself"},
	{"hostcheck", []string{module + "/provider/...", module + "/config", module + "/syncloop", "k8s.io/client-go/..."}, "a look at a machine needs no cluster and no loop"},
	{"handover", []string{module + "/provider/...", module + "/config", module + "/syncloop", module + "/host/ssh/...", module + "/host/local", "k8s.io/client-go/..."}, "a machine is handed over by what it is, whatever the way to it"},
	{"api/...", []string{module + "/config", module + "/hosts", module + "/host/...", "k8s.io/client-go/...", "k8s.io/klog/..."}, "who reads or makes a Host needs its types alone"},
	{"hosts", []string{module + "/syncloop/...", module + "/provider/...", module + "/cri/...", module + "/host/...", module + "/handover", module + "/pool"}, "a Host object becomes a host, whoever drives it and however"},
	{"enroll", []string{module + "/config", module + "/pool", module + "/provider/...", module + "/cri/...", module + "/handover", "github.com/spf13/cobra", "os", "os/exec"}, "a person is asked and told by who calls it; it drives nothing"},
	{"hosts/shard", append([]string{module + "/..."}, impure...), "every replica decides the same of the same that it sees"},
	{"hosts/replica", []string{module + "/hosts", module + "/pool", module + "/host/...", module + "/cri/...", module + "/syncloop/...", module + "/provider/..."}, "whose a host is concerns neither what it is made of nor how it is driven"},
	{"test/audit", []string{module + "/...", "k8s.io/client-go/...", "os", "net"}, "a log is judged by what was there, whoever read both"},
	{"config", []string{module + "/pool", module + "/hosts", module + "/syncloop/...", module + "/provider/...", module + "/cri/..."}, "the configuration describes, it does not act"},
}

// shared are the parts of syncloop that other parts may import, each with its reason.
var shared = map[string]string{
	"handler": "probes and hooks make the same requests",
	"regular": "garbage collection and log rotation run in the same loop",
}

// clock may be imported where a rule bans all else of the module, unless the rule
// names it: it knows time alone.
const clock = module + "/wall"

// A part of syncloop is a directory below it: parts never import each other, so that
// each can be read alone.
func TestImports(t *testing.T) {
	imports := importsOf(t)
	for _, problem := range violations(imports, rules, shared) {
		t.Error(problem)
	}
}

// importsOf lists what each package of the module imports, by its path in the module.
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

// violations are the imports that a rule forbids, and the rules and exceptions that
// match nothing: a rule for a package that was renamed guards nothing.
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
			for _, imp := range list {
				for _, b := range r.banned {
					if matches(imp, b) && imp != module+"/"+short && (imp != clock || b == clock) {
						found = append(found, short+" imports "+imp+": "+r.why)
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
		"syncloop/b": {"os"}, "syncloop/b/sub": {module + "/syncloop/b"}, "syncloop/c": {module + "/syncloop/tool"}, "syncloop/tool": nil,
	}
	got := violations(imports, []rule{
		{"syncloop/b", []string{"os"}, "pure"},
		{"syncloop/renamed", []string{"os"}, "pure"},
		{"pod", []string{module + "/gone", module + "/syncloop/..."}, "low"},
		{"low", []string{module + "/..."}, "low"},
		{"pure", []string{clock}, "no clock"},
	}, map[string]string{"tool": "used by all", "b/old": "not there"})
	want := []string{
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
