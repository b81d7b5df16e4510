package owner

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/host/schema"
)

// Identity is the owner of a host: one node of one cluster.
type Identity struct {
	// ClusterUID is set when the host becomes a node, and stays: the UID that the Service
	// default/kubernetes had then.
	ClusterUID string `json:"clusterUID"`
	NodeName   string `json:"nodeName"`
}

// Stamp returns the value of pod.LabelOwner on everything of this identity. It does not name a
// process: the node's next process adopts the sandboxes and containers that it finds.
func (i Identity) Stamp() string { return i.ClusterUID + "/" + i.NodeName }

func (i Identity) String() string {
	return fmt.Sprintf("node %q of cluster %s", i.NodeName, i.ClusterUID)
}

// parseStamp describes the identity of a stamp, or quotes a stamp of another form.
func parseStamp(stamp string) string {
	if id, ok := identityOf(stamp); ok {
		return id.String()
	}
	return fmt.Sprintf("owner %q", stamp)
}

func identityOf(stamp string) (Identity, bool) {
	cluster, node, ok := strings.Cut(stamp, "/")
	return Identity{cluster, node}, ok
}

// schemaVersion is the version of the owner file's format.
const schemaVersion = 1

// Record is the content of the owner file and of the locks: the owner, and the process that manages
// the host or last did.
type Record struct {
	SchemaVersion int `json:"schemaVersion"`
	Identity
	// Witnesses of the cluster, as last seen.
	Witnesses Witnesses `json:"witnesses"`
	Instance  string    `json:"instance"` // of the process; changes with each start
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"startedAt"`
	Version   string    `json:"version"` // of Bowline
}

// driver describes the process that wrote the record.
func (r Record) driver() string {
	return fmt.Sprintf("%s, instance %s, pid %d, running since %s", r.Identity, r.Instance, r.PID, r.StartedAt.UTC().Format(time.RFC3339))
}

func (r Record) bytes() []byte {
	r.SchemaVersion = schemaVersion
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		panic(err) // impossible for strings, numbers and a time
	}
	return append(data, '\n')
}

// ParseRecord reads an owner file, or the holder that a lock reports. Empty content gives nil
// without an error: a power cut can leave a new file empty. A record of a newer Bowline comes with
// a schema.NewerError and the fields that can be read; the caller may show them.
func ParseRecord(data []byte) (*Record, error) {
	if schema.Blank(data) {
		return nil, nil
	}
	r := &Record{}
	if err := schema.Decode(data, schemaVersion, r); err != nil {
		if schema.Newer(err) && r.ClusterUID != "" && r.NodeName != "" {
			return r, err
		}
		return nil, err
	}
	if r.ClusterUID == "" || r.NodeName == "" {
		return nil, fmt.Errorf("it names no cluster or no node")
	}
	return r, nil
}

// Sandbox is the part of a pod sandbox on the runtime that a decision needs.
type Sandbox struct {
	ID      string
	Pod     string // namespace/name
	PodUID  string // label pod.LabelPodUID
	Seen    string // annotation pod.AnnotationSeen, of a static pod
	Stamp   string // label pod.LabelOwner; empty if there is none
	Kubelet bool   // it has the kubelet's label pod.LabelPodUID
	Ready   bool   // SANDBOX_READY
}

// Locked means that another process holds a lock of the host.
type Locked struct {
	Path   string
	Holder *Record // nil if the holder wrote nothing, or no Record
}

// Evidence is everything that a decision depends on.
type Evidence struct {
	// Self has the UID of the Service default/kubernetes, or another identity by which the caller
	// knows the cluster. Its ClusterUID is empty if that Service is missing.
	Self         Identity
	Witnesses    Witnesses  // of the cluster, now
	Pods         []KnownPod // nil: not requested
	AllowForeign bool       // accept a runtime that has pods of a kubelet
	Locked       *Locked    // nil: we hold the locks, or have not tried yet
	FilePath     string
	File         *Record // nil: no owner file, or an empty one
	FileErr      error   // set if the owner file cannot be parsed
	Sandboxes    []Sandbox
}

// Kind is the outcome of a decision.
type Kind int

const (
	Accepted       Kind = iota
	HeldByOther         // a live process holds a lock
	FileUnclear         // the owner file is not a Record, and no sandbox proves who the owner is
	FileNewer           // the owner file is from a newer Bowline
	OtherCluster        // the owner file names another cluster: the wrong kubeconfig
	OtherNode           // the owner file names another node of this cluster
	OtherSandbox        // the runtime has sandboxes with another owner's stamp
	KubeletManages      // the runtime has ready sandboxes of a kubelet
)

var kindNames = [...]string{"Accepted", "HeldByOther", "FileUnclear", "FileNewer", "OtherCluster", "OtherNode", "OtherSandbox", "KubeletManages"}

func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return "Invalid"
	}
	return kindNames[k]
}

// Decision is the result of Decide.
type Decision struct {
	Kind Kind
	// Problem is why the host is refused, and Fix what to do; both are empty if it is accepted.
	Problem, Fix string
	Ours         int // sandboxes with our stamp
	Foreign      int // all others; never touched
	// Identity is the owner under which we manage the host, if accepted.
	Identity Identity
}

// Decide decides whether we may manage the host. It is PURE. The strongest evidence comes first: a
// live process, then the owner file of an earlier process, then the stamps in the runtime.
func Decide(e Evidence) Decision {
	d := Decision{Identity: e.identity()}
	var others, kubelets []Sandbox
	for _, s := range e.Sandboxes {
		switch {
		case s.Stamp == d.Identity.Stamp():
			d.Ours++
			continue
		case s.Stamp != "":
			// Stopped ones count too: their owner may return to them.
			others = append(others, s)
		case s.Kubelet && s.Ready:
			kubelets = append(kubelets, s)
		}
		d.Foreign++
	}
	refuse := func(k Kind, problem, fix string) Decision {
		d.Kind, d.Problem, d.Fix = k, problem, fix
		return d
	}
	switch {
	case e.Locked != nil && e.Locked.Holder == nil:
		return refuse(HeldByOther, "another process manages this host: it holds the lock "+e.Locked.Path+" without a name",
			fmt.Sprintf("find it with \"fuser %s\", and stop it", e.Locked.Path))
	case e.Locked != nil:
		return refuse(HeldByOther, fmt.Sprintf("another Bowline manages this host (%s): %s", e.Locked.Path, e.Locked.Holder.driver()), "stop it, or use another host")
	case schema.Newer(e.FileErr):
		return refuse(FileNewer, fmt.Sprintf("the owner file %s belongs to another Bowline: %v", e.FilePath, e.FileErr),
			"remove the file if that Bowline no longer uses the host")
	case e.FileErr != nil && (d.Ours == 0 || len(others) > 0):
		// If all stamps are ours, they prove who the owner is.
		return refuse(FileUnclear, fmt.Sprintf("cannot parse the owner file %s (%v)", e.FilePath, e.FileErr), "if no other Bowline uses this host, remove it")
	case e.File != nil && e.File.ClusterUID != d.Identity.ClusterUID:
		return refuse(OtherCluster, fmt.Sprintf("this host is %s (owner file %s), but the kubeconfig is for cluster %s", e.File.Identity, e.FilePath,
			cmp.Or(e.Self.ClusterUID, "without a UID (the Service default/kubernetes is missing)")),
			"use the kubeconfig of that cluster, or remove the file if that cluster no longer uses the host")
	case e.File != nil && e.File.NodeName != e.Self.NodeName:
		return refuse(OtherNode, fmt.Sprintf("this host is %s (owner file %s), not node %q", e.File.Identity, e.FilePath, e.Self.NodeName),
			"use that nodeName, or remove the file once that node's pods are gone")
	case len(others) > 0:
		return refuse(OtherSandbox, fmt.Sprintf("the runtime has %s of %s", example(others), parseStamp(first(others).Stamp)), "start Bowline as that node, or remove them")
	case len(kubelets) > 0 && !e.AllowForeign:
		return refuse(KubeletManages, fmt.Sprintf("the runtime runs %s of another program, probably a kubelet", example(kubelets)),
			"drain that node and stop its kubelet, or set allowForeignPods to run beside them")
	}
	return d
}

// first returns the first sandbox by pod name, so that the same state always gives the same
// sentence.
func first(sandboxes []Sandbox) Sandbox {
	return slices.MinFunc(sandboxes, func(a, b Sandbox) int {
		return strings.Compare(a.Pod+"\x00"+a.ID, b.Pod+"\x00"+b.ID)
	})
}

func example(sandboxes []Sandbox) string {
	if len(sandboxes) == 1 {
		return "1 pod (" + first(sandboxes).Pod + ")"
	}
	return fmt.Sprintf("%d pods (such as %s)", len(sandboxes), first(sandboxes).Pod)
}
