package provider

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/bowline-k8s/bowline/host"
)

// Registration is what the operator configures for the node object. Taints and ProviderID have an
// effect only when the object is created: the API server forbids a node to change them later.
type Registration struct {
	NodeName    string
	Labels      map[string]string // added to the kubelet's own, and override them
	Annotations map[string]string
	Taints      []v1.Taint
	ProviderID  string
	MaxPods     int64 // 110 if zero
	PodsPerCore int64 // pods for each CPU, if that is less than MaxPods; no such limit if zero

	instance string // Config.Instance
}

// Machine is what the machine and its runtime report, and what the node derives from that.
type NodeInfo struct {
	Facts host.Facts
	// Reserved is subtracted from capacity to get allocatable; nil: DefaultReserved.
	Reserved v1.ResourceList
	// Addresses of the node; nil: the machine's first address, and the node's name as Hostname.
	Addresses []v1.NodeAddress
	// RuntimeName and RuntimeVersion come from CRI Version: "containerd", "2.1.4" (without a
	// leading v, as a kubelet reports it).
	RuntimeName, RuntimeVersion string
	// Handlers come from CRI Status.RuntimeHandlers.
	Handlers []v1.NodeRuntimeHandler
	// Features come from CRI Status.Features; nil if the runtime reports none.
	Features *v1.NodeFeatures
	// DeclaredFeatures, sorted, are the feature gates that this node supports, of those that the
	// scheduler and admission check (k8s.io/component-helpers/nodedeclaredfeatures).
	DeclaredFeatures []string
	// KubeletVersion, "v1.37.1"; see ReportedVersion.
	KubeletVersion string
}

// Condition is a node condition without its times. The heartbeat time is set when it is sent, the
// transition time when the status on the server changes.
type Condition struct {
	Type            v1.NodeConditionType
	Status          v1.ConditionStatus
	Reason, Message string
}

// nodeObject builds the node as a kubelet would register and report it.
func nodeObject(r Registration, m NodeInfo, conditions []Condition, images []v1.ContainerImage, port int32, now time.Time) *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   r.NodeName,
			Labels: nodeLabels(r, m),
			Annotations: map[string]string{
				AnnotationDriver: driverName,
				// The controller manager attaches the attachable volumes.
				"volumes.kubernetes.io/controller-managed-attach-detach": "true",
			},
		},
		Spec: v1.NodeSpec{Taints: slices.Clone(r.Taints), ProviderID: r.ProviderID},
	}
	if r.instance != "" {
		n.Annotations[AnnotationInstance] = r.instance
	}
	maps.Copy(n.Annotations, r.Annotations)

	capacity := capacityOf(m.Facts, r.maxPods(m.Facts.CPUs))
	n.Status = v1.NodeStatus{
		Capacity:        capacity,
		Allocatable:     allocatableOf(capacity, m.Reserved),
		Addresses:       nodeAddresses(r, m),
		DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: port}},
		NodeInfo: v1.NodeSystemInfo{
			MachineID:               m.Facts.MachineID,
			SystemUUID:              m.Facts.SystemUUID,
			BootID:                  m.Facts.BootID,
			KernelVersion:           m.Facts.KernelVersion,
			OSImage:                 m.Facts.OSImage,
			ContainerRuntimeVersion: cmp.Or(m.RuntimeName, "unknown") + "://" + cmp.Or(strings.TrimPrefix(m.RuntimeVersion, "v"), "Unknown"),
			KubeletVersion:          m.KubeletVersion,
			OperatingSystem:         m.Facts.OS,
			Architecture:            m.Facts.Architecture,
		},
		Images:           images,
		RuntimeHandlers:  m.Handlers,
		Features:         m.Features,
		DeclaredFeatures: m.DeclaredFeatures,
	}
	if m.Facts.SwapBytes > 0 {
		n.Status.NodeInfo.Swap = &v1.NodeSwapStatus{Capacity: &m.Facts.SwapBytes}
	}
	for _, c := range conditions {
		n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{
			Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message,
			LastHeartbeatTime:  metav1.NewTime(now),
			LastTransitionTime: metav1.NewTime(now),
		})
	}
	return n
}

