package pod

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is an amount that is left of the machine, by the kubelet's name.
type Signal string

// The signals that a threshold may be set for. nodefs holds the pods' volumes and logs,
// imagefs the images and, on this side of the CRI, what containers write.
const (
	MemoryAvailable   Signal = "memory.available"
	NodeFsAvailable   Signal = "nodefs.available"
	NodeFsInodesFree  Signal = "nodefs.inodesFree"
	ImageFsAvailable  Signal = "imagefs.available"
	ImageFsInodesFree Signal = "imagefs.inodesFree"
	PIDAvailable      Signal = "pid.available"
	// AllocatableMemory is what is left of the memory that all pods may have. No
	// threshold is set for it: it has that of memory.available.
	AllocatableMemory Signal = "allocatableMemory.available"
)

// Signals are all that a threshold may be set for.
var Signals = []Signal{MemoryAvailable, NodeFsAvailable, NodeFsInodesFree, ImageFsAvailable, ImageFsInodesFree, PIDAvailable}

// Amount of something: a quantity, or a share of what there is.
type Amount struct {
	Quantity *resource.Quantity // nil: Share
	Share    float32            // 0.1 is 10 %; as exact as the kubelet has it
}

// ParseAmount reads "100Mi" or "10%". What is 0 % or 100 % is a threshold that is never
// met, as the kubelet takes it.
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

// Of what there is.
func (a Amount) Of(capacity int64) int64 {
	if a.Quantity != nil {
		return a.Quantity.Value()
	}
	return int64(float64(capacity) * float64(a.Share))
}

// String is as the configuration writes it.
func (a Amount) String() string {
	if a.Quantity != nil {
		return a.Quantity.String()
	}
	return fmt.Sprintf("%g%%", a.Share*100)
}

// Threshold below which pods are evicted.
type Threshold struct {
	Signal     Signal
	Amount     Amount
	Soft       bool
	Grace      time.Duration // how long it must be met first; of a soft one
	MinReclaim *Amount       // more than Amount, before it counts as resolved; or nil
}
