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

// Identity is whose a machine is: one node of one cluster.
type Identity struct {
	// ClusterUID is chosen when the machine becomes a node, and stays: the UID that the
	// Service default/kubernetes had then.
	ClusterUID string `json:"clusterUID"`
	NodeName   string `json:"nodeName"`
}

// Stamp is the value of pod.LabelOwner on everything of this identity. It names
// no process: the next one of the same node adopts what it finds.
func (i Identity) Stamp() string { return i.ClusterUID + "/" + i.NodeName }

func (i Identity) String() string {
	return fmt.Sprintf("node %q of cluster %s", i.NodeName, i.ClusterUID)
}

// parseStamp is Stamp's inverse; a stamp of another form stays as it is.
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

// schemaVersion of the owner file.
const schemaVersion = 1

// Record is the content of the owner file and of the locks: whose the machine
// is, and which process drives it, or last did.
type Record struct {
	SchemaVersion int `json:"schemaVersion"`
	Identity
	// Witnesses of the cluster, as they were last seen.
	Witnesses Witnesses `json:"witnesses"`
	Instance  string    `json:"instance"` // of the process; new with each start
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"startedAt"`
	Version   string    `json:"version"` // of Bowline
}

// driver says which process the record is of.
func (r Record) driver() string {
	return fmt.Sprintf("%s, instance %s, pid %d, running since %s", r.Identity, r.Instance, r.PID, r.StartedAt.UTC().Format(time.RFC3339))
}

func (r Record) bytes() []byte {
	r.SchemaVersion = schemaVersion
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		panic(err) // strings, a number and a time: cannot be
	}
	return append(data, '\n')
}

// ParseRecord reads an owner file, or what a lock says of its holder: nil without an
// error for no content (an empty file is what a power cut leaves of a new one). What can
// be read of a newer Bowline's comes with a schema.NewerError, and may be shown.
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

// Sandbox is what a decision knows of one pod sandbox of the runtime.
type Sandbox struct {
	ID      string
	Pod     string // namespace/name
	PodUID  string // label pod.LabelPodUID
	Seen    string // annotation pod.AnnotationSeen, of a static pod
	Stamp   string // label pod.LabelOwner; empty if there is none
	Kubelet bool   // it has the kubelet's label pod.LabelPodUID
	Ready   bool   // SANDBOX_READY
}

// Locked is that another process holds a lock of the machine.
type Locked struct {
	Path   string
	Holder *Record // nil where the holder did not say, or not in our words
}

// Evidence is all that a decision depends on.
type Evidence struct {
	// Self has the UID of the Service default/kubernetes, or what the caller knows the
	// cluster by; no UID where that Service is missing.
	Self         Identity
	Witnesses    Witnesses  // of the cluster, as they are now
	Pods         []KnownPod // nil: not asked
	AllowForeign bool       // drive a runtime that has pods of a kubelet
	Locked       *Locked    // nil: the locks are ours, or not yet tried
	FilePath     string
	File         *Record // nil: no owner file, or an empty one
	FileErr      error   // the owner file cannot be understood
	Sandboxes    []Sandbox
}

// Kind is how a decision falls.
type Kind int

const (
	Accepted      Kind = iota
	HeldByOther        // a live process holds a lock
	FileUnclear        // the owner file is not one of ours, and no pod tells whose the machine is
	FileNewer          // the owner file is of a newer Bowline
	OtherCluster       // the owner file is of another cluster: the wrong kubeconfig
	OtherNode          // the owner file is of another node of this cluster
	OtherSandbox       // the runtime has sandboxes of another owner's stamp
	KubeletDrives      // the runtime has live pods of a kubelet
)

var kindNames = [...]string{"Accepted", "HeldByOther", "FileUnclear", "FileNewer", "OtherCluster", "OtherNode", "OtherSandbox", "KubeletDrives"}

func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return "Invalid"
	}
	return kindNames[k]
}

// Decision over the evidence.
type Decision struct {
	Kind     Kind
	Sentence string // why not, and what to do; empty if accepted
	Ours     int    // sandboxes with our stamp
	Foreign  int    // all others; they are never touched
	// Identity is as whom the machine is driven, if accepted.
	Identity Identity
}

// Decide is PURE: whether we may drive the machine. What tells most comes first:
// a live process, then what an earlier one wrote, then what the runtime shows.
func Decide(e Evidence) Decision {
	d := Decision{Identity: e.identity()}
	var others, kubelets []Sandbox
	for _, s := range e.Sandboxes {
		switch {
		case s.Stamp == d.Identity.Stamp():
			d.Ours++
			continue
		case s.Stamp != "":
			// Stopped ones too: their owner is to come back to them.
			others = append(others, s)
		case s.Kubelet && s.Ready:
			kubelets = append(kubelets, s)
		}
		d.Foreign++
	}
	refuse := func(k Kind, format string, args ...any) Decision {
		d.Kind, d.Sentence = k, fmt.Sprintf(format, args...)
		return d
	}
	switch {
	case e.Locked != nil && e.Locked.Holder == nil:
		return refuse(HeldByOther, "another process drives this machine: it holds the lock %s and does not say who it is; find it with \"fuser %s\" and stop it", e.Locked.Path, e.Locked.Path)
	case e.Locked != nil:
		return refuse(HeldByOther, "another Bowline drives this machine (%s): %s; stop it, or give this one a machine of its own", e.Locked.Path, e.Locked.Holder.driver())
	case schema.Newer(e.FileErr):
		return refuse(FileNewer, "the owner file %s is of another Bowline: %v, or remove the file if that Bowline has given the machine up", e.FilePath, e.FileErr)
	case e.FileErr != nil && (d.Ours == 0 || len(others) > 0):
		// Where all stamps are ours, they say whose the machine is.
		return refuse(FileUnclear, "the owner file %s cannot be understood (%v); if no other Bowline uses this machine, remove it", e.FilePath, e.FileErr)
	case e.File != nil && e.File.ClusterUID != d.Identity.ClusterUID:
		return refuse(OtherCluster, "this machine is %s (owner file %s), and the kubeconfig is of cluster %s; use that cluster's kubeconfig, or remove the file if that cluster has given the machine up", e.File.Identity, e.FilePath, cmp.Or(e.Self.ClusterUID, "without a UID (the Service default/kubernetes is missing)"))
	case e.File != nil && e.File.NodeName != e.Self.NodeName:
		return refuse(OtherNode, "this machine is %s (owner file %s), not node %q; use that nodeName, or remove the file once that node's pods are gone", e.File.Identity, e.FilePath, e.Self.NodeName)
	case len(others) > 0:
		return refuse(OtherSandbox, "the runtime has %s of %s; start Bowline as that node, or remove them", example(others), parseStamp(first(others).Stamp))
	case len(kubelets) > 0 && !e.AllowForeign:
		return refuse(KubeletDrives, "the runtime runs %s of somebody else: a kubelet drives it; drain that node and stop its kubelet, or set allowForeignPods to leave them alone beside Bowline's", example(kubelets))
	}
	return d
}

// first by name, so that one state has one sentence.
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