// nodeLabels are those that a kubelet sets. NodeRestriction allows a node to set these, and labels
// outside of kubernetes.io and k8s.io.
func nodeLabels(r Registration, m NodeInfo) map[string]string {
	l := map[string]string{
		v1.LabelHostname:      r.NodeName,
		v1.LabelOSStable:      m.Facts.OS,
		v1.LabelArchStable:    m.Facts.Architecture,
		kubeletapis.LabelOS:   m.Facts.OS,
		kubeletapis.LabelArch: m.Facts.Architecture,
	}
	maps.Copy(l, r.Labels)
	return l
}

func nodeAddresses(r Registration, m NodeInfo) []v1.NodeAddress {
	if m.Addresses != nil {
		return slices.Clone(m.Addresses)
	}
	var a []v1.NodeAddress
	if len(m.Facts.Addresses) > 0 {
		a = append(a, v1.NodeAddress{Type: v1.NodeInternalIP, Address: m.Facts.Addresses[0].String()})
	}
	return append(a, v1.NodeAddress{Type: v1.NodeHostName, Address: r.NodeName})
}

// maxPods is the number of pods of a machine with this number of CPUs.
func (r *Registration) maxPods(cpus int) int64 {
	if r.PodsPerCore <= 0 {
		return r.MaxPods
	}
	return min(r.MaxPods, r.PodsPerCore*int64(cpus))
}

func capacityOf(f host.Facts, maxPods int64) v1.ResourceList {
	c := v1.ResourceList{
		v1.ResourceCPU:              *resource.NewMilliQuantity(int64(f.CPUs)*1000, resource.DecimalSI),
		v1.ResourceMemory:           *resource.NewQuantity(f.MemoryBytes, resource.BinarySI),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(f.RootDiskBytes, resource.BinarySI),
		v1.ResourcePods:             *resource.NewQuantity(maxPods, resource.DecimalSI),
	}
	for size, bytes := range f.HugePages {
		if name, ok := hugePageResource(size); ok {
			c[name] = *resource.NewQuantity(bytes, resource.BinarySI)
		}
	}
	return c
}

// hugePageResource turns the kernel's page size ("2MB", "2048kB") into the resource name
// (hugepages-2Mi).
func hugePageResource(size string) (v1.ResourceName, bool) {
	digits := strings.TrimRight(size, "kKMGTiB")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 {
		return "", false
	}
	switch strings.TrimSuffix(strings.TrimSuffix(size[len(digits):], "B"), "i") {
	case "":
	case "k", "K":
		n <<= 10
	case "M":
		n <<= 20
	case "G":
		n <<= 30
	default:
		return "", false
	}
	return v1.ResourceName(v1.ResourceHugePagesPrefix + resource.NewQuantity(n, resource.BinarySI).String()), true
}

// DefaultReserved is what a kubelet without reservations holds back: its hard eviction thresholds,
// memory.available 100Mi and nodefs.available 10 %.
func DefaultReserved(capacity v1.ResourceList) v1.ResourceList {
	disk := capacity[v1.ResourceEphemeralStorage]
	return v1.ResourceList{
		v1.ResourceMemory:           resource.MustParse("100Mi"),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(disk.Value()/10, resource.BinarySI),
	}
}

// allocatableOf is capacity minus reserved. Memory is also reduced by huge pages, which no other
// use can have. It is never negative.
func allocatableOf(capacity, reserved v1.ResourceList) v1.ResourceList {
	if reserved == nil {
		reserved = DefaultReserved(capacity)
	}
	a := v1.ResourceList{}
	take := func(q *resource.Quantity, less resource.Quantity) {
		q.Sub(less)
		if q.Sign() < 0 {
			q.Set(0)
		}
	}
	for name, c := range capacity {
		q := c.DeepCopy()
		if less, ok := reserved[name]; ok {
			take(&q, less)
		}
		a[name] = q
	}
	for name, c := range capacity {
		if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			memory := a[v1.ResourceMemory]
			take(&memory, c)
			a[v1.ResourceMemory] = memory
		}
	}
	return a
}
