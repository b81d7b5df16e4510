package node

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// goldens is the directory of cri/spec's golden files.
const goldens = "../cri/spec/testdata/"

// produced is the input from which production code makes a spec.Machine.
type produced struct {
	node    *Node
	facts   *host.Facts
	driver  string       // what the runtime reports
	machine spec.Machine // fields that are set after specMachine
}

// sets maps each field that a golden pod's annotation overrides to how production sets that field.
var sets = map[string]func(p *produced, want spec.Machine){
	"CFSPeriodUS": func(p *produced, want spec.Machine) {
		p.node.cfg.CPUCFSQuotaPeriod.Duration = time.Duration(want.CFSPeriodUS) * time.Microsecond
	},
	"CgroupDriver":         func(p *produced, want spec.Machine) { p.driver = want.CgroupDriver },
	"CgroupRoot":           func(p *produced, want spec.Machine) { p.node.cfg.CgroupRoot = want.CgroupRoot },    // configured
	"CgroupVersion":        func(p *produced, want spec.Machine) { p.facts.CgroupVersion = want.CgroupVersion }, // from the host
	"ClusterDNS":           func(p *produced, want spec.Machine) { p.machine.ClusterDNS = want.ClusterDNS },     // syncloop
	"CanLowerOOMScore":     func(p *produced, want spec.Machine) { p.facts.CanLowerOOMScore = want.CanLowerOOMScore },
	"PodPidsLimit":         func(p *produced, want spec.Machine) { p.node.cfg.PodPidsLimit = &want.PodPidsLimit },
	"SELinux":              func(p *produced, want spec.Machine) { p.facts.SELinux = want.SELinux },
	"SeccompDefault":       func(p *produced, want spec.Machine) { p.node.cfg.SeccompDefault = &want.SeccompDefault },
	"SingleProcessOOMKill": func(p *produced, want spec.Machine) { p.node.cfg.SingleProcessOOMKill = &want.SingleProcessOOMKill },
	"SwapControl":          func(p *produced, want spec.Machine) { p.facts.SwapControl = want.SwapControl },
	"ThermalThrottle":      func(p *produced, want spec.Machine) { p.facts.ThermalThrottle = want.ThermalThrottle },
	"UserNamespace":        func(p *produced, want spec.Machine) { p.machine.UserNamespace = want.UserNamespace }, // syncloop
}

// TestGoldenMachines: a golden file for a machine that production never makes would hide a feature
// that works only in its tests.
func TestGoldenMachines(t *testing.T) {
	data, err := os.ReadFile(goldens + "machine.yaml")
	testutil.Must(t, err)
	var base spec.Machine
	testutil.Must(t, yaml.UnmarshalStrict(data, &base))
	check := func(t *testing.T, fields map[string]any, want spec.Machine) {
		t.Helper()
		c, err := config.Parse([]byte(`
apiVersion: bowline.io/v1alpha1
kind: BowlineConfiguration
kubeconfig: /kubeconfig
hosts:
- {name: node-1, endpoint: "unix:///run/containerd/containerd.sock"}
`))
		testutil.Must(t, err)
		p := &produced{
			node: &Node{cfg: &c.Hosts[0], stamp: "cluster-1/node-1/abc"}, driver: "cgroupfs",
			facts: &host.Facts{Hostname: "node-1", MemoryBytes: 8 << 30, CPUs: 4, CgroupVersion: 2, CanLowerOOMScore: true,
				HugePages: map[string]int64{"2MB": 0}},
			machine: spec.Machine{ClusterDNS: base.ClusterDNS, RecursiveReadOnly: true},
		}
		for name := range fields {
			set := sets[name]
			if set == nil {
				t.Fatalf("how does production set %s?", name)
			}
			set(p, want)
		}
		got := p.node.specMachine(&snapshot{facts: *p.facts, driver: p.driver, resolv: base.HostResolv}, base.HostIPs)
		// The sync loop sets these for each pod, from the handler and the cluster.
		got.ClusterDNS, got.RecursiveReadOnly, got.UserNamespace = p.machine.ClusterDNS, p.machine.RecursiveReadOnly, p.machine.UserNamespace
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("production makes another machine (-golden +made):\n%s", diff)
		}
	}
	t.Run("machine.yaml", func(t *testing.T) { check(t, nil, base) })

	files, err := filepath.Glob(goldens + "pods/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden pods: %v", err)
	}
	annotated := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		testutil.Must(t, err)
		var p v1.Pod
		testutil.Must(t, yaml.Unmarshal(data, &p))
		over := p.Annotations["test/machine"]
		if over == "" {
			continue
		}
		annotated++
		t.Run(filepath.Base(file), func(t *testing.T) {
			var fields map[string]any
			want := base
			testutil.Must(t, yaml.Unmarshal([]byte(over), &fields))
			testutil.Must(t, yaml.UnmarshalStrict([]byte(over), &want))
			for name := range fields {
				if _, has := reflect.TypeFor[spec.Machine]().FieldByName(name); !has {
					t.Fatalf("a machine has no %s", name)
				}
			}
			check(t, fields, want)
		})
	}
	if annotated == 0 {
		t.Error("no golden pod has a machine of its own")
	}
}
