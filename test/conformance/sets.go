package main

import "path"

// set is a selection of the suite's specs whose results are kept. Its list is committed,
// so that a spec that goes missing is seen.
type set struct {
	Name  string
	Title string // of its part of the document
	Focus string
	Skip  string
	Runc  bool // by a runc of its own module, newer than Debian's: see hack/runc.sh
	CRIO  bool // on CRI-O instead of containerd: see hack/build-crio.sh
}

// never are the specs that no set has: that disturb others, that are known to be flaky,
// and those of features that Kubernetes has off.
const never = `\[(Serial|Disruptive|Flaky)\]|\[Feature:OffByDefault\]`

// The specs of NodeConformance that need no feature and do not take long.
const (
	conformanceFocus = `\[sig-(node|storage)\].*\[NodeConformance\]`
	conformanceSkip  = `\[(Serial|Disruptive|Flaky|Slow)\]|\[Feature:`
)

var sets = []set{
	{
		Name: "nodeconformance", Title: "NodeConformance",
		Focus: conformanceFocus, Skip: conformanceSkip,
	},
	{
		Name: "crio", Title: "NodeConformance on CRI-O",
		Focus: conformanceFocus, Skip: conformanceSkip, CRIO: true,
	},
	{
		Name: "slow", Title: "NodeConformance, the slow ones",
		Focus: `\[sig-(node|storage)\].*(\[NodeConformance\].*\[Slow\]|\[Slow\].*\[NodeConformance\])`,
		Skip:  never,
	},
	{
		// The groups of what a node needs; those of features that are not Bowline's yet
		// (dynamic resources, CSI, the node's log query) are not among them.
		Name: "features", Title: "Features",
		Focus: `\[sig-(node|storage)\].*\[Feature:(InPlacePodVerticalScaling|EnvFiles|` +
			`SupplementalGroupsPolicy|PodLevelResources|RuntimeHandler|KubeletCredentialProviders|HostAccess|Example)\]`,
		Skip: never,
	},
	{
		// What Debian's runc cannot do.
		Name: "userns", Title: "User namespaces, with a runc that has them",
		Focus: `\[sig-(node|storage)\].*\[Feature:UserNamespacesSupport\]`,
		Skip:  never, Runc: true,
	},
}

// file is the committed list of a set's specs, one name a line. The same specs run on
// both container runtimes.
func (s set) file() string {
	name := s.Name
	if s.CRIO {
		name = sets[0].Name
	}
	return path.Join("test/conformance", name+".txt")
}

func setNames() (names []string) {
	for _, s := range sets {
		names = append(names, s.Name)
	}
	return names
}
