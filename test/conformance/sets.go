package main

import "path"

// set is a selection of the suite's specs whose results are kept. Its list is committed, so that a
// missing spec is noticed.
type set struct {
	Name  string
	Title string // of its part of the document
	Focus string
	Skip  string
	Runc  bool // with a newer runc than Debian's: see hack/runc.sh
	CRIO  bool // on CRI-O instead of containerd: see hack/build-crio.sh
	// Hosts is the number of the lab's hosts, 1 if it is 0. Each is a node. In the column ssh the last
	// host is managed over SSH, with kubeletExposure host, and the others through the local socket.
	Hosts int
	// Node is set for specs of the node suite, which runs in the host: see nodesuite.go.
	Node bool
}

// program is the suite's program.
func (s set) program() string {
	if s.Node {
		return built(nodeSuite)
	}
	return built("e2e.test")
}

// hosts returns the number of the lab's hosts.
func (s set) hosts() int { return max(s.Hosts, 1) }

// never selects the specs that no set has: those that disturb others, are known to be flaky, or
// belong to features that Kubernetes has off by default.
const never = `\[(Serial|Disruptive|Flaky)\]|\[Feature:OffByDefault\]`

// NodeConformance without the specs that need a feature or take long.
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
		// The feature groups that a node needs, without those that Bowline does not support yet
		// (dynamic resources, CSI). The specs of node log query read the journal, which no lab host has.
		Name: "features", Title: "Features",
		Focus: `\[sig-(node|storage)\].*\[Feature:(InPlacePodVerticalScaling|EnvFiles|` +
			`SupplementalGroupsPolicy|PodLevelResources|RuntimeHandler|KubeletCredentialProviders|HostAccess|Example)\]`,
		Skip: never,
	},
	{
		// Debian's runc does not support these.
		Name: "userns", Title: "User namespaces, with a runc that has them",
		Focus: `\[sig-(node|storage)\].*\[Feature:UserNamespacesSupport\]`,
		Skip:  never, Runc: true,
	},
	{
		// The serial ones too. Many specs need two nodes, and NodePorts that answer on each node's
		// address.
		Name: "conformance", Title: "Conformance",
		Focus: `\[Conformance\]`, Hosts: 2,
	},
	{
		// What the node suite says of statistics, metrics, /configz, restarts of containers and logs.
		Name: "node", Title: "Statistics, metrics and logs, by the node suite",
		Focus: `\] (Summary API|ContainerMetrics|ResourceMetricsAPI|Kubelet Endpoints|Container Restart|ContainerLogPath|ContainerLogRotation)`,
		Node:  true,
	},
}

// file is the committed list of a set's specs, one name a line. The same specs run on both
// container runtimes.
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
