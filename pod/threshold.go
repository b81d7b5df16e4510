package pod

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is the kubelet's name for a resource of the machine that can run out.
type Signal string

// The signals that can have a threshold. nodefs has the pods' volumes and logs, imagefs the images
// and, below the CRI, the containers' writable layers.
const (
	MemoryAvailable   Signal = "memory.available"
	NodeFsAvailable   Signal = "nodefs.available"
	NodeFsInodesFree  Signal = "nodefs.inodesFree"
	ImageFsAvailable  Signal = "imagefs.available"
	ImageFsInodesFree Signal = "imagefs.inodesFree"
	PIDAvailable      Signal = "pid.available"
	// AllocatableMemory is what is left of the memory for all pods. It has no threshold of its own,
	// but that of memory.available.
	AllocatableMemory Signal = "allocatableMemory.available"
)

// Signals are all that can have a threshold.
var Signals = []Signal{MemoryAvailable, NodeFsAvailable, NodeFsInodesFree, ImageFsAvailable, ImageFsInodesFree, PIDAvailable}

// Amount is a quantity, or a share of the capacity.
type Amount struct {
	Quantity *resource.Quantity // nil: Share
	Share    float32            // 0.1 is 10 %; float32, like the kubelet's
}

// ParseAmount parses "100Mi" or "10%". The caller treats 0 % and 100 % as a threshold that is never
// met, as the kubelet does.
func ParseAmount(s string) (Amount, error) {
	if percent, ok := strings.CutSuffix(s, "%"); ok {
		n, err := strconv.ParseFloat(percent, 32)
		if err != nil || n < 0 || n > 100 {
			return Amount{}, errors.New("a percentage, 0% to 100%")
		}
		return Amount{Share: float32(n) / 100}, nil
	}
	q, err := resource.ParseQuantity(s)
	if err != nil || q.Sign() < 0 {
		return Amount{}, errors.New("an amount, such as 100Mi, or a percentage, such as 10%")
	}
	return Amount{Quantity: &q}, nil
}

// Of is the amount for a capacity.
func (a Amount) Of(capacity int64) int64 {
	if a.Quantity != nil {
		return a.Quantity.Value()
	}
	return int64(float64(capacity) * float64(a.Share))
}

// String formats the amount as in the configuration.
func (a Amount) String() string {
	if a.Quantity != nil {
		return a.Quantity.String()
	}
	return fmt.Sprintf("%g%%", a.Share*100)
}

// Threshold is an amount below which pods are evicted.
type Threshold struct {
	Signal     Signal
	Amount     Amount
	Soft       bool
	Grace      time.Duration // soft only: how long it must be met first
	MinReclaim *Amount       // how far Amount must be exceeded before it counts as resolved, or nil
}
