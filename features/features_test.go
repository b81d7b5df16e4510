package features

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/version"
	library "k8s.io/component-helpers/nodedeclaredfeatures/features"
)

// TestDefaults: without a setting, and without New, the gates are as in a kubelet.
func TestDefaults(t *testing.T) {
	made, faults := New(nil)
	if len(faults) > 0 {
		t.Errorf("nothing is set, and has faults: %v", faults)
	}
	for name, g := range map[string]Gates{"New": made, "the zero Gates": {}} {
		if !g.Enabled(ContainerCheckpoint) || g.Enabled(ReduceDefaultCrashLoopBackOffDecay) || g.Enabled(ContainerStopSignals) {
			t.Errorf("%s: a default differs", name)
		}
	}
	if !slices.Equal(made.All(), Gates{}.All()) {
		t.Errorf("New has %v, the zero Gates %v", made.All(), Gates{}.All())
	}
}

func TestSet(t *testing.T) {
	for _, c := range []struct {
		name    string
		set     map[string]bool
		on, off []featuregate.Feature
		faults  map[string]string // the beginning of each, by gate
	}{
		{name: "one gate", set: map[string]bool{"ContainerCheckpoint": false}, off: []featuregate.Feature{ContainerCheckpoint}, on: []featuregate.Feature{ComponentFlagz}},
		{name: "a stage", set: map[string]bool{"AllAlpha": true}, on: []featuregate.Feature{ReduceDefaultCrashLoopBackOffDecay, ComponentFlagz}},
		{name: "a stage, and a gate of it", set: map[string]bool{"AllBeta": false, "ComponentFlagz": true},
			on:  []featuregate.Feature{ComponentFlagz, PodCertificateRequest},
			off: []featuregate.Feature{ComponentStatusz, ContainerCheckpoint, GracefulNodeShutdown, GracefulNodeShutdownBasedOnPodPriority}},
		{name: "unknown", set: map[string]bool{"NoSuchGate": true, "containerCheckpoint": false},
			faults: map[string]string{"NoSuchGate": "no such gate has an effect here; those that have are AllAlpha, ", "containerCheckpoint": "no such gate"},
			on:     []featuregate.Feature{ContainerCheckpoint}},
		{name: "locked", set: map[string]bool{"ImageVolume": false, "ContainerCheckpoint": false},
			faults: map[string]string{"ImageVolume": "Kubernetes 1.37 has locked this gate to true"}, off: []featuregate.Feature{ContainerCheckpoint}},
		{name: "locked, set to its value", set: map[string]bool{"ImageVolume": true}},
		{name: "without what two need", set: map[string]bool{"ContainerRestartRules": false, "PodLevelResources": false},
			faults: map[string]string{"RestartAllContainersOnContainerExits": "this gate needs ContainerRestartRules", "InPlacePodLevelResourcesVerticalScaling": "this gate needs PodLevelResources"}},
		{name: "without what it needs", set: map[string]bool{"GracefulNodeShutdown": false},
			faults: map[string]string{"GracefulNodeShutdownBasedOnPodPriority": "this gate needs GracefulNodeShutdown, which is false"}},
		{name: "with what needs it", set: map[string]bool{"GracefulNodeShutdown": false, "GracefulNodeShutdownBasedOnPodPriority": false}},
	} {
		gates, faults := New(c.set)
		for _, f := range c.on {
			if !gates.Enabled(f) {
				t.Errorf("%s: %s is off", c.name, f)
			}
		}
		for _, f := range c.off {
			if gates.Enabled(f) {
				t.Errorf("%s: %s is on", c.name, f)
			}
		}
		for _, f := range faults {
			if want, ok := c.faults[f.Gate]; !ok || !strings.HasPrefix(f.Why, want) {
				t.Errorf("%s: fault of %s: %s; want %q", c.name, f.Gate, f.Why, want)
			}
		}
		if len(faults) != len(c.faults) {
			t.Errorf("%s: %d faults, want %d", c.name, len(faults), len(c.faults))
		}
	}
}

// TestGatesAreApart: the gates of one node do not change those of another.
func TestGatesAreApart(t *testing.T) {
	one, _ := New(map[string]bool{"ContainerCheckpoint": false})
	two, _ := New(map[string]bool{"ComponentFlagz": false})
	if one.Enabled(ContainerCheckpoint) || !one.Enabled(ComponentFlagz) || !two.Enabled(ContainerCheckpoint) || two.Enabled(ComponentFlagz) {
		t.Error("two nodes share a gate")
	}
}

func TestAll(t *testing.T) {
	gates, _ := New(map[string]bool{"ContainerCheckpoint": false})
	all := map[string]State{}
	for _, s := range gates.All() {
		all[s.Name] = s
	}
	for _, want := range []State{{"ContainerCheckpoint", "BETA", false}, {"ComponentFlagz", "BETA", true}, {"ImageVolume", "", true},
		{"ReduceDefaultCrashLoopBackOffDecay", "ALPHA", false}, {"AllBeta", "BETA", false}} {
		if all[want.Name] != want {
			t.Errorf("got %+v, want %+v", all[want.Name], want)
		}
	}
	if len(all) != len(known)+2 {
		t.Errorf("%d gates, want %d and AllAlpha and AllBeta", len(all), len(known))
	}
}

// TestDeclared: the API server must know what a node declares, and a gate that is off is not declared.
func TestDeclared(t *testing.T) {
	may := map[string]bool{}
	for _, f := range library.AllFeatures {
		may[f.Name()] = true
	}
	names := Gates{}.Declared()
	if len(names) != len(declared) || !slices.IsSorted(names) {
		t.Errorf("declared by default: %v", names)
	}
	for _, name := range names {
		if !may[name] {
			t.Errorf("%s is not a feature that nodes declare", name)
		}
	}
	gates, _ := New(map[string]bool{"ExtendWebSocketsToKubelet": false})
	if got := gates.Declared(); slices.Contains(got, "ExtendWebSocketsToKubelet") || len(got) != len(declared)-1 {
		t.Errorf("declared with a gate off: %v", got)
	}
}

// TestRelease: stages and defaults change with Kubernetes, so they are reviewed with each new release.
func TestRelease(t *testing.T) {
	if version.DefaultKubeBinaryVersion != Release {
		t.Errorf("the libraries are of Kubernetes %s, the gates of %s: compare known with pkg/features/kube_features.go", version.DefaultKubeBinaryVersion, Release)
	}
	for _, f := range slices.Sorted(maps.Keys(known)) {
		if spec := known[f]; spec.LockToDefault && !spec.Default {
			t.Errorf("%s is locked to false, so it has no effect", f)
		}
	}
}
